/* Read bandwidth: every thread combines its part of a buffer far larger than the caches.
 * bandwidth [threads] [MiB per thread] [seconds]  ->  a JSON line each for ordinary pages ("read_bandwidth") and for
 * transparent huge pages ("read_bandwidth_huge"): the better of one stream of reads a thread and of four. */
#include "roofline.h"

#include <immintrin.h>
#include <sys/mman.h>

static size_t g_bytes;
static char* g_buffer[256];
static double g_seconds;
static int g_streams;
static uint64_t g_passes[256];
static volatile uint64_t g_sink;

static void body(int index, void* unused) {
  (void)unused;
  const double end = now() + g_seconds;
  const int streams = g_streams;
  const size_t part = g_bytes / (size_t)streams;
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  do {
    for (size_t i = 0; i < part; i += 128) {
      for (int s = 0; s < streams; ++s) {
        const char* p = g_buffer[index] + (size_t)s * part + i;
        a = _mm256_xor_si256(a, _mm256_load_si256((const __m256i*)p));
        b = _mm256_xor_si256(b, _mm256_load_si256((const __m256i*)(p + 32)));
        c = _mm256_xor_si256(c, _mm256_load_si256((const __m256i*)(p + 64)));
        d = _mm256_xor_si256(d, _mm256_load_si256((const __m256i*)(p + 96)));
      }
    }
    ++g_passes[index];
  } while (now() < end);
  a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
  g_sink += (uint64_t)_mm256_extract_epi64(a, 0);
}

static double measure(int threads, int streams) {
  g_streams = streams;
  memset(g_passes, 0, sizeof g_passes);
  const double seconds = run_threads(threads, body, NULL);
  double bytes = 0;
  for (int i = 0; i < threads; ++i) bytes += (double)g_passes[i] * (double)g_bytes;
  return bytes / seconds / 1e9;
}

static int report(const char* figure, int threads, int advice) {
  for (int i = 0; i < threads; ++i) {
    char* p = mmap(NULL, g_bytes + (2 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return 1;
    madvise(p, g_bytes + (2 << 20), advice);
    g_buffer[i] = (char*)(((uintptr_t)p + (2 << 20) - 1) & ~(uintptr_t)((2 << 20) - 1));
    memset(g_buffer[i], i + 1, g_bytes);
  }
  const double one = measure(threads, 1), four = measure(threads, 4);
  printf("{\"figure\": \"%s\", \"value\": %.3f, \"unit\": \"GB/s\", \"threads\": %d, \"mib\": %zu}\n", figure,
         one > four ? one : four, threads, g_bytes >> 20);
  for (int i = 0; i < threads; ++i) munmap(g_buffer[i], g_bytes);
  return 0;
}

int main(int argc, char** argv) {
  const int threads = argc > 1 ? atoi(argv[1]) : default_threads();
  /* Several hundred MiB by default: server processors have last-level caches of that order. */
  g_bytes = (size_t)(argc > 2 ? atoi(argv[2]) : 512) << 20;
  g_seconds = (argc > 3 ? atof(argv[3]) : 1.0) / 2;
  return report("read_bandwidth", threads, MADV_NOHUGEPAGE) || report("read_bandwidth_huge", threads, MADV_HUGEPAGE);
}
