// Rotary embedding of halves, sixteen pairs at a time; interleaved pairs are left to AVX2.
#include "kernels/rotary_impl.h"
#include "kernels/vec_avx512.h"

namespace aloft {
namespace {

template <class T, class C, bool kShared>
void halves_row(const void* x_, const void* cos_, const void* sin_, void* y_, int64_t width, int64_t tail) {
  const T* x = static_cast<const T*>(x_);
  const C *cos = static_cast<const C*>(cos_), *sin = static_cast<const C*>(sin_);
  T* y = static_cast<T*>(y_);
  const int64_t half = width / 2, second = kShared ? 0 : half;
  for (int64_t i = 0; i < half; i += kWide) {
    const __mmask16 m = first_lanes(half - i);
    const f32x16 a = load16(x + i, m), b = load16(x + half + i, m);
    const f32x16 ca = load16(cos + i, m), sa = load16(sin + i, m);
    const f32x16 cb = kShared ? ca : load16(cos + second + i, m), sb = kShared ? sa : load16(sin + second + i, m);
    store16(y + i, _mm512_fmsub_ps(a, ca, _mm512_mul_ps(b, sa)), m);
    store16(y + half + i, _mm512_fmadd_ps(b, cb, _mm512_mul_ps(a, sb)), m);
  }
  if (tail && x != y) std::memcpy(y + width, x + width, static_cast<size_t>(tail) * sizeof(T));
}

template <class T, class C>
RotaryRow halves_row_for(const RotaryArgs& a) {
  return a.table == Pairs::Shared ? halves_row<T, C, true> : halves_row<T, C, false>;
}

}  // namespace

RotaryRow find_rotary_row_avx512(const RotaryArgs& a) {
  if (a.input != Pairs::Halves) return nullptr;
  const bool wide = a.table_dtype == DType::F32;
  switch (a.dtype) {
    case DType::BF16:
      return wide ? halves_row_for<bf16, float>(a) : halves_row_for<bf16, bf16>(a);
    case DType::F16:
      return wide ? halves_row_for<f16, float>(a) : halves_row_for<f16, f16>(a);
    default:
      return halves_row_for<float, float>(a);
  }
}

}  // namespace aloft
