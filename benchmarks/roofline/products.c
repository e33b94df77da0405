/* Peaks of the product units beyond plain vectors, where the processor has them; operands in registers or tiles:
 *   int8_vnni_avx512   vpdpbusd, unsigned by signed bytes, sums exact in int32
 *   bf16_avx512        vdpbf16ps, pairs of bfloat16 into float32
 *   bf16_amx, int8_amx tiles of 16 x 64 bytes; sums in float32, and exact in int32
 * products [threads] [seconds]  ->  one JSON line a unit, a multiply and an add counting two. */
#include "roofline.h"

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

static double g_seconds;
static uint64_t g_rounds[256];
static volatile float g_sink;
#define ROUND 2048
#define CHAINS 12

__attribute__((target("avx512f,avx512bw,avx512vnni"))) static void vnni(int index, void* unused) {
  (void)unused;
  const double end = now() + g_seconds;
  __m512i w = _mm512_set1_epi8((char)(index + 3)), acc[CHAINS];
  for (int i = 0; i < CHAINS; ++i) acc[i] = _mm512_set1_epi32(i);
  do {
    for (int r = 0; r < ROUND; ++r) {
#pragma GCC unroll 12
      for (int i = 0; i < CHAINS; ++i) acc[i] = _mm512_dpbusd_epi32(acc[i], w, w);
    }
    ++g_rounds[index];
  } while (now() < end);
  for (int i = 0; i < CHAINS; ++i) g_sink += (float)_mm512_reduce_add_epi32(acc[i]);
}

__attribute__((target("avx512f,avx512bf16"))) static void bf16(int index, void* unused) {
  (void)unused;
  const double end = now() + g_seconds;
  __m512 acc[CHAINS];
  __m512bh w = (__m512bh)_mm512_set1_epi16((short)(0x3c00 + index));
  for (int i = 0; i < CHAINS; ++i) acc[i] = _mm512_set1_ps((float)i);
  do {
    for (int r = 0; r < ROUND; ++r) {
#pragma GCC unroll 12
      for (int i = 0; i < CHAINS; ++i) acc[i] = _mm512_dpbf16_ps(acc[i], w, w);
    }
    ++g_rounds[index];
  } while (now() < end);
  for (int i = 0; i < CHAINS; ++i) g_sink += _mm512_reduce_add_ps(acc[i]);
}

struct tiles {
  uint8_t palette, start;
  uint8_t reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};

__attribute__((target("amx-tile"))) static void configure(void) {
  struct tiles t = {.palette = 1};
  for (int i = 0; i < 8; ++i) {
    t.bytes[i] = 64;
    t.rows[i] = 16;
  }
  __asm__ volatile("" : : "r"(&t) : "memory"); /* gcc's intrinsic names only eight of the bytes it reads */
  _tile_loadconfig(&t);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
}

#define AMX(name, unit, op)                                                       \
  __attribute__((target("amx-tile," unit))) static void name(int index, void* u) { \
    (void)u;                                                                      \
    const double end = now() + g_seconds;                                         \
    configure();                                                                  \
    do {                                                                          \
      for (int r = 0; r < ROUND; ++r) {                                           \
        op(0, 4, 6);                                                              \
        op(1, 4, 7);                                                              \
        op(2, 5, 6);                                                              \
        op(3, 5, 7);                                                              \
      }                                                                           \
      ++g_rounds[index];                                                          \
    } while (now() < end);                                                        \
    _tile_release();                                                              \
  }
AMX(amx_bf16, "amx-bf16", _tile_dpbf16ps)
AMX(amx_int8, "amx-int8", _tile_dpbusd)

static void report(const char* figure, const char* unit, int threads, double products, void (*body)(int, void*)) {
  memset(g_rounds, 0, sizeof g_rounds);
  const double seconds = run_threads(threads, body, NULL);
  double ops = 0;
  for (int i = 0; i < threads; ++i) ops += (double)g_rounds[i] * ROUND * products * 2.0;
  printf("{\"figure\": \"%s\", \"value\": %.2f, \"unit\": \"%s\", \"threads\": %d}\n", figure, ops / seconds / 1e9, unit,
         threads);
}

int main(int argc, char** argv) {
  const int threads = argc > 1 ? atoi(argv[1]) : default_threads();
  g_seconds = argc > 2 ? atof(argv[2]) : 0.5;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512vnni")) report("int8_exact_vnni", "GOP/s", threads, CHAINS * 64, vnni);
  if (__builtin_cpu_supports("avx512bf16")) report("bf16_avx512", "GFLOP/s", threads, CHAINS * 32, bf16);
  unsigned a = 7, b = 0, c = 0, d = 0;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  /* The kernel gives the tile registers (XTILEDATA, 18) to a process that asks for them (ARCH_REQ_XCOMP_PERM). */
  const int tile_data = 18, request = 0x1023;
  if ((d & (1u << 24)) && syscall(SYS_arch_prctl, request, tile_data) == 0) {
    if (d & (1u << 22)) report("bf16_amx", "GFLOP/s", threads, 4.0 * 16 * 16 * 32, amx_bf16);
    if (d & (1u << 25)) report("int8_exact_amx", "GOP/s", threads, 4.0 * 16 * 16 * 64, amx_int8);
  }
  return 0;
}
