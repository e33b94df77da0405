// Blocking: tiles of up to 11 rows x 2 panels of 16 columns, or of up to 5 rows x 4, a register of sums for each row
// and panel: 20 to 22 independent chains, more than the two units with their latency of four need, and registers left
// for the weights. Rows are split into tiles of about equal height. A line of 64 bytes is one register, four values of
// k of 16 columns, a value in each byte of a lane; each byte in turn becomes a float by a shift up, an arithmetic shift
// down and a conversion, once for all rows of the tile, whose values are broadcast from memory. Every element is one
// chain over k, front to back (quant_widen.h). One row (`direct`): 64 columns as they lie in FRACTAL_NZ, kAhead fetched
// in front. int8: 16 bytes are widened at a time. int4: nibbles are looked up in a register of the 16 floats, even and
// odd columns in sums of their own, which are zipped at the end.
#include <immintrin.h>

#include "kernels/quant_widen_impl.h"

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace aloft::quant_detail {
namespace {

template <int kByte>
inline __m512 byte_of(__m512i line) {
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(kByte == 3 ? line : _mm512_slli_epi32(line, 24 - 8 * kByte), 24));
}

template <int Rows, int Panels, int kByte>
inline __attribute__((always_inline)) void step(const float* a, int64_t a_stride, const __m512i* line,
                                                __m512 (*sum)[Panels]) {
  __m512 w[Panels];
#pragma GCC unroll 8
  for (int p = 0; p < Panels; ++p) w[p] = byte_of<kByte>(line[p]);
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
    const __m512 x = _mm512_set1_ps(a[r * a_stride + kByte]);
#pragma GCC unroll 8
    for (int p = 0; p < Panels; ++p) sum[r][p] = _mm512_fmadd_ps(x, w[p], sum[r][p]);
  }
}

template <int Rows, int Panels>
void micro(const float* a, int64_t a_stride, const uint8_t* b, int64_t panel_stride, int64_t length, float* acc,
           int64_t acc_stride, bool fresh) {
  __m512 sum[Rows][Panels];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < Panels; ++p) {
      sum[r][p] = fresh ? _mm512_setzero_ps() : _mm512_loadu_ps(acc + r * acc_stride + p * kColumns);
    }
  }
  for (int64_t k = 0; k < length; k += 4, a += 4, b += 64) {
    __m512i line[Panels];
#pragma GCC unroll 8
    for (int p = 0; p < Panels; ++p) line[p] = _mm512_loadu_si512(b + p * panel_stride);
    step<Rows, Panels, 0>(a, a_stride, line, sum);
    step<Rows, Panels, 1>(a, a_stride, line, sum);
    step<Rows, Panels, 2>(a, a_stride, line, sum);
    step<Rows, Panels, 3>(a, a_stride, line, sum);
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < Panels; ++p) _mm512_storeu_ps(acc + r * acc_stride + p * kColumns, sum[r][p]);
  }
}

using Micro = void (*)(const float*, int64_t, const uint8_t*, int64_t, int64_t, float*, int64_t, bool);

template <int Panels>
Micro pick(int64_t rows) {
  switch (rows) {
    case 1:
      return micro<1, Panels>;
    case 2:
      return micro<2, Panels>;
    case 3:
      return micro<3, Panels>;
    case 4:
      return micro<4, Panels>;
    case 5:
      return micro<5, Panels>;
    default:
      break;
  }
  if constexpr (Panels <= 2) {
    switch (rows) {
      case 6:
        return micro<6, Panels>;
      case 7:
        return micro<7, Panels>;
      case 8:
        return micro<8, Panels>;
      case 9:
        return micro<9, Panels>;
      case 10:
        return micro<10, Panels>;
      default:
        return micro<11, Panels>;
    }
  }
  return nullptr;
}

void multiply(const float* a, int64_t a_stride, int64_t rows, const uint8_t* b, int64_t panel_stride, int panels,
              int64_t length, float* acc, int64_t acc_stride, bool fresh) {
  const int64_t tallest = 11, tiles = (rows + tallest - 1) / tallest, shortest = rows / tiles, taller = rows % tiles;
  for (int p = 0; p < panels;) {
    const int width = panels - p >= 4 && shortest + (taller > 0) <= 5 ? 4 : panels - p >= 2 ? 2 : 1;
    for (int64_t t = 0, r = 0; t < tiles; ++t) {
      const int64_t height = shortest + (t < taller);
      const Micro micro_of = width == 4 ? pick<4>(height) : width == 2 ? pick<2>(height) : pick<1>(height);
      micro_of(a + r * a_stride, a_stride, b + p * panel_stride, panel_stride, length,
               acc + r * acc_stride + p * kColumns, acc_stride, fresh);
      r += height;
    }
    p += width;
  }
}

constexpr int64_t kAhead = 2048;  // bytes fetched before they are wanted: across pages, where hardware stops

inline __m128i sixteen(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

void direct_bytes(const uint8_t* first, const uint8_t* second, int64_t length, const float* a, float* acc) {
  __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
#pragma GCC unroll 2
  for (int64_t k = 0; k < length; ++k, first += 32, second += 32) {
    if (k % 2 == 0) {
      _mm_prefetch(reinterpret_cast<const char*>(first) + kAhead, _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(second) + kAhead, _MM_HINT_T0);
    }
    const __m512 x = _mm512_set1_ps(a[k]);
    const uint8_t* from[4] = {first, first + 16, second, second + 16};
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
      sum[p] = _mm512_fmadd_ps(x, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen(from[p]))), sum[p]);
    }
  }
  for (int p = 0; p < 4; ++p) _mm512_storeu_ps(acc + 16 * p, sum[p]);
}

// Nibbles choose their floats from a table; even and odd columns are summed apart.
void direct_nibbles(const uint8_t* from, int64_t length, const float* a, float* acc) {
  const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
  __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
#pragma GCC unroll 2
  for (int64_t k = 0; k < length; ++k, from += 32) {
    if (k % 2 == 0) _mm_prefetch(reinterpret_cast<const char*>(from) + kAhead, _MM_HINT_T0);
    const __m512 x = _mm512_set1_ps(a[k]);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m512i pairs = _mm512_cvtepu8_epi32(sixteen(from + 16 * h));  // the index is the lower four bits
      sum[2 * h] = _mm512_fmadd_ps(x, _mm512_permutexvar_ps(pairs, table), sum[2 * h]);
      sum[2 * h + 1] = _mm512_fmadd_ps(x, _mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), table), sum[2 * h + 1]);
    }
  }
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  for (int h = 0; h < 2; ++h) {
    _mm512_storeu_ps(acc + 32 * h, _mm512_permutex2var_ps(sum[2 * h], first, sum[2 * h + 1]));
    _mm512_storeu_ps(acc + 32 * h + 16, _mm512_permutex2var_ps(sum[2 * h], second, sum[2 * h + 1]));
  }
}

void direct(const QuantWeight& w, int64_t n0, int64_t k0, int64_t length, const float* a, float* acc) {
  const auto panel = [&](int64_t index) { return w.data + (index * w.stride + k0) * 32; };
  if (w.bits == 4) return direct_nibbles(panel(n0 / 64), length, a, acc);
  direct_bytes(panel(n0 / 32), panel(n0 / 32 + 1), length, a, acc);
}

}  // namespace

WidenTiles widen_tiles_avx512() { return {multiply, direct}; }

}  // namespace aloft::quant_detail
