/* Peak of int8 dot products with exact accumulation on AVX2 (no VNNI): operands in registers.
 *   signed8xsigned8: abs/sign, maddubs on 7-bit halves is not exact, so vpmaddwd on widened bytes is the exact way;
 *   unsigned4xsigned8: maddubs of nibbles (at most 15 * 128 * 2 = 3,840 a pair): eight pairs fit int16, then vpmaddwd.
 * int8 [threads] [seconds]  ->  one JSON line a method, in GOP/s (a multiply and an add count two). */
#include "roofline.h"

#include <immintrin.h>

static double g_seconds;
static uint64_t g_rounds[256];
static volatile int g_sink;
#define ROUND 2048

/* Per round: 8 accumulators, each taking 16 int16 products. */
__attribute__((target("avx2"))) static void madd16(int index, void* unused) {
  (void)unused;
  const double end = now() + g_seconds;
  __m256i w = _mm256_set1_epi16((short)(index + 3)), acc[8];
  for (int i = 0; i < 8; ++i) acc[i] = _mm256_setzero_si256();
  do {
    for (int r = 0; r < ROUND; ++r) {
      w = _mm256_xor_si256(w, _mm256_set1_epi16(1)); /* keeps the product from being hoisted */
      for (int i = 0; i < 8; ++i)
        acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(w, _mm256_set1_epi16((short)(i + 1))));
    }
    ++g_rounds[index];
  } while (now() < end);
  for (int i = 0; i < 8; ++i) g_sink += _mm256_extract_epi32(acc[i], 0);
}

/* Eight maddubs of 4-bit by 8-bit summed in int16 without overflow, then one madd with ones. */
__attribute__((target("avx2"))) static void nibble(int index, void* unused) {
  (void)unused;
  const double end = now() + g_seconds;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i w = _mm256_set1_epi8((char)(index + 3)), acc[4];
  for (int i = 0; i < 4; ++i) acc[i] = _mm256_setzero_si256();
  do {
    for (int r = 0; r < ROUND; ++r) {
      for (int i = 0; i < 4; ++i) {
        __m256i s = _mm256_setzero_si256();
        for (int j = 0; j < 8; ++j) {
          w = _mm256_xor_si256(w, _mm256_set1_epi8(1));
          s = _mm256_add_epi16(s, _mm256_maddubs_epi16(w, _mm256_set1_epi8((char)(i + j + 1))));
        }
        acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(s, ones));
      }
    }
    ++g_rounds[index];
  } while (now() < end);
  for (int i = 0; i < 4; ++i) g_sink += _mm256_extract_epi32(acc[i], 0);
}

static void report(const char* figure, int threads, double products, void (*body)(int, void*)) {
  memset(g_rounds, 0, sizeof g_rounds);
  const double seconds = run_threads(threads, body, NULL);
  double ops = 0;
  for (int i = 0; i < threads; ++i) ops += (double)g_rounds[i] * ROUND * products * 2.0;
  printf("{\"figure\": \"%s\", \"value\": %.2f, \"unit\": \"GOP/s\", \"threads\": %d}\n", figure, ops / seconds / 1e9, threads);
}

int main(int argc, char** argv) {
  const int threads = argc > 1 ? atoi(argv[1]) : default_threads();
  g_seconds = argc > 2 ? atof(argv[2]) : 0.5;
  if (!__builtin_cpu_supports("avx2")) return 1;
  report("int8_exact_avx2", threads, 8 * 16, madd16);
  report("int4x8_exact_avx2", threads, 4 * 8 * 32, nibble);
  return 0;
}
