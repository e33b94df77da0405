// Tiles of 4 rows x 16 columns in plain C++; the reference for the vector files.
#include <cmath>

#include "kernels/matmul_isa.h"

namespace aloft::matmul_detail {
namespace {

inline float multiply_add(float x, float y, float sum) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(x, y, sum);
#else
  return x * y + sum;
#endif
}

template <class T, int Rows>
void micro(const float* a, const void* weights, int64_t, int64_t k_stride, int64_t k, float* accumulators, int64_t row,
           bool fresh, Ahead ahead) {
  const T* b = static_cast<const T*>(weights);
  float sum[Rows][kPanel];
  for (int r = 0; r < Rows; ++r) {
    for (int j = 0; j < kPanel; ++j) sum[r][j] = fresh ? 0 : accumulators[r * row + j];
  }
  for (int64_t i = 0; i < k; ++i) {
    float wide[kPanel];
    for (int j = 0; j < kPanel; ++j) wide[j] = to_float(b[i * k_stride + j]);
    for (int r = 0; r < Rows; ++r) {
      const float x = a[r * kRowStride + i];
      for (int j = 0; j < kPanel; ++j) sum[r][j] = multiply_add(x, wide[j], sum[r][j]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int j = 0; j < kPanel; ++j) accumulators[r * row + j] = sum[r][j];
  }
}

template <class T>
Micro pick(int rows) {
  switch (rows) {
    case 1:
      return micro<T, 1>;
    case 2:
      return micro<T, 2>;
    case 3:
      return micro<T, 3>;
    default:
      return micro<T, 4>;
  }
}

Micro micro_for(Element type, int rows, int panels) {
  if (panels > 1 || rows > 4) return nullptr;
  switch (type) {
    case Element::BF16:
      return pick<bf16>(rows);
    case Element::F16:
      return pick<f16>(rows);
    default:
      return pick<float>(rows);
  }
}

template <class F>
void with_type(Element type, F&& f) {
  switch (type) {
    case Element::BF16:
      return f(bf16{});
    case Element::F16:
      return f(f16{});
    default:
      return f(float{});
  }
}

void pack_columns(Element type, const void* from, int64_t k_stride, int64_t k, float* to) {
  with_type(type, [&](auto tag) {
    const auto* p = static_cast<const decltype(tag)*>(from);
    for (int64_t i = 0; i < k; ++i) {
      for (int j = 0; j < kPanel; ++j) to[i * kPanel + j] = to_float(p[i * k_stride + j]);
    }
  });
}

void pack_rows(Element type, const void* from, int64_t n_stride, int64_t k, float* to) {
  with_type(type, [&](auto tag) {
    const auto* p = static_cast<const decltype(tag)*>(from);
    for (int j = 0; j < kPanel; ++j) {
      for (int64_t i = 0; i < k; ++i) to[i * kPanel + j] = to_float(p[j * n_stride + i]);
    }
  });
}

void widen(Element type, const void* from, int64_t count, float* to) {
  with_type(type, [&](auto tag) {
    const auto* p = static_cast<const decltype(tag)*>(from);
    for (int64_t i = 0; i < count; ++i) to[i] = to_float(p[i]);
  });
}

void narrow(Element type, const float* from, int64_t count, void* to) {
  with_type(type, [&](auto tag) {
    auto* p = static_cast<decltype(tag)*>(to);
    for (int64_t i = 0; i < count; ++i) p[i] = from_float<decltype(tag)>(from[i]);
  });
}

}  // namespace

const Kernels& portable_kernels() {
  static const Kernels kernels{4, micro_for, pack_columns, pack_rows, widen, narrow};
  return kernels;
}

}  // namespace aloft::matmul_detail
