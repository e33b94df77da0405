// Attention of bf16 operands through AMX tiles (kernels/tiles.h); everything else goes to the AVX-512 form.
//
// Scores are computed transposed, keys x rows: a tile of keys is read as it lies in the cache (16 keys x 32 values),
// the rows' queries are brought into the order of a right operand once. Weights keep fp32's accuracy: each is the sum
// of two bf16 values, high and low, which are multiplied with the values separately (hence two products where hardware
// that rounds its weights needs one).
//
// Few rows (decode: up to kDotRows rows of a head, at most kSplitKeys keys a task): all scores first, one softmax with
// keys in the lanes, then weights (high rows above low rows in one left tile) x values. Pairs of value rows are
// interleaved on the way (unpack), which permutes the columns until the end. All heads of a token are read before the
// next token: the cache is one stream of keys, then one of values, fetched kAhead tokens before it is used.
//
// Many rows: blocks of rows x kTileKeys keys. Scores, weights and the output stay transposed, so that a lane is a row
// and nothing is summed across lanes; the values are transposed once for all rows of the block. A row's reference for
// exp moves only when its maximum has grown by kLazy, which leaves most tiles without a pass over the output. Lanes
// never mix and keys are cut at multiples of kTileKeys: a row's bits do not depend on the rows beside it.
#include "kernels/attention_amx.h"

namespace aloft {
namespace {

// ---- many rows -------------------------------------------------------------------------------------------------

struct Block {                     // what is kept of the rows
  float *reference, *top, *total;  // of each row; the first two in units of Scoring
  int32_t *low, *high;             // first and last visible key
};

// The column of 16 rows whose scores lie at s (a row of scores for each key, 32 apart): weights of `keys` keys.
inline void many_weights(const Block& block, int64_t column, const Scoring& scoring, int64_t key, int64_t keys,
                         bool bounded, float* s, bf16* weights, float* out, int64_t out_tiles) {
  const int64_t lane = column * kSide;
  V top = set1(kMinusInf), top2 = top;
  if (bounded) {
    const __m512i low = _mm512_loadu_si512(block.low + lane), high = _mm512_loadu_si512(block.high + lane);
    __m512i at = _mm512_set1_epi32(static_cast<int>(key));
    for (int64_t j = 0; j < keys; ++j) {
      const __mmask16 seen = _mm512_mask_cmple_epi32_mask(_mm512_cmple_epi32_mask(low, at), at, high);
      const V x = _mm512_mask_mov_ps(set1(kMinusInf), seen, load(s + j * kPairRows));
      store(s + j * kPairRows, x);
      top = maximum(top, x);
      at = _mm512_add_epi32(at, _mm512_set1_epi32(1));
    }
  } else {
    for (int64_t j = 0; j < keys; j += 2) {
      top = maximum(top, load(s + j * kPairRows));
      top2 = maximum(top2, load(s + (j + 1) * kPairRows));
    }
    top = maximum(top, top2);
  }
  const V unit = set1(scoring.unit), before = load(block.reference + lane);
  const __mmask16 grown = _mm512_cmp_ps_mask(top, add(before, set1(kLazy / scoring.unit)), _CMP_GT_OQ);
  const V reference = _mm512_mask_mov_ps(before, grown, top);
  V total = load(block.total + lane);
  store(block.top + lane, maximum(load(block.top + lane), top));
  if (grown) {
    const V alpha = _mm512_mask_mov_ps(set1(1.f), grown, exp2_vector(mul(sub(before, reference), unit)));
    total = mul(total, alpha);
    store(block.reference + lane, reference);
    for (int64_t i = 0; i < out_tiles; ++i)
      for (int64_t k = 0; k < kSide; ++k) {
        float* value = out + i * 2 * kTileFloats + k * kSide;
        store(value, mul(load(value), alpha));
      }
  }
  const V safe = pick_ge(reference, set1(-3.402823466e38f), reference, set1(0.f)),
          zero = mul(safe, set1(-scoring.unit));
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000)), half = _mm512_set1_epi32(0x8000);
  V total2 = set1(0.f);
  for (int64_t j = 0; j < keys; j += 2) {
    const V a = exp2_vector(fma(load(s + j * kPairRows), unit, zero));
    const V b = exp2_vector(fma(load(s + (j + 1) * kPairRows), unit, zero));
    total = add(total, a);
    total2 = add(total2, b);
    const V ah = high_part(a), bh = high_part(b);
    const __m512i al = _mm512_add_epi32(_mm512_castps_si512(sub(a, ah)), half);
    const __m512i bl = _mm512_add_epi32(_mm512_castps_si512(sub(b, bh)), half);
    bf16* to = weights + j / 2 * kStep + j / kStep * (3 * kTileWords);  // tiles: column 0 high, low, column 1 high, low
    _mm512_store_si512(to, _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(ah), 16), _mm512_castps_si512(bh)));
    _mm512_store_si512(to + kTileWords, _mm512_or_si512(_mm512_srli_epi32(al, 16), _mm512_and_si512(bl, upper)));
  }
  store(block.total + lane, add(total, total2));
}

