// Packing of weights with 512-bit vectors and VBMI; what does not fit goes through quant_pack_impl.h.
#pragma once
#include "kernels/quant_pack_impl.h"

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

namespace aloft::quant_detail {
namespace {

// Signed nibbles + flip, as a table for vpshufb.
template <int kFlip>
inline __m512i nibble_table() {
  alignas(16) int8_t t[16];
  for (int i = 0; i < 16; ++i) t[i] = static_cast<int8_t>((i < 8 ? i : i - 16) + kFlip);
  return _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(t)));
}

// Four lines of 32 bytes -> dwords of four lines, of bytes 16 * half ...
struct Interleave {
  __m512i low, high;
  Interleave() {
    alignas(64) uint8_t t[2][64];
    for (int h = 0; h < 2; ++h) {
      for (int j = 0; j < 16; ++j) {
        for (int r = 0; r < 4; ++r) t[h][4 * j + r] = static_cast<uint8_t>(32 * r + 16 * h + j);
      }
    }
    low = _mm512_load_si512(t[0]), high = _mm512_load_si512(t[1]);
  }
};

inline __m512i two_lines(const uint8_t* first, const uint8_t* second) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first));
  return _mm512_inserti64x4(_mm512_castsi256_si512(a), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second)), 1);
}

// Lines of 32 bytes at `from`, `step` bytes apart: 32 columns of int8.
template <int kFlip>
void interleave_bytes(const uint8_t* from, int64_t step, int64_t length, uint8_t* to, int64_t panel_stride) {
  const Interleave order;
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(kFlip));
  for (int64_t k = 0; k < length; k += 4, from += 4 * step, to += 64) {
    __m512i a, b;
    if (step == 32) {
      a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 64);
    } else {
      a = two_lines(from, from + step), b = two_lines(from + 2 * step, from + 3 * step);
    }
    if (kFlip) a = _mm512_xor_si512(a, flip), b = _mm512_xor_si512(b, flip);
    _mm512_storeu_si512(to, _mm512_permutex2var_epi8(a, order.low, b));
    _mm512_storeu_si512(to + panel_stride, _mm512_permutex2var_epi8(a, order.high, b));
  }
}

// The same of int4: 64 columns, four panels.
template <int kFlip>
void interleave_nibbles(const uint8_t* from, int64_t step, int64_t length, uint8_t* to, int64_t panel_stride) {
  const Interleave order;
  const __m512i table = nibble_table<kFlip>(), mask = _mm512_set1_epi8(15);
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  for (int64_t k = 0; k < length; k += 4, from += 4 * step, to += 64) {
    __m512i a, b;
    if (step == 32) {
      a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 64);
    } else {
      a = two_lines(from, from + step), b = two_lines(from + 2 * step, from + 3 * step);
    }
    for (int h = 0; h < 2; ++h) {
      const __m512i pairs = _mm512_permutex2var_epi8(a, h ? order.high : order.low, b);
      const __m512i even = _mm512_shuffle_epi8(table, _mm512_and_si512(pairs, mask));
      const __m512i odd = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(pairs, 4), mask));
      _mm512_storeu_si512(to + (2 * h) * panel_stride, _mm512_permutex2var_epi32(even, first, odd));
      _mm512_storeu_si512(to + (2 * h + 1) * panel_stride, _mm512_permutex2var_epi32(even, second, odd));
    }
  }
}

inline void transpose_dwords(__m512i* r) {
  __m512i b[16];
#pragma GCC unroll 4
  for (int g = 0; g < 4; ++g) {
    const __m512i a0 = _mm512_unpacklo_epi32(r[4 * g], r[4 * g + 1]);
    const __m512i a1 = _mm512_unpackhi_epi32(r[4 * g], r[4 * g + 1]);
    const __m512i a2 = _mm512_unpacklo_epi32(r[4 * g + 2], r[4 * g + 3]);
    const __m512i a3 = _mm512_unpackhi_epi32(r[4 * g + 2], r[4 * g + 3]);
    b[4 * g] = _mm512_unpacklo_epi64(a0, a2), b[4 * g + 1] = _mm512_unpackhi_epi64(a0, a2);
    b[4 * g + 2] = _mm512_unpacklo_epi64(a1, a3), b[4 * g + 3] = _mm512_unpackhi_epi64(a1, a3);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i p0 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88), p1 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
    const __m512i q0 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd), q1 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
    r[c] = _mm512_shuffle_i32x4(p0, p1, 0x88), r[8 + c] = _mm512_shuffle_i32x4(p0, p1, 0xdd);
    r[4 + c] = _mm512_shuffle_i32x4(q0, q1, 0x88), r[12 + c] = _mm512_shuffle_i32x4(q0, q1, 0xdd);
  }
}

