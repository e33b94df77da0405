// The exact int8 multiply-add peak of the instruction set in use, operands in registers.
#include <immintrin.h>

#include "kernels/cpu.h"
#include "kernels/tiles.h"

using aloft::Isa;

namespace {

volatile int sink;

__attribute__((target("avx2"))) double avx2(int64_t steps) {
  __m256i acc[8], w = _mm256_set1_epi16(3);
  for (auto& a : acc) a = _mm256_setzero_si256();
  for (int64_t i = 0; i < steps; ++i) {
    w = _mm256_xor_si256(w, _mm256_set1_epi16(1));
    for (int j = 0; j < 8; ++j)
      acc[j] = _mm256_add_epi32(acc[j], _mm256_madd_epi16(w, _mm256_set1_epi16(static_cast<short>(j + 1))));
  }
  for (auto& a : acc) sink += _mm256_extract_epi32(a, 0);
  return static_cast<double>(steps) * 8 * 16;
}

double vnni(int64_t steps) {
  __m512i acc[16], w = _mm512_set1_epi8(3);
  for (auto& a : acc) a = _mm512_setzero_si512();
  for (int64_t i = 0; i < steps; ++i) {
    for (auto& a : acc) a = _mm512_dpbusd_epi32(a, w, w);
    asm volatile("" : "+v"(w));
  }
  for (auto& a : acc) sink += _mm512_reduce_add_epi32(a);
  return static_cast<double>(steps) * 16 * 64;
}

double amx(int64_t steps) {
  aloft::TileShapes shapes;
  for (int t = 0; t < 8; ++t) shapes.set(t, 16);
  const aloft::Tiles tiles(shapes);
  for (int64_t i = 0; i < steps; ++i) {
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  }
  return static_cast<double>(steps) * 4 * 16 * 16 * 64;
}

}  // namespace

const char* int8_peak_name() {
  return aloft::isa() >= Isa::Amx ? "tdpbssd" : aloft::isa() >= Isa::Avx512 ? "vpdpbusd" : "vpmaddwd (AVX2)";
}
double int8_peak(int64_t steps) {
  return aloft::isa() >= Isa::Amx ? amx(steps) : aloft::isa() >= Isa::Avx512 ? vnni(steps) : avx2(steps);
}