// Transposed scores that are not plain: scale, bias and cap; and the mask.
inline void many_extras(const Rows& rows, const Scoring& scoring, int64_t row0, int64_t key, int64_t keys, float* s) {
  const AttentionProblem& p = rows.p;
  const int64_t n = rows.s.kv_len - key < keys ? rows.s.kv_len - key : keys;
  const int64_t count = rows.count - row0 < kPairRows ? rows.count - row0 : kPairRows;
  if (!scoring.plain) {
    for (int64_t i = 0; i < keys * kPairRows; i += W) store(s + i, mul(load(s + i), set1(p.scale)));
    for (int64_t r = 0; rows.s.pse && r < count; ++r)
      for (int64_t j = 0; j < n; ++j)
        s[j * kPairRows + r] += pse_at(p, rows.s, rows.head(row0 + r), rows.token(row0 + r), key + j);
    if (p.soft_cap > 0.f)
      for (int64_t i = 0; i < keys * kPairRows; i += W)
        store(s + i, soft_cap_vector(load(s + i), set1(p.soft_cap), set1(1.f / p.soft_cap)));
  }
  for (int64_t r = 0; scoring.masked && r < count; ++r) {
    const uint8_t* mask = rows.s.mask + rows.head(row0 + r) * p.mask_head + rows.token(row0 + r) * p.mask_token + key;
    for (int64_t j = 0; j < n; ++j)
      if (mask[j]) s[j * kPairRows + r] = kMinusInf;
  }
}

// Values [key, key + n) of one head as rows of `width` bf16 numbers.
inline void widen_values(const AttentionProblem& p, const AttentionSequence& s, const Lies& lies, int64_t head,
                         int64_t key, int64_t n, int64_t width, bf16* to, const bf16** rows) {
  const f8* from[kTileKeys];
  int8_t exponents[kTileKeys];
  find_rows(s.v, s.blocks, lies.v, head, key, n, from);
  token_exponents(p, s, p.v_exponents, key, n, exponents);
  for (int64_t j = 0; j < n; ++j) {
    rows[j] = to + j * width;
    widen_token(from[j], p.d_v, exponents[j], to + j * width);
    if (p.d_v < width) memset(to + j * width + p.d_v, 0, static_cast<size_t>(width - p.d_v) * sizeof(bf16));
  }
}

// Values [key, key + n) of one head, transposed: tiles of 16 values x 32 keys, keys of one value tile together.
inline void transpose_values(const AttentionProblem& p, const AttentionSequence& s, const Lies& lies,
                             const Shape& shape, int64_t head, int64_t key, int64_t n, bf16* wide, bf16* to) {
  const bf16* from[kTileKeys];
  const bool fp8 = p.kv == AttentionKv::Fp8;
  if (fp8)
    widen_values(p, s, lies, head, key, n, shape.value_steps * kStep, wide, from);
  else
    find_rows(s.v, s.blocks, lies.v, head, key, n, from);
  const int64_t groups = (n + kStep - 1) / kStep;
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t c = 0; c < shape.value_steps; ++c) {
      __m512 first[16], second[16];
      const bool whole = (fp8 || shape.direct_values) && n >= (g + 1) * kStep;
      const int64_t width = p.d_v - c * kStep < kStep ? p.d_v - c * kStep : kStep;
      for (int64_t i = 0; i < kSide; ++i) {
        __m512i a, b;
        if (whole) {
          a = words(from[g * kStep + 2 * i] + c * kStep), b = words(from[g * kStep + 2 * i + 1] + c * kStep);
        } else {
          alignas(64) bf16 both[2][kStep] = {};
          for (int64_t e = 0; e < 2; ++e) {
            const int64_t j = g * kStep + 2 * i + e;
            if (j < n) copy_row(from[j] + c * kStep / 16 * p.v_chunk, width, p.v_chunk, both[e]);
          }
          a = words(both[0]), b = words(both[1]);
        }
        first[i] = _mm512_castsi512_ps(_mm512_unpacklo_epi16(a, b));
        second[i] = _mm512_castsi512_ps(_mm512_unpackhi_epi16(a, b));
      }
      transpose16(first);
      transpose16(second);
      // Lane i of `first` was column 8 (i / 4) + i % 4, of `second` four more.
      for (int64_t i = 0; i < kSide; ++i) {
        const int64_t column = i / 4 * 8 + i % 4;
        const auto place = [&](int64_t at) {
          return to + ((2 * c + at / kSide) * (kTileKeys / kStep) + g) * kTileWords + at % kSide * kStep;
        };
        _mm512_store_si512(place(column), _mm512_castps_si512(first[i]));
        _mm512_store_si512(place(column + 4), _mm512_castps_si512(second[i]));
      }
    }
}