// 64 values of k (of which `count` exist) of one column.
template <int kBits, int kFlip>
inline __m512i column64(const QuantWeight& w, int64_t n, int64_t k, int64_t count, __m512i table) {
  const bool panels = w.layout == QuantLayout::PanelsRows;
  const uint8_t* from = run_at<kBits>(w, panels, n, k);
  if (kBits == 8) {
    __m512i v;
    if (panels && w.line == 32) {
      v = two_lines(from, from + (count > 32 ? w.stride * 32 : 0));
    } else {
      v = count >= 64 ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi8((uint64_t{1} << count) - 1, from);
    }
    return kFlip ? _mm512_xor_si512(v, _mm512_set1_epi8(static_cast<char>(kFlip))) : v;
  }
  const __m256i bytes = count >= 64 || panels ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))
                                              : _mm256_maskz_loadu_epi8(
                                                    static_cast<uint32_t>((uint64_t{1} << (count + 1) / 2) - 1), from);
  const __m512i words = _mm512_cvtepu8_epi16(bytes);
  const __m512i nibbles = _mm512_and_si512(_mm512_or_si512(words, _mm512_slli_epi16(words, 4)), _mm512_set1_epi8(15));
  return _mm512_shuffle_epi8(table, nibbles);
}

template <int kBits, int kFlip>
void transpose_columns(const QuantWeight& w, int64_t n, int64_t n0, int64_t k0, int64_t length, uint8_t* to) {
  const __m512i table = nibble_table<kFlip>();
  for (int64_t k = 0; k < length; k += 64) {
    __m512i r[16];
    const int64_t count = length - k;
    if (n0 + 16 <= n) {
#pragma GCC unroll 16
      for (int j = 0; j < 16; ++j) r[j] = column64<kBits, kFlip>(w, n0 + j, k0 + k, count, table);
    } else {
      for (int j = 0; j < 16; ++j) {
        r[j] = n0 + j < n ? column64<kBits, kFlip>(w, n0 + j, k0 + k, count, table) : _mm512_setzero_si512();
      }
    }
    transpose_dwords(r);
    if (count >= 64) {
#pragma GCC unroll 16
      for (int j = 0; j < 16; ++j) _mm512_storeu_si512(to + k * 16 + j * 64, r[j]);
    } else {
      for (int j = 0; j < (count + 3) / 4; ++j) _mm512_storeu_si512(to + k * 16 + j * 64, r[j]);
    }
  }
}

// Values beyond `length` of a run come out arbitrary where activations are zero (the end of k), which kAlign 4 allows.
template <int kFlip, int kAlign>
void pack512(const QuantWeight& w, int64_t n, int64_t n0, int panels, int64_t k0, int64_t length, uint8_t* to,
             int64_t panel_stride) {
  const int64_t whole = (length + kAlign - 1) / kAlign * kAlign, filled = (length + 3) / 4 * 4;
  const bool along_n = w.layout == QuantLayout::Panels || w.layout == QuantLayout::Cols;
  const int wide = w.bits == 4 ? 4 : 2;
  for (int p = 0; p < panels;) {
    const int64_t column = n0 + p * kColumns;
    uint8_t* out = to + p * panel_stride;
    if (!along_n) {
      if (w.layout == QuantLayout::PanelsRows &&
          (length % 64 || (w.bits == 8 && k0 % 32) || (w.bits == 4 && k0 % 64))) {
        pack_panels<kFlip, 4>(w, n, column, 1, k0, length, out, panel_stride);
      } else {
        w.bits == 8 ? transpose_columns<8, kFlip>(w, n, column, k0, length, out)
                    : transpose_columns<4, kFlip>(w, n, column, k0, length, out);
      }
      ++p;
      continue;
    }
    const bool in_panels = w.layout == QuantLayout::Panels;
    // Lines of k beyond the last are there in panels (16 at a time) but not in plain rows.
    if (panels - p >= wide && (in_panels || (column + wide * kColumns <= n && length % 4 == 0))) {
      const uint8_t* from = w.bits == 8 ? run_at<8>(w, in_panels, k0, column) : run_at<4>(w, in_panels, k0, column);
      const int64_t step = in_panels ? w.line : w.stride;
      w.bits == 8 ? interleave_bytes<kFlip>(from, step, length, out, panel_stride)
                  : interleave_nibbles<kFlip>(from, step, length, out, panel_stride);
      p += wide;
    } else {
      pack_panels<kFlip, 4>(w, n, column, 1, k0, length, out, panel_stride);
      ++p;
    }
  }
  if (kAlign > 4 && whole > filled) {
    for (int p = 0; p < panels; ++p) {
      std::memset(to + p * panel_stride + filled * kColumns, 0, static_cast<size_t>((whole - filled) * kColumns));
    }
  }
}

}  // namespace
}  // namespace aloft::quant_detail
