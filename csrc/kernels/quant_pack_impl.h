// Packing of weights into panels (quant_isa.h) with 128-bit vectors, for the instruction sets that have AVX2.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "kernels/quant_isa.h"

namespace aloft::quant_detail {
namespace {

// Sixteen values from packed memory, + flip. `count` of them exist.
template <int kBits, int kFlip>
inline __m128i load16(const uint8_t* p, int64_t count) {
  if (kBits == 8) {
    __m128i v;
    if (count >= 16) {
      v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    } else {
      uint8_t part[16] = {};
      std::memcpy(part, p, static_cast<size_t>(count));
      v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(part));
    }
    return kFlip ? _mm_xor_si128(v, _mm_set1_epi8(-128)) : v;
  }
  uint8_t part[8] = {};
  std::memcpy(part, p, count >= 16 ? 8 : static_cast<size_t>((count + 1) / 2));
  const __m128i words = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(part)));
  const __m128i nibbles = _mm_and_si128(_mm_or_si128(words, _mm_slli_epi16(words, 4)), _mm_set1_epi8(15));
  const __m128i shifted = _mm_xor_si128(nibbles, _mm_set1_epi8(8));  // value + 8
  return kFlip == 8 ? shifted : _mm_add_epi8(shifted, _mm_set1_epi8(static_cast<char>(kFlip - 8)));
}

// Where the run beginning at (line, position) lies; positions of one run stay in one panel line.
template <int kBits>
inline const uint8_t* run_at(const QuantWeight& w, bool panels, int64_t line, int64_t position) {
  const int64_t byte = kBits == 8 ? position : position / 2;
  if (!panels) return w.data + line * w.stride + byte;
  return w.data + (byte / w.line * w.stride + line) * w.line + byte % w.line;
}

template <int kBits, int kFlip>
void pack_along_k(const QuantWeight& w, int64_t n, int64_t n0, int64_t k0, int64_t length, uint8_t* to) {
  const bool panels = w.layout == QuantLayout::PanelsRows;
  for (int64_t i = 0; i < length; i += 16) {
    const int64_t count = length - i;
    for (int64_t j = 0; j < kColumns; j += 4) {
      __m128i v[4];
      for (int64_t c = 0; c < 4; ++c) {
        v[c] = n0 + j + c < n ? load16<kBits, kFlip>(run_at<kBits>(w, panels, n0 + j + c, k0 + i), count)
                              : _mm_setzero_si128();
      }
      const __m128i a = _mm_unpacklo_epi32(v[0], v[1]), b = _mm_unpacklo_epi32(v[2], v[3]);
      const __m128i c = _mm_unpackhi_epi32(v[0], v[1]), d = _mm_unpackhi_epi32(v[2], v[3]);
      __m128i* out = reinterpret_cast<__m128i*>(to + i * kColumns + j * 4);
      _mm_storeu_si128(out, _mm_unpacklo_epi64(a, b));
      if (count > 4) _mm_storeu_si128(out + 4, _mm_unpackhi_epi64(a, b));
      if (count > 8) _mm_storeu_si128(out + 8, _mm_unpacklo_epi64(c, d));
      if (count > 12) _mm_storeu_si128(out + 12, _mm_unpackhi_epi64(c, d));
    }
  }
}

template <int kBits, int kFlip>
void pack_along_n(const QuantWeight& w, int64_t n, int64_t n0, int64_t k0, int64_t length, uint8_t* to) {
  const bool panels = w.layout == QuantLayout::Panels;
  const int64_t count = panels ? 16 : n - n0;  // the lines of a panel are whole
  for (int64_t i = 0; i < length; i += 4) {
    __m128i v[4];
    for (int64_t r = 0; r < 4; ++r) {
      v[r] =
          i + r < length ? load16<kBits, kFlip>(run_at<kBits>(w, panels, k0 + i + r, n0), count) : _mm_setzero_si128();
    }
    const __m128i a = _mm_unpacklo_epi8(v[0], v[1]), b = _mm_unpacklo_epi8(v[2], v[3]);
    const __m128i c = _mm_unpackhi_epi8(v[0], v[1]), d = _mm_unpackhi_epi8(v[2], v[3]);
    __m128i* out = reinterpret_cast<__m128i*>(to + i * kColumns);
    _mm_storeu_si128(out, _mm_unpacklo_epi16(a, b));
    _mm_storeu_si128(out + 1, _mm_unpackhi_epi16(a, b));
    _mm_storeu_si128(out + 2, _mm_unpacklo_epi16(c, d));
    _mm_storeu_si128(out + 3, _mm_unpackhi_epi16(c, d));
  }
}

template <int kFlip, int kAlign>
void pack_panels(const QuantWeight& w, int64_t n, int64_t n0, int panels, int64_t k0, int64_t length, uint8_t* to,
                 int64_t panel_stride) {
  const bool along_k = w.layout == QuantLayout::Rows || w.layout == QuantLayout::PanelsRows;
  for (int p = 0; p < panels; ++p, n0 += kColumns, to += panel_stride) {
    if (along_k) {
      w.bits == 8 ? pack_along_k<8, kFlip>(w, n, n0, k0, length, to) : pack_along_k<4, kFlip>(w, n, n0, k0, length, to);
    } else {
      w.bits == 8 ? pack_along_n<8, kFlip>(w, n, n0, k0, length, to) : pack_along_n<4, kFlip>(w, n, n0, k0, length, to);
    }
    if (kAlign > 4) {
      const int64_t filled = (length + 3) / 4 * 4, whole = (length + kAlign - 1) / kAlign * kAlign;
      std::memset(to + filled * kColumns, 0, static_cast<size_t>((whole - filled) * kColumns));
    }
  }
}

}  // namespace
}  // namespace aloft::quant_detail
