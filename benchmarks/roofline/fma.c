/* Peak of fp32 fused multiply-add: twelve independent chains of eight (AVX2) or sixteen (AVX-512) lanes.
 * fma [threads] [seconds]  ->  {"figure": "fma_fp32_avx2" | "fma_fp32_avx512", "value": GFLOP/s, ...} per set. */
#include "roofline.h"

#include <immintrin.h>

static double g_seconds;
static uint64_t g_rounds[256];
static volatile float g_sink;

#define CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define ROUND 4096

__attribute__((target("avx2,fma"))) static void avx2(int index, void* unused) {
  (void)unused;
  const double end = now() + g_seconds;
  const __m256 m = _mm256_set1_ps(0.999f), k = _mm256_set1_ps(0.001f);
#define INIT(i) __m256 x##i = _mm256_set1_ps((float)i);
  CHAINS(INIT)
  do {
    for (int r = 0; r < ROUND; ++r) {
#define STEP(i) x##i = _mm256_fmadd_ps(x##i, m, k);
      CHAINS(STEP)
    }
    ++g_rounds[index];
  } while (now() < end);
#define SUM(i) g_sink += _mm256_cvtss_f32(x##i);
  CHAINS(SUM)
}

__attribute__((target("avx512f"))) static void avx512(int index, void* unused) {
  (void)unused;
  const double end = now() + g_seconds;
  const __m512 m = _mm512_set1_ps(0.999f), k = _mm512_set1_ps(0.001f);
#define INIT5(i) __m512 x##i = _mm512_set1_ps((float)i);
  CHAINS(INIT5)
  do {
    for (int r = 0; r < ROUND; ++r) {
#define STEP5(i) x##i = _mm512_fmadd_ps(x##i, m, k);
      CHAINS(STEP5)
    }
    ++g_rounds[index];
  } while (now() < end);
#define SUM5(i) g_sink += _mm512_cvtss_f32(x##i);
  CHAINS(SUM5)
}

static void report(const char* figure, int threads, int lanes, void (*body)(int, void*)) {
  memset(g_rounds, 0, sizeof g_rounds);
  const double seconds = run_threads(threads, body, NULL);
  double flops = 0;
  for (int i = 0; i < threads; ++i) flops += (double)g_rounds[i] * ROUND * 12.0 * lanes * 2.0;
  printf("{\"figure\": \"%s\", \"value\": %.2f, \"unit\": \"GFLOP/s\", \"threads\": %d}\n", figure, flops / seconds / 1e9,
         threads);
}

int main(int argc, char** argv) {
  const int threads = argc > 1 ? atoi(argv[1]) : default_threads();
  g_seconds = argc > 2 ? atof(argv[2]) : 0.5;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
  report("fma_fp32_avx2", threads, 8, avx2);
  if (__builtin_cpu_supports("avx512f")) report("fma_fp32_avx512", threads, 16, avx512);
  return 0;
}
