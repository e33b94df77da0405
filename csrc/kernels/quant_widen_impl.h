// Compiled once for each instruction set.
#pragma once
#include "kernels/quant_finish_impl.h"
#include "kernels/quant_widen.h"

namespace aloft::quant_detail {
namespace {

float row_sum(const float* p, int64_t n) {
  f32x8 total = splat(0);
  for (int64_t i = 0; i < n; i += kLanes) total = total + load_some(p + i, n - i < kLanes ? n - i : kLanes);
  return sum(total);
}

void combine_widened(const float* acc, const float* scale, const float* zero, int64_t step, float a_sum, float* sums,
                     bool first, int64_t n) {
  each_eight(n, [&](int64_t j, int64_t c) __attribute__((always_inline)) {
    f32x8 f = load_some(acc + j, c);
    if (zero) f = f + (step ? load_some(zero + j, c) : splat(*zero)) * splat(a_sum);
    f = f * (step ? load_some(scale + j, c) : splat(*scale));
    if (!first) f = load_some(sums + j, c) + f;
    store_some(sums + j, f, c);
  });
}

void store_widened(const WidenMatmul& q, int64_t row, int64_t n0, int64_t n, const float* sums) {
  const int64_t at = row * q.out_stride + n0;
  each_eight(n, [&](int64_t j, int64_t c) __attribute__((always_inline)) {
    f32x8 f = load_some(sums + j, c);
    if (q.bias) f = f + load_some(q.bias + n0 + j, c);
    switch (q.out_dtype) {
      case DType::BF16:
        return store_some(static_cast<bf16*>(q.out) + at + j, f, c);
      case DType::F16:
        return store_some(static_cast<f16*>(q.out) + at + j, f, c);
      case DType::I8: {
        const int64_t s = q.out_scale_step ? n0 + j : 0;
        f = vrint(f * (q.out_scale_step ? load_some(q.out_scale + s, c) : splat(*q.out_scale)));
        if (q.out_offset) {
          f = f + to_floats(q.out_scale_step ? load_ints(q.out_offset + s, c) : i32x8{} + *q.out_offset);
        }
        return put<QuantOut::I8>(static_cast<int8_t*>(q.out) + at, j, f, c);
      }
      default:
        return store_some(static_cast<float*>(q.out) + at + j, f, c);
    }
  });
}

}  // namespace

struct WidenTiles {
  // acc[r][p * 16 + j] = chain over k, from 0 when fresh; b as QuantTiles::pack leaves it with flip 0.
  void (*multiply)(const float* a, int64_t a_stride, int64_t rows, const uint8_t* b, int64_t panel_stride, int panels,
                   int64_t length, float* acc, int64_t acc_stride, bool fresh);
  // Null, or one row and 64 columns of FRACTAL_NZ with lines of 32 bytes without packing: the same chains, from 0.
  void (*direct)(const QuantWeight& w, int64_t n0, int64_t k0, int64_t length, const float* a, float* acc) = nullptr;
};
WidenTiles widen_tiles_avx2();
WidenTiles widen_tiles_avx512();

struct WidenFinish {
  void (*widen)(DType, const void*, int64_t, float*);
  float (*row_sum)(const float*, int64_t);
  void (*combine)(const float*, const float*, const float*, int64_t, float, float*, bool, int64_t);
  void (*store)(const WidenMatmul&, int64_t, int64_t, int64_t, const float*);
};
extern const WidenFinish kWidenFinishAvx2;
#define ALOFT_WIDEN_FINISH {widen_any, row_sum, combine_widened, store_widened}

}  // namespace aloft::quant_detail