void run_many(const AttentionProblem& p, const AttentionTask& t, Scratch& scratch) {
  const Rows rows(p, t, t.kv_head);
  const AttentionSequence& s = rows.s;
  const Shape shape(p);
  const Lies lies(p);
  const Scoring scoring(p, s);
  const int64_t pairs = (rows.count + kPairRows - 1) / kPairRows, lanes = pairs * kPairRows;
  const int64_t steps = shape.steps, out_tiles = 2 * shape.value_steps, width = steps * kStep;
  const int64_t out_size = out_tiles * 2 * kTileFloats;  // of a pair: tiles of 16 values x 16 rows, two columns
  float* scores = scratch.get(kTileKeys * kPairRows * 2 + lanes * (width / 2 + 5) + kTileKeys * (width / 2) +
                              kTileKeys * (shape.value_steps * kStep / 2) * 2 + pairs * out_size + kSide * width +
                              kSide * shape.value_steps * kStep);
  bf16* weights = reinterpret_cast<bf16*>(scores + kTileKeys * kPairRows);
  bf16* q = weights + kTileKeys * kPairRows * 2;
  bf16* keys = q + lanes * width;
  bf16* values = keys + kTileKeys * width;
  bf16* wide = values + kTileKeys * shape.value_steps * kStep;  // values of 8 bits, as they lie
  float* out = reinterpret_cast<float*>(wide + kTileKeys * shape.value_steps * kStep);
  Block block;
  block.reference = out + pairs * out_size;
  block.top = block.reference + lanes;
  block.total = block.top + lanes;
  block.low = reinterpret_cast<int32_t*>(block.total + lanes);
  block.high = block.low + lanes;
  float* line = reinterpret_cast<float*>(block.high + lanes);  // finished rows; before that, queries

  TileShapes shapes;
  for (int i = 0; i < 8; ++i) shapes.set(i, 16);
  Tiles tiles(shapes);
  for (int64_t r0 = 0; r0 < lanes; r0 += kSide) {
    bf16* from = reinterpret_cast<bf16*>(line);
    memset(from, 0, static_cast<size_t>(kSide * width) * sizeof(bf16));
    for (int64_t r = r0; r < r0 + kSide && r < rows.count; ++r) copy_query(rows, r, from + (r - r0) * width);
    for (int64_t i = 0; i < steps; ++i)
      transpose_pairs(from + i * kStep, width, q + (r0 / kSide * steps + i) * kTileWords);
  }
  for (int64_t r = 0; r < lanes; ++r) {
    const int64_t token = rows.token(r < rows.count ? r : rows.count - 1);
    const int64_t low = token + s.low, high = rows.highest(token);
    block.reference[r] = block.top[r] = kMinusInf;
    block.total[r] = 0.f;
    block.low[r] = static_cast<int32_t>(low < 0 ? 0 : (low > s.kv_len ? s.kv_len : low));
    block.high[r] = static_cast<int32_t>(high < -1 ? -1 : (high > s.kv_len - 1 ? s.kv_len - 1 : high));
  }
  memset(out, 0, static_cast<size_t>(pairs * out_size) * sizeof(float));

  const int64_t aligned = rows.begin / kTileKeys * kTileKeys;
  for (int64_t key = aligned > t.key0 ? aligned : t.key0; key < rows.end; key += kTileKeys) {
    const int64_t n = rows.end - key < kTileKeys ? rows.end - key : kTileKeys;
    if (p.kv == AttentionKv::Fp8)
      copy_keys_fp8(p, s, lies, t.kv_head, key, n, attention_pad(n, kStep), steps, keys);
    else
      copy_keys(p, s, lies, t.kv_head, key, n, attention_pad(n, kStep), steps, keys);
    transpose_values(p, s, lies, shape, t.kv_head, key, n, wide, values);
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const int64_t r0 = pair * kPairRows, last = r0 + kPairRows - 1;
      // Bounds grow with the row.
      const int64_t end = block.high[last] + 1 < key + n ? block.high[last] + 1 : key + n;
      if (end <= key || key + n <= block.low[r0]) continue;
      const int64_t groups = (end - key + kStep - 1) / kStep;
      const bf16* query = q + pair * 2 * steps * kTileWords;
      for (int64_t g = 0; g < groups; ++g) {
        const bf16* from = keys + g * kStep * width;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t i = 0; i < steps; ++i) {
          _tile_loadd(4, from + i * kStep, static_cast<size_t>(width) * sizeof(bf16));
          _tile_loadd(6, query + i * kTileWords, 64);
          _tile_dpbf16ps(0, 4, 6);
          _tile_loadd(7, query + (steps + i) * kTileWords, 64);
          _tile_dpbf16ps(1, 4, 7);
          _tile_loadd(5, from + kSide * width + i * kStep, static_cast<size_t>(width) * sizeof(bf16));
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
        float* to = scores + g * kStep * kPairRows;
        constexpr size_t row = kPairRows * sizeof(float);
        _tile_stored(0, to, row);
        _tile_stored(1, to + kSide, row);
        _tile_stored(2, to + kSide * kPairRows, row);
        _tile_stored(3, to + kSide * kPairRows + kSide, row);
      }
      if (!scoring.plain || scoring.masked) many_extras(rows, scoring, r0, key, groups * kStep, scores);
      const bool bounded = key < block.low[last] || key + groups * kStep - 1 > block.high[r0];
      float* to = out + pair * out_size;
      for (int64_t column = 0; column < 2; ++column)
        many_weights(block, pair * 2 + column, scoring, key, groups * kStep, bounded, scores + column * kSide,
                     weights + column * 2 * kTileWords, to + column * kTileFloats, out_tiles);
      for (int64_t c = 0; c < out_tiles; c += 2, to += 4 * kTileFloats) {
        constexpr size_t row = kSide * sizeof(float);
        _tile_loadd(0, to, row);
        _tile_loadd(1, to + kTileFloats, row);
        _tile_loadd(2, to + 2 * kTileFloats, row);
        _tile_loadd(3, to + 3 * kTileFloats, row);
        for (int64_t g = 0; g < groups; ++g) {
          const bf16* w = weights + g * 4 * kTileWords;
          const bf16* v = values + (c * (kTileKeys / kStep) + g) * kTileWords;
          _tile_loadd(4, v, 64);
          _tile_loadd(5, v + kTileKeys / kStep * kTileWords, 64);
          _tile_loadd(6, w, 64);
          _tile_dpbf16ps(0, 4, 6);
          _tile_dpbf16ps(2, 5, 6);
          _tile_loadd(7, w + kTileWords, 64);
          _tile_dpbf16ps(0, 4, 7);
          _tile_dpbf16ps(2, 5, 7);
          _tile_loadd(6, w + 2 * kTileWords, 64);
          _tile_dpbf16ps(1, 4, 6);
          _tile_dpbf16ps(3, 5, 6);
          _tile_loadd(7, w + 3 * kTileWords, 64);
          _tile_dpbf16ps(1, 4, 7);
          _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, to, row);
        _tile_stored(1, to + kTileFloats, row);
        _tile_stored(2, to + 2 * kTileFloats, row);
        _tile_stored(3, to + 3 * kTileFloats, row);
      }
    }
  }
  for (int64_t r0 = 0; r0 < rows.count; r0 += kSide) {
    const float* from = out + r0 / kPairRows * out_size + r0 / kSide % 2 * kTileFloats;
    const int64_t v_width = shape.value_steps * kStep;
    for (int64_t c = 0; c < out_tiles; ++c, from += 2 * kTileFloats)
      transpose_sixteen(from, kSide, line + c * kSide, v_width);
    for (int64_t r = r0; r < r0 + kSide && r < rows.count; ++r) {
      float *row = line + (r - r0) * v_width, m = block.reference[r], l = block.total[r];
      if (s.softmax_max && m != block.top[r]) {  // asked for with the true maximum
        float shrink[W];
        store(shrink, exp2_vector(set1((m - block.top[r]) * scoring.unit)));
        for (int64_t i = 0; i < v_width; i += W) store(row + i, mul(load(row + i), set1(shrink[0])));
        m = block.top[r];
        l *= shrink[0];
      }
      hand_over<bf16>(rows, r, row, m * scoring.to_natural, l);
    }
  }
}

void run(const AttentionProblem& p, const AttentionTask& t, const AttentionTask* after) {
  const bool served = p.kv == AttentionKv::Same || p.kv == AttentionKv::Fp8;
  if (p.type != AttentionType::BF16 || !served || p.drop_mask) return kAttentionAvx512.run(p, t, after);
  if (p.sequences[t.sequence].q_len * (p.heads / p.kv_heads) <= kDotRows) return attention_few_amx(p, t, after);
  static thread_local Scratch scratch;
  run_many(p, t, scratch);
}

void run_gemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t row_a, int64_t col_a, const float* b,
              int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  kAttentionAvx512.gemm(m, n, k, a, row_a, col_a, b, ldb, c, ldc, accumulate);
}

void run_exp(int64_t n, const float* x, float* y) { kAttentionAvx512.exp(n, x, y); }

}  // namespace

const AttentionKernels kAttentionAmx = {W, 192, run, merge, run_gemm, run_exp};

}  // namespace aloft
