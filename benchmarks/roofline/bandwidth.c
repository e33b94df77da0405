/* Read bandwidth: every thread sums its part of a buffer far larger than the caches (AVX2 loads).
 * bandwidth [threads] [MiB per thread] [seconds]  ->  {"figure": "read_bandwidth", "value": GB/s, ...} */
#include "roofline.h"

#include <immintrin.h>

static size_t g_bytes;
static char* g_buffer[256];
static double g_seconds;
static uint64_t g_passes[256];
static volatile uint64_t g_sink;

static void body(int index, void* unused) {
  (void)unused;
  const char* p = g_buffer[index];
  const double end = now() + g_seconds;
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  do {
    for (size_t i = 0; i < g_bytes; i += 128) {
      a = _mm256_xor_si256(a, _mm256_load_si256((const __m256i*)(p + i)));
      b = _mm256_xor_si256(b, _mm256_load_si256((const __m256i*)(p + i + 32)));
      c = _mm256_xor_si256(c, _mm256_load_si256((const __m256i*)(p + i + 64)));
      d = _mm256_xor_si256(d, _mm256_load_si256((const __m256i*)(p + i + 96)));
    }
    ++g_passes[index];
  } while (now() < end);
  a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
  g_sink += (uint64_t)_mm256_extract_epi64(a, 0);
}

int main(int argc, char** argv) {
  const int threads = argc > 1 ? atoi(argv[1]) : default_threads();
  /* Several hundred MiB by default: server processors have last-level caches of that order. */
  g_bytes = (size_t)(argc > 2 ? atoi(argv[2]) : 512) << 20;
  g_seconds = argc > 3 ? atof(argv[3]) : 1.0;
  for (int i = 0; i < threads; ++i) {
    g_buffer[i] = aligned_alloc(4096, g_bytes);
    if (!g_buffer[i]) return 1;
    memset(g_buffer[i], i + 1, g_bytes);
  }
  const double seconds = run_threads(threads, body, NULL);
  double bytes = 0;
  for (int i = 0; i < threads; ++i) bytes += (double)g_passes[i] * (double)g_bytes;
  printf("{\"figure\": \"read_bandwidth\", \"value\": %.3f, \"unit\": \"GB/s\", \"threads\": %d, \"mib\": %zu}\n",
         bytes / seconds / 1e9, threads, g_bytes >> 20);
  return 0;
}
