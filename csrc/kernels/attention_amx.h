// What the two forms of attention through AMX tiles share (attention_amx.cpp says how they work). Internal linkage
// throughout; for *_amx.cpp files only.
#pragma once
#include "kernels/attention_avx512.h"
#include "kernels/lanes_avx512.h"
#include "kernels/tiles.h"

namespace aloft {
namespace {

#include "kernels/attention_rows.inl"

constexpr int64_t kSide = 16;                  // rows of a tile, and its fp32 columns
constexpr int64_t kStep = 32;                  // values of k a product takes: bf16 columns of a left tile
constexpr int64_t kTileWords = kSide * kStep;  // bf16 values of a tile, 1 KiB
constexpr int64_t kTileFloats = kSide * kSide;
constexpr int64_t kTileKeys = 128;
constexpr int64_t kPairRows = 2 * kSide;  // rows handled together in the form for many rows
constexpr float kLazy = 8.f;              // of log2: weights stay below 256
constexpr float kLog2e = 1.44269504088896341f;
constexpr int64_t kAhead = 96;  // tokens fetched before they are used

// 2^y for y <= 127, relative error 1.5e-7 (a minimax polynomial on [0, 1) with 1 at 0); 0 for -inf, NaN stays.
inline V exp2_vector(V y) {
  const V f = _mm512_reduce_ps(y, 0x09);  // y - floor(y)
  V e = set1(1.8671301659196615e-3f);
  e = fma(e, f, set1(9.017029777169228e-3f));
  e = fma(e, f, set1(5.579991266131401e-2f));
  e = fma(e, f, set1(2.4016444385051727e-1f));
  e = fma(e, f, set1(6.931512951850891e-1f));
  e = fma(e, f, set1(1.f));
  return _mm512_scalef_ps(e, y);  // by 2^floor(y)
}

inline V high_part(V x) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}
inline __m512i bf16_pair(V first, V second) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)); }
inline __m512i words(const bf16* p) { return _mm512_loadu_si512(p); }

// e4m3 numbers to bf16, multiplied by a power of two (exact). One a token, or the same for all.
struct Fp8Scale {
  __m512i bias, small;  // what is added to the shifted bits; the numbers without exponent bits, 0 to 7
  explicit Fp8Scale(int exponent) {
    // bf16 of 0 to 7 times 2^-9
    const __m128i table = _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60);
    const int step = exponent * 128;
    bias = _mm512_set1_epi16(static_cast<short>(120 * 128 + step));
    small = _mm512_maskz_add_epi16(0xfe, _mm512_castsi128_si512(table), _mm512_set1_epi16(static_cast<short>(step)));
  }
};
inline __m512i words(const f8* p, const Fp8Scale& scale) {
  const __m512i w = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  const __mmask32 no_exponent = _mm512_testn_epi16_mask(w, _mm512_set1_epi16(0x78));
  const __m512i shifted = _mm512_and_si512(_mm512_slli_epi16(w, 4), _mm512_set1_epi16(0x7f0));
  const __m512i made =
      _mm512_mask_permutexvar_epi16(_mm512_add_epi16(shifted, scale.bias), no_exponent, w, scale.small);
  return _mm512_ternarylogic_epi64(made, w, _mm512_set1_epi16(static_cast<short>(0x8000)), 0xf8);  // made | w & sign
}
inline void widen_row(const f8* from, int64_t n, const Fp8Scale& scale, bf16* to) {
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) _mm512_storeu_si512(to + i, words(from + i, scale));
  if (i < n) {
    f8 last[32] = {};
    memcpy(last, from + i, static_cast<size_t>(n - i));
    const __mmask32 rest = (__mmask32{1} << (n - i)) - 1;
    _mm512_mask_storeu_epi16(to + i, rest, words(last, scale));
  }
}

// The exponents of keys [key, key + n), one a token.
inline void token_exponents(const AttentionProblem& p, const AttentionSequence& s, const int8_t* exponents, int64_t key,
                            int64_t n, int8_t* to) {
  for (int64_t i = 0; i < n;) {
    const int64_t in_block = (key + i) % p.block_size;
    const int64_t run = p.block_size - in_block < n - i ? p.block_size - in_block : n - i;
    memcpy(to + i, exponents + s.blocks[(key + i) / p.block_size] * p.exponent_block + in_block,
           static_cast<size_t>(run));
    i += run;
  }
}

// A token of 8-bit floats as bf16; NaN throughout where its exponent says so.
inline void widen_token(const f8* from, int64_t n, int exponent, bf16* to) {
  if (exponent != -128) return widen_row(from, n, Fp8Scale(exponent), to);
  for (int64_t i = 0; i < n; ++i) to[i].bits = 0x7fc0;
}

// `n` values of a row whose 16-element pieces lie `chunk` apart.
inline void copy_row(const bf16* from, int64_t n, int64_t chunk, bf16* to) {
  if (chunk == 16) {
    memcpy(to, from, static_cast<size_t>(n) * sizeof(bf16));
  } else {
    for (int64_t i = 0; i < n; i += 16)
      memcpy(to + i, from + i / 16 * chunk, static_cast<size_t>(n - i < 16 ? n - i : 16) * sizeof(bf16));
  }
}

