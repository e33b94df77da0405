// The multiply-add peak of one thread: twelve independent chains.
#include <immintrin.h>

#include <cstdint>

double fma_peak_avx512(int64_t steps) {
  __m512 sum[12], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
  for (auto& s : sum) s = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) sum[j] = _mm512_fmadd_ps(x, sum[j], y);
  }
  __m512 total = sum[0];
  for (int j = 1; j < 12; ++j) total = _mm512_add_ps(total, sum[j]);
  asm volatile("" ::"v"(total));
  return static_cast<double>(steps) * 12 * 16;
}
