// AVX-512: one register is a row of a panel. bf16 weights widen by one zero-extending load and a shift. vdpbf16ps is
// not used: it adds the products of a pair in an order of its own, so a row's result would depend on the path.
#include "kernels/compact_avx512.h"
#include "kernels/lanes_avx512.h"
#include "kernels/matmul_isa.h"

namespace aloft::matmul_detail {
namespace {

using Reg = __m512;
constexpr int kRegs = 1, kMaxRows = 6;
constexpr bool fits(int rows, int panels) { return rows * panels <= 12; }
struct Row {
  Reg v[kRegs];
};

inline Reg zero() { return _mm512_setzero_ps(); }
inline Reg broadcast(const float* p) { return _mm512_set1_ps(*p); }
inline Reg add(Reg x, Reg y) { return _mm512_add_ps(x, y); }
inline Reg fmadd(Reg x, Reg y, Reg sum) { return _mm512_fmadd_ps(x, y, sum); }
inline Row zero_row() { return {{zero()}}; }
inline Row load_row(const float* p) { return {{_mm512_loadu_ps(p)}}; }
inline void store_row(float* p, Row row) { _mm512_storeu_ps(p, row.v[0]); }

inline __m512 load16(const float* p) { return _mm512_loadu_ps(p); }
inline __m512 load16(const f16* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
inline __m512 load16(const bf16* p) {
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}

template <class T>
struct Weights {
  static inline Row load(const T* p) { return {{load16(p)}}; }
  static inline Row to_kernel(Row v) { return v; }
  static inline Row to_memory(Row v) { return v; }
};

template <class T>
void transpose_block(const T* from, int64_t n_stride, float* to) {  // 16 values of k
  __m512 v[16];
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j) v[j] = load16(from + j * n_stride);
  transpose16(v);
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j) _mm512_storeu_ps(to + j * kPanel, v[j]);
}

// k values 0 .. of 16 rows into to[k * 16 + row]; returns where it stopped.
template <class T>
int64_t transpose_panel(const T* from, int64_t n_stride, int64_t k, float* to) {
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) transpose_block(from + i, n_stride, to + i * kPanel);
  return i;
}

// Pairs of bf16 values travel as one 32-bit lane: half the shuffles.
int64_t transpose_panel(const bf16* from, int64_t n_stride, int64_t k, float* to) {
  const __m512i upper = _mm512_set1_epi32(0xffff0000);
  int64_t i = 0;
  for (; i + 32 <= k; i += 32) {
    __m512 v[16];
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) {
      const bf16* p = from + j * n_stride + i;
      _mm_prefetch(reinterpret_cast<const char*>(p) + 256, _MM_HINT_T0);
      v[j] = _mm512_loadu_ps(reinterpret_cast<const float*>(p));
    }
    transpose16(v);
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) {
      const __m512i pair = _mm512_castps_si512(v[j]);
      _mm512_storeu_si512(to + (i + 2 * j) * kPanel, _mm512_slli_epi32(pair, 16));
      _mm512_storeu_si512(to + (i + 2 * j + 1) * kPanel, _mm512_and_si512(pair, upper));
    }
  }
  // The panels of a transposed NZ weight are 16 wide.
  for (; i + 16 <= k; i += 16) transpose_block(from + i, n_stride, to + i * kPanel);
  return i;
}

inline void narrow16(const float* from, float* to) { _mm512_storeu_ps(to, _mm512_loadu_ps(from)); }
inline void narrow16(const float* from, f16* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(_mm512_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT));
}
inline void narrow16(const float* from, bf16* to) {
  const __m512 v = _mm512_loadu_ps(from);
  const __m512i u = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i words = _mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(words));
}

// Compact weights: every 32-bit lane of a line is an even and an odd k.
inline __m512 even_of(__m512i line) { return _mm512_castsi512_ps(_mm512_slli_epi32(line, 16)); }
inline __m512 odd_of(__m512i line) {
  return _mm512_castsi512_ps(_mm512_and_si512(line, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

template <int Rows, int Panels>
void compact_tile(const CompactTile& t) {
  constexpr int64_t kUnitsAhead = 2;
  const compact::Weights& w = *t.weights;
  const __m512i table = compact::table_of(w);
  __m512 sum[Rows][Panels];
  for (auto& row : sum) {
    for (__m512& v : row) v = zero();
  }
  const float* a = t.a;
  const int64_t a_row = t.a_row;
  for (int64_t s = 0; s < w.steps; ++s, a += kStep) {
#pragma GCC unroll 2
    for (int p = 0; p < Panels; ++p) {
      const int64_t index = w.index(t.panel[p], s), ahead = s + kUnitsAhead;
      const unsigned char* later = w.unit(ahead < w.steps ? index + kUnitsAhead : w.index(t.later[p], ahead - w.steps));
      __m512 even[Rows], odd[Rows];
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) even[r] = odd[r] = zero();
      const auto add_line = [&](int i, __m512i line) {
        const __m512 x = even_of(line), y = odd_of(line);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
          even[r] = _mm512_fmadd_ps(_mm512_set1_ps(a[r * a_row + 2 * i]), x, even[r]);
          odd[r] = _mm512_fmadd_ps(_mm512_set1_ps(a[r * a_row + 2 * i + 1]), y, odd[r]);
        }
      };
      if (__builtin_expect(!w.has_exceptions(index), 1)) {
        compact::each_line(w.unit(index), table, later, add_line);
      } else {
        alignas(64) bf16 lines[compact::kValues];
        compact::lines_of(w.unit(index), table, later, lines);
        w.mend(index, lines);
        for (int i = 0; i < compact::kLines; ++i) add_line(i, _mm512_load_si512(lines + i * 32));
      }
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) sum[r][p] = _mm512_add_ps(sum[r][p], _mm512_add_ps(even[r], odd[r]));
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int p = 0; p < Panels; ++p) _mm512_storeu_ps(t.sums + r * kPair + p * kPanel, sum[r][p]);
  }
}

template <int Rows>
CompactMicro pick_compact(int rows, int panels) {
  if constexpr (Rows > kMaxRows) {
    return nullptr;
  } else {
    if (rows != Rows) return pick_compact<Rows + 1>(rows, panels);
    return panels == 1 ? compact_tile<Rows, 1> : compact_tile<Rows, 2>;
  }
}

void widen_unit_avx512(const compact::Weights& from, int64_t index, float* to) {
  alignas(64) bf16 lines[compact::kValues];
  compact::lines_of(from.unit(index), compact::table_of(from), from.unit(index) + compact::kUnitBytes, lines);
  from.mend(index, lines);
  for (int i = 0; i < compact::kLines; ++i) {
    const __m512i line = _mm512_load_si512(lines + i * 32);
    _mm512_storeu_ps(to + 2 * i * kPanel, even_of(line));
    _mm512_storeu_ps(to + (2 * i + 1) * kPanel, odd_of(line));
  }
}

constexpr CompactMicro (*kCompactMicro)(int, int) = pick_compact<1>;
constexpr void (*kWidenUnit)(const compact::Weights&, int64_t, float*) = widen_unit_avx512;

}  // namespace
}  // namespace aloft::matmul_detail

#include "kernels/matmul_vector.h"

namespace aloft::matmul_detail {
const Kernels& avx512_kernels() { return kKernels; }
}  // namespace aloft::matmul_detail