// A problem in tiles.
struct Shape {
  int64_t steps, value_steps;  // of 32 values: in a key (rope included), in a value
  bool direct_keys, direct_values;
  explicit Shape(const AttentionProblem& p) {
    const int64_t d = p.d + p.d_rope;
    steps = (d + kStep - 1) / kStep;
    value_steps = (p.d_v + kStep - 1) / kStep;
    direct_keys =
        p.kv == AttentionKv::Same && p.d_rope == 0 && d % kStep == 0 && p.k_chunk == 16 && p.block_size % kSide == 0;
    direct_values = p.d_v % kStep == 0 && p.v_chunk == 16;
  }
};

struct Lies {
  Lie k, rope, v;
  explicit Lies(const AttentionProblem& p)
      : k{p.k_token, p.k_head, p.k_block, p.k_chunk, p.block_size},
        rope{p.k_rope_token, p.k_rope_head, p.k_rope_block, p.k_rope_chunk, p.block_size},
        v{p.v_token, p.v_head, p.v_block, p.v_chunk, p.block_size} {}
};

// Keys [key, key + n) of one head as rows of steps * 32 values, zeros where there is nothing; `rows` of them.
inline void copy_keys(const AttentionProblem& p, const AttentionSequence& s, const Lies& lies, int64_t head,
                      int64_t key, int64_t n, int64_t rows, int64_t steps, bf16* to) {
  const int64_t width = steps * kStep, d = p.d + p.d_rope;
  const bf16* from[kTileKeys];
  if (n > 0) find_rows(s.k, s.blocks, lies.k, head, key, n, from);
  for (int64_t j = 0; j < n; ++j) copy_row(from[j], p.d, p.k_chunk, to + j * width);
  if (p.d_rope) {
    find_rows(s.k_rope, s.blocks, lies.rope, head, key, n, from);
    for (int64_t j = 0; j < n; ++j) copy_row(from[j], p.d_rope, p.k_rope_chunk, to + j * width + p.d);
  }
  if (d < width)
    for (int64_t j = 0; j < n; ++j) memset(to + j * width + d, 0, static_cast<size_t>(width - d) * sizeof(bf16));
  if (n < rows) memset(to + n * width, 0, static_cast<size_t>((rows - n) * width) * sizeof(bf16));
}

// The same of 8-bit floats, as numbers.
inline void copy_keys_fp8(const AttentionProblem& p, const AttentionSequence& s, const Lies& lies, int64_t head,
                          int64_t key, int64_t n, int64_t rows, int64_t steps, bf16* to) {
  const int64_t width = steps * kStep;
  const f8* from[kTileKeys];
  int8_t exponents[kTileKeys];
  find_rows(s.k, s.blocks, lies.k, head, key, n, from);
  token_exponents(p, s, p.k_exponents, key, n, exponents);
  for (int64_t j = 0; j < n; ++j) {
    widen_token(from[j], p.d, exponents[j], to + j * width);
    if (p.d < width) memset(to + j * width + p.d, 0, static_cast<size_t>(width - p.d) * sizeof(bf16));
  }
  if (n < rows) memset(to + n * width, 0, static_cast<size_t>((rows - n) * width) * sizeof(bf16));
}

inline void copy_query(const Rows& rows, int64_t r, bf16* to) {  // `to` is zeroed
  const AttentionProblem& p = rows.p;
  const int64_t token = rows.token(r), head = rows.head(r);
  copy_row(static_cast<const bf16*>(rows.s.q) + token * p.q_token + head * p.q_head, p.d, 16, to);
  if (p.d_rope)
    copy_row(static_cast<const bf16*>(rows.s.q_rope) + token * p.q_rope_token + head * p.q_rope_head, p.d_rope, 16,
             to + p.d);
}

// 16 rows of 32 values, `stride` values apart -> 16 pairs of k x 16 columns, or 16 pairs of columns ... of k: the
// transposition of 32-bit pieces.
inline void transpose_pairs(const bf16* from, int64_t stride, bf16* to) {
  __m512 v[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = _mm512_castsi512_ps(words(from + i * stride));
  transpose16(v);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * kStep, _mm512_castps_si512(v[i]));
}

// 16 x 16, the first m rows of the result.
inline void transpose_sixteen(const float* from, int64_t m, float* to, int64_t stride) {
  __m512 v[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = load(from + i * kSide);
  transpose16(v);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    if (i < m) store(to + i * stride, v[i]);
}

// What has to be done to the scores of a sequence besides the scale and the bounds.
struct Scoring {
  bool plain, masked;
  float unit;  // of a finished score in the unit of log2
  float to_natural;
  Scoring(const AttentionProblem& p, const AttentionSequence& s) {
    plain = p.scale > 0.f && !s.pse && !(p.soft_cap > 0.f);
    masked = s.mask != nullptr;
    to_natural = plain ? p.scale : 1.f;
    unit = to_natural * kLog2e;
  }
};

}  // namespace

// Up to kDotRows rows of each head of a task (attention_decode_amx.cpp).
void attention_few_amx(const AttentionProblem& p, const AttentionTask& t, const AttentionTask* after);

}  // namespace aloft
