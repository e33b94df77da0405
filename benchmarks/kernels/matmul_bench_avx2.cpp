// The multiply-add peak of one thread: twelve independent chains.
#include <immintrin.h>

#include <cstdint>

double fma_peak_avx2(int64_t steps) {
  __m256 sum[12], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
  for (auto& s : sum) s = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) sum[j] = _mm256_fmadd_ps(x, sum[j], y);
  }
  __m256 total = sum[0];
  for (int j = 1; j < 12; ++j) total = _mm256_add_ps(total, sum[j]);
  asm volatile("" ::"x"(total));
  return static_cast<double>(steps) * 12 * 8;
}

uint64_t read_all(const void* data, uint64_t bytes) {
  const char* p = static_cast<const char*>(data);
  __m256i sum[4] = {};
  for (uint64_t i = 0; i < bytes; i += 128) {
    _mm_prefetch(p + i + 2048, _MM_HINT_T0);
    _mm_prefetch(p + i + 2112, _MM_HINT_T0);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      sum[j] = _mm256_add_epi64(sum[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i) + j));
    }
  }
  const __m256i total = _mm256_add_epi64(_mm256_add_epi64(sum[0], sum[1]), _mm256_add_epi64(sum[2], sum[3]));
  return static_cast<uint64_t>(_mm256_extract_epi64(total, 0) + _mm256_extract_epi64(total, 1) +
                               _mm256_extract_epi64(total, 2) + _mm256_extract_epi64(total, 3));
}
