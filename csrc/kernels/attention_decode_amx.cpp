// Attention of few rows (decode) through AMX tiles: see attention_amx.cpp. A cache of 8-bit floats is widened tile by
// tile, without its tokens' exponents: those go into scores and weights.
#include <type_traits>

#include "kernels/attention_amx.h"

namespace aloft {
namespace {

// ---- few rows --------------------------------------------------------------------------------------------------

// Walks over the lines of a task's keys, then its values, then those of the task after it, ahead of their use. The walk
// is spread over the work: a burst of prefetches would hold up the loads behind it. It goes on in the next task.
class Stream {
 public:
  Stream(const AttentionProblem& p, const Lies& lies, const AttentionTask& task, const AttentionTask* next) {
    add(p, lies, task, 0);
    add(p, lies, task, 1);
    for (int i = 0; i < count_; ++i) own_ += part_[i].lines();
    if (next) {
      add(p, lies, *next, 0);
      add(p, lies, *next, 1);
    }
    if (!count_) return;
    follow();
    Ahead& before = ahead();
    const int64_t distance = kAhead * ((part_[0].bytes + 63) / 64);
    if (before.task == &task)
      skip(before.lines);
    else
      fetch(distance);
    before = {next, 0};
    after_ = next ? &before : nullptr;
  }
  ~Stream() {
    if (after_ && begun_ - left_ > own_) after_->lines = begun_ - left_ - own_;
  }
  Stream(const Stream&) = delete;
  // Constants for `lines` become that many instructions.
  [[gnu::always_inline]] void fetch(int64_t lines) {
    if (__builtin_expect(left_ <= lines, 0)) return fetch_over_ends(lines);
    const char* line = line_;
    for (int64_t i = 0; i < lines; ++i) _mm_prefetch(line + 64 * i, _MM_HINT_T1);
    line_ = line + 64 * lines, left_ -= lines;
  }

 private:
  struct Part {
    const char* base;
    const int32_t* blocks;
    int64_t token, block, block_size, bytes, begin, end;  // strides in bytes; bytes of a token
    int64_t lines() const {
      return token == bytes && !blocks ? ((end - begin) * bytes + 63) / 64 : (end - begin) * ((bytes + 63) / 64);
    }
  };
  [[gnu::noinline]] void fetch_over_ends(int64_t lines) {
    for (; lines > 0 && at_ < count_; --lines) {
      _mm_prefetch(line_, _MM_HINT_T1);
      line_ += 64;
      if (--left_ <= 0) turn();
    }
  }
  struct Ahead {  // what this thread has fetched of the task it does next
    const AttentionTask* task = nullptr;
    int64_t lines = 0;
  };
  static Ahead& ahead() {
    static thread_local Ahead of_thread;
    return of_thread;
  }
  void add(const AttentionProblem& p, const Lies& lies, const AttentionTask& t, int value) {
    const AttentionSequence& s = p.sequences[t.sequence];
    const Lie& lie = value ? lies.v : lies.k;
    const int64_t d = value ? p.d_v : p.d, size = p.kv == AttentionKv::Fp8 ? 1 : 2;
    if (t.key0 >= t.key1 || lie.head != d || lie.chunk != 16) return;  // heads that do not lie side by side
    part_[count_++] = {static_cast<const char*>(value ? s.v : s.k) + t.kv_head * lie.head * size,
                       s.blocks,
                       lie.token * size,
                       lie.block * size,
                       lie.block_size,
                       d * t.kv_heads * size,
                       t.key0,
                       t.key1};
    key_ = part_[0].begin;
  }
  void follow() {  // the longest piece of memory that begins with token key_
    const Part& part = part_[at_];
    tokens_ = part.token == part.bytes ? part.end - key_ : 1;
    int64_t inside = key_;
    line_ = part.base;
    if (part.blocks) {
      inside = key_ % part.block_size;
      line_ += part.blocks[key_ / part.block_size] * part.block;
      if (tokens_ > part.block_size - inside) tokens_ = part.block_size - inside;
    }
    line_ += inside * part.token;
    left_ = (tokens_ * part.bytes + 63) / 64;
    begun_ += left_;
  }
  void turn() {
    key_ += tokens_;
    if (key_ >= part_[at_].end && ++at_ < count_) key_ = part_[at_].begin;
    if (at_ < count_) follow();
  }
  void skip(int64_t lines) {
    while (lines > 0 && at_ < count_) {
      const int64_t here = lines < left_ ? lines : left_;
      line_ += here * 64, lines -= here;
      if ((left_ -= here) <= 0) turn();
    }
  }

  Part part_[4];
  int count_ = 0, at_ = 0;
  int64_t key_ = 0, tokens_ = 0, left_ = 0;  // left: lines of the piece
  int64_t own_ = 0, begun_ = 0;              // lines: of the task itself, of all pieces begun
  const char* line_ = nullptr;
  Ahead* after_ = nullptr;
};

// Rows of 32 values, m <= 4 of them -> 16 pairs of k x 4 columns (rows of 16 bytes).
inline void four_columns(const bf16* const (&rows)[4], int64_t m, bf16* to) {
  const __m512i none = _mm512_setzero_si512();
  const __m512i a = words(rows[0]), b = m > 1 ? words(rows[1]) : none;
  const __m512i c = m > 2 ? words(rows[2]) : none, d = m > 3 ? words(rows[3]) : none;
  const __m512i ab = _mm512_unpacklo_epi32(a, b), ab2 = _mm512_unpackhi_epi32(a, b);
  const __m512i cd = _mm512_unpacklo_epi32(c, d), cd2 = _mm512_unpackhi_epi32(c, d);
  const __m512i k0 = _mm512_unpacklo_epi64(ab, cd), k1 = _mm512_unpackhi_epi64(ab, cd);  // 128 bits i: pair 4 i (+ 1)
  const __m512i k2 = _mm512_unpacklo_epi64(ab2, cd2), k3 = _mm512_unpackhi_epi64(ab2, cd2);
  const __m512i e = _mm512_shuffle_i32x4(k0, k1, 0x88), f = _mm512_shuffle_i32x4(k2, k3, 0x88);  // 0 8 1 9, 2 10 3 11
  const __m512i g = _mm512_shuffle_i32x4(k0, k1, 0xdd), h = _mm512_shuffle_i32x4(k2, k3, 0xdd);  // 4 12 5 13, ...
  const auto store512 = [&](int64_t i, __m512i v) { _mm512_store_si512(to + i * kStep, v); };
  store512(0, _mm512_shuffle_i32x4(e, f, 0x88));
  store512(1, _mm512_shuffle_i32x4(g, h, 0x88));
  store512(2, _mm512_shuffle_i32x4(e, f, 0xdd));
  store512(3, _mm512_shuffle_i32x4(g, h, 0xdd));
}

// 16 keys x 4 columns (rows of 16 bytes) -> row r of 16 keys at to + r * stride, r < m <= 4.
inline void transpose_four(const float* from, int64_t m, float* to, int64_t stride) {
  const __m512i first = _mm512_set_epi32(29, 25, 21, 17, 13, 9, 5, 1, 28, 24, 20, 16, 12, 8, 4, 0);
  const V a = load(from), b = load(from + 16), c = load(from + 32), d = load(from + 48);
  const V low = _mm512_permutex2var_ps(a, first, b), high = _mm512_permutex2var_ps(c, first, d);
  store(to, _mm512_shuffle_f32x4(low, high, 0x44));
  if (m > 1) store(to + stride, _mm512_shuffle_f32x4(low, high, 0xee));
  if (m <= 2) return;
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(2));
  const V low2 = _mm512_permutex2var_ps(a, second, b), high2 = _mm512_permutex2var_ps(c, second, d);
  store(to + 2 * stride, _mm512_shuffle_f32x4(low2, high2, 0x44));
  if (m > 3) store(to + 3 * stride, _mm512_shuffle_f32x4(low2, high2, 0xee));
}

// Scores of one row, keys [key, key + n), to weights: `high` and `low` parts, both of `padded` values. The maximum and
// the sum of the row are returned.
inline void few_weights(const Rows& rows, const Scoring& scoring, int64_t r, int64_t key, int64_t n, int64_t padded,
                        const float* k_scales, const float* v_scales, float* s, bf16* high, bf16* low, float* m,
                        float* l, Stream& stream, int64_t lines) {
  const AttentionProblem& p = rows.p;
  const int64_t token = rows.token(r), head = rows.head(r);
  if (k_scales)
    for (int64_t j = 0; j < padded; j += W) store(s + j, mul(load(s + j), load(k_scales + j)));
  if (!scoring.plain) {
    for (int64_t j = 0; j < padded; j += W) store(s + j, mul(load(s + j), set1(p.scale)));
    if (rows.s.pse)
      for (int64_t j = 0; j < n; ++j) s[j] += pse_at(p, rows.s, head, token, key + j);
    if (p.soft_cap > 0.f)
      for (int64_t j = 0; j < padded; j += W)
        store(s + j, soft_cap_vector(load(s + j), set1(p.soft_cap), set1(1.f / p.soft_cap)));
  }
  const int64_t from = token + rows.s.low - key, to = rows.highest(token) - key;
  for (int64_t j = 0; j < from && j < n; ++j) s[j] = kMinusInf;
  for (int64_t j = to + 1 < 0 ? 0 : (to + 1 < n ? to + 1 : n); j < padded; ++j) s[j] = kMinusInf;
  if (scoring.masked) {
    const uint8_t* mask = rows.s.mask + head * p.mask_head + token * p.mask_token + key;
    for (int64_t j = 0; j < n; ++j)
      if (mask[j]) s[j] = kMinusInf;
  }
  V top = load(s);
  for (int64_t j = W; j < padded; j += W) top = maximum(top, load(s + j));
  const float highest = largest(top);
  const V unit = set1(scoring.unit), zero = set1((highest == kMinusInf ? 0.f : -highest) * scoring.unit);
  V total = set1(0.f);
  for (int64_t j = 0; j < padded; j += 2 * W) {
    V a = exp2_vector(fma(load(s + j), unit, zero)), b = exp2_vector(fma(load(s + j + W), unit, zero));
    total = add(total, add(a, b));
    if (v_scales) a = mul(a, load(v_scales + j)), b = mul(b, load(v_scales + j + W));
    const V ah = high_part(a), bh = high_part(b);
    _mm512_store_si512(high + j, bf16_pair(ah, bh));
    _mm512_store_si512(low + j, bf16_pair(sub(a, ah), sub(b, bh)));
    stream.fetch(lines);
  }
  *m = highest * scoring.to_natural;
  *l = sum(total);
}

// Two rows of values to pairs, 32 of them, in two tiles. Columns 0-3, 8-11, ... of the rows come first.
inline void interleave(__m512i a, __m512i b, bf16* first, bf16* second) {
  _mm512_store_si512(first, _mm512_unpacklo_epi16(a, b));
  _mm512_store_si512(second, _mm512_unpackhi_epi16(a, b));
}
// 32 numbers of a row as bf16; up to 32 of them, whose 16-element pieces lie `chunk` apart.
inline __m512i in_words(const bf16* p, const Fp8Scale&) { return words(p); }
inline __m512i in_words(const f8* p, const Fp8Scale& scale) { return words(p, scale); }
inline void part_of_row(const bf16* row, int64_t at, int64_t n, int64_t chunk, const Fp8Scale&, bf16* to) {
  copy_row(row + at / 16 * chunk, n, chunk, to);
}
inline void part_of_row(const f8* row, int64_t at, int64_t n, int64_t, const Fp8Scale& scale, bf16* to) {
  widen_row(row + at, n, scale, to);
}
inline void in_order(V first, V second, float* to) {
  const __m512i begin = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
  store(to, _mm512_permutex2var_ps(first, begin, second));
  store(to + W, _mm512_permutex2var_ps(first, _mm512_add_epi32(begin, _mm512_set1_epi32(8)), second));
}

template <bool kFp8>
void run_few(const AttentionProblem& p, const AttentionTask& t, const AttentionTask* after, Scratch& scratch) {
  using K = std::conditional_t<kFp8, f8, bf16>;
  // Lines fetched with a tile of keys, 32 weights of a row, a pair of values: a little more than is used.
  constexpr int64_t kWithKeys = kFp8 ? kSide / 2 : kSide, kWithWeights = kFp8 ? 1 : 2, kWithValues = kFp8 ? 1 : 2;
  const Fp8Scale one(0);
  const Rows first(p, t, t.kv_head);
  const AttentionSequence& s = first.s;
  const Shape shape(p);
  const Lies lies(p);
  const Scoring scoring(p, s);
  const int64_t m = first.count, heads = t.kv_heads, begin = first.begin;
  const int64_t n = first.end > begin ? first.end - begin : 0, padded = attention_pad(n, kStep);
  const int64_t columns = m <= 4 ? 4 : kSide, steps = shape.steps, value_steps = shape.value_steps;
  const int64_t out_tile = 2 * m * kSide;
  float* scores = scratch.get(heads * (2 * m * padded + (steps + 1) * kTileFloats + value_steps * 2 * out_tile) +
                              ((kFp8 ? heads : 1) * 2 * steps + 4 * value_steps + 2 * heads) * kTileFloats +
                              attention_pad(heads * m * 2, W) + value_steps * kStep + (kFp8 ? 2 * padded : 0));
  bf16* weights = reinterpret_cast<bf16*>(scores + heads * m * padded);  // of each head: high rows, low rows
  bf16* q = weights + heads * 2 * m * padded;
  bf16* line = q + heads * steps * kTileWords;                       // keys or values brought into order
  bf16* pairs = line + (kFp8 ? heads : 1) * 2 * steps * kTileWords;  // values, two tokens interleaved
  float* out = reinterpret_cast<float*>(pairs + 4 * value_steps * kTileWords);
  float* product = out + heads * value_steps * 2 * out_tile;
  float* stats = product + heads * 2 * kTileFloats;
  float* row = stats + attention_pad(heads * m * 2, W);
  float *k_scales = nullptr, *v_scales = nullptr;  // of the tokens
  if (kFp8) {
    k_scales = row + value_steps * kStep, v_scales = k_scales + padded;
    exponent_scales(p, s, p.k_exponents, begin, n, 0, k_scales);
    exponent_scales(p, s, p.v_exponents, begin, n, 0, v_scales);
    for (int64_t j = n; j < padded; ++j) k_scales[j] = v_scales[j] = 0.f;
  }

  TileShapes shapes;
  const int column_bytes = static_cast<int>(columns) * 4, weight_rows = static_cast<int>(2 * m);
  shapes.set(0, 16, column_bytes).set(1, 16, column_bytes).set(2, 16).set(3, 16, column_bytes);
  shapes.set(4, weight_rows).set(5, 16).set(6, weight_rows).set(7, weight_rows);
  Tiles tiles(shapes);
  Stream stream(p, lies, t, after);

  for (int64_t h = 0; h < heads; ++h) {
    const Rows rows(p, t, t.kv_head + h);
    bf16* to = q + h * steps * kTileWords;
    if (columns == 4 && p.d_rope == 0 && p.d % kStep == 0) {
      const bf16* lie[4];
      for (int64_t r = 0; r < 4; ++r) {
        const int64_t row = r < m ? r : 0;
        lie[r] = static_cast<const bf16*>(s.q) + rows.token(row) * p.q_token + rows.head(row) * p.q_head;
      }
      for (int64_t i = 0; i < steps; ++i) {
        four_columns(lie, m, to + i * kSide * 4 * 2);
        for (const bf16*& from : lie) from += kStep;
      }
      continue;
    }
    for (int64_t r = 0; r < m; ++r) {
      memset(line, 0, static_cast<size_t>(steps * kStep) * sizeof(bf16));
      copy_query(rows, r, line);
      for (int64_t i = 0; i < steps * kSide; ++i) memcpy(to + (i * columns + r) * 2, line + 2 * i, 4);
    }
  }
  const size_t q_row = static_cast<size_t>(columns) * 4;
  const int64_t q_step = kSide * columns * 2;

  for (int64_t at = 0; at < n; at += kStep) {
    const bf16* bases[2] = {};  // where the keys of head 0 lie; null: copied, head by head
    const int64_t parts = n - at > kSide ? 2 : 1;
    for (int64_t g = 0; g < parts; ++g)
      if (shape.direct_keys && n - at - g * kSide >= kSide)
        find_rows(s.k, s.blocks, lies.k, t.kv_head, begin + at + g * kSide, 1, bases + g);
    if (kFp8) {
      const int64_t here = n - at < kStep ? n - at : kStep, width = steps * kStep;
      const f8* from[kStep];
      find_rows(s.k, s.blocks, lies.k, t.kv_head, begin + at, here, from);
      for (int64_t h = 0; h < heads; ++h) {
        bf16* to = line + h * 2 * steps * kTileWords;
        for (int64_t j = 0; j < here; ++j) {
          widen_row(from[j] + h * lies.k.head, p.d, one, to + j * width);
          if (p.d < width) memset(to + j * width + p.d, 0, static_cast<size_t>(width - p.d) * sizeof(bf16));
        }
        if (here < parts * kSide)
          memset(to + here * width, 0, static_cast<size_t>((parts * kSide - here) * width) * sizeof(bf16));
      }
    }
    for (int64_t h = 0; h < heads; ++h) {
      const bf16* keys[2];
      size_t stride[2];
      for (int64_t g = 0; g < parts; ++g) {
        const int64_t left = n - at - g * kSide;
        bf16* copy = line + ((kFp8 ? h : 0) * 2 + g) * steps * kTileWords;
        keys[g] = bases[g] ? bases[g] + h * lies.k.head : copy;
        stride[g] = static_cast<size_t>(bases[g] ? lies.k.token : steps * kStep) * sizeof(bf16);
        if (!kFp8 && !bases[g])
          copy_keys(p, s, lies, t.kv_head + h, begin + at + g * kSide, left < kSide ? left : kSide, kSide, steps, copy);
      }
      const bf16* query = q + h * steps * kTileWords;
      float* to = product + h * 2 * kTileFloats;
      _tile_zero(0);
      if (parts == 2) {
        _tile_zero(1);
        for (int64_t i = 0; i < steps; ++i) {
          _tile_loadd(3, query + i * q_step, q_row);
          _tile_loadd(2, keys[0] + i * kStep, stride[0]);
          _tile_dpbf16ps(0, 2, 3);
          stream.fetch(kWithKeys);
          _tile_loadd(2, keys[1] + i * kStep, stride[1]);
          _tile_dpbf16ps(1, 2, 3);
          stream.fetch(kWithKeys);
        }
        _tile_stored(1, to + kTileFloats, q_row);
      } else {
        for (int64_t i = 0; i < steps; ++i) {
          _tile_loadd(3, query + i * q_step, q_row);
          _tile_loadd(2, keys[0] + i * kStep, stride[0]);
          _tile_dpbf16ps(0, 2, 3);
          stream.fetch(kWithKeys);
        }
      }
      _tile_stored(0, to, q_row);
    }
    // Not sooner: what was stored by rows of a tile cannot be loaded before it has left the store buffer.
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t g = 0; g < parts; ++g) {
        const float* from = product + (h * 2 + g) * kTileFloats;
        float* to = scores + h * m * padded + at + g * kSide;
        if (columns == 4)
          transpose_four(from, m, to, padded);
        else
          transpose_sixteen(from, m, to, padded);
      }
  }

  for (int64_t h = 0; h < heads; ++h) {
    const Rows rows(p, t, t.kv_head + h);
    for (int64_t r = 0; r < m; ++r) {
      bf16* high = weights + (h * 2 * m + r) * padded;
      float* stat = stats + 2 * (h * m + r);
      if (n)
        few_weights(rows, scoring, r, begin, n, padded, k_scales, v_scales, scores + (h * m + r) * padded, high,
                    high + m * padded, stat, stat + 1, stream, kWithWeights);
      else
        stat[0] = kMinusInf, stat[1] = 0.f;
    }
  }
  if (!n) memset(out, 0, static_cast<size_t>(heads * value_steps * 2 * out_tile) * sizeof(float));

  const K* values[2 * kStep];
  for (int64_t at = 0; at < n; at += 2 * kStep) {
    const int64_t here = n - at < 2 * kStep ? n - at : 2 * kStep, groups = (here + kStep - 1) / kStep;
    find_rows(s.v, s.blocks, lies.v, t.kv_head, begin + at, here, values);
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t offset = h * lies.v.head;
      const bf16* left_tile = weights + h * 2 * m * padded + at;
      for (int64_t c = 0; c < value_steps; ++c)
        for (int64_t g = 0; g < groups; ++g) {
          bf16* tile = pairs + (c * 2 + g) * 2 * kTileWords;
          if (shape.direct_values) {
            const K* const* from = values + g * kStep;
            const int64_t left = here - g * kStep < kStep ? here - g * kStep : kStep, whole = left / 2;
            int64_t i = 0;
#pragma GCC unroll 4
            for (; i < whole; ++i) {
              interleave(in_words(from[2 * i] + offset + c * kStep, one),
                         in_words(from[2 * i + 1] + offset + c * kStep, one), tile + i * kStep,
                         tile + kTileWords + i * kStep);
              stream.fetch(kWithValues);
            }
            const __m512i none = _mm512_setzero_si512();
            if (left & 1) {
              interleave(in_words(from[left - 1] + offset + c * kStep, one), none, tile + i * kStep,
                         tile + kTileWords + i * kStep);
              ++i;
            }
            stream.fetch((kSide - whole) * kWithValues);
            for (; i < kSide; ++i) interleave(none, none, tile + i * kStep, tile + kTileWords + i * kStep);
          } else {
            for (int64_t i = 0; i < kStep; i += 2) {
              alignas(64) bf16 both[2][kStep] = {};
              for (int64_t e = 0; e < 2; ++e) {
                const int64_t j = g * kStep + i + e, width = p.d_v - c * kStep < kStep ? p.d_v - c * kStep : kStep;
                if (j < here) part_of_row(values[j] + offset, c * kStep, width, p.v_chunk, one, both[e]);
              }
              interleave(words(both[0]), words(both[1]), tile + i / 2 * kStep, tile + kTileWords + i / 2 * kStep);
            }
          }
        }
      for (int64_t c = 0; c < value_steps; ++c) {
        float* to = out + (h * value_steps + c) * 2 * out_tile;
        const bf16* tile = pairs + c * 4 * kTileWords;
        if (at) {
          _tile_loadd(6, to, kSide * sizeof(float));
          _tile_loadd(7, to + out_tile, kSide * sizeof(float));
        } else {
          _tile_zero(6);
          _tile_zero(7);
        }
        for (int64_t g = 0; g < groups; ++g) {
          _tile_loadd(4, left_tile + g * kStep, static_cast<size_t>(padded) * sizeof(bf16));
          _tile_loadd(5, tile + g * 2 * kTileWords, 64);
          _tile_dpbf16ps(6, 4, 5);
          _tile_loadd(5, tile + (g * 2 + 1) * kTileWords, 64);
          _tile_dpbf16ps(7, 4, 5);
        }
        _tile_stored(6, to, kSide * sizeof(float));
        _tile_stored(7, to + out_tile, kSide * sizeof(float));
      }
    }
  }
  for (int64_t h = 0; h < heads; ++h) {
    const Rows rows(p, t, t.kv_head + h);
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t c = 0; c < value_steps; ++c) {
        const float* from = out + (h * value_steps + c) * 2 * out_tile + r * kSide;
        in_order(add(load(from), load(from + m * kSide)), add(load(from + out_tile), load(from + out_tile + m * kSide)),
                 row + c * kStep);
      }
      const float* stat = stats + 2 * (h * m + r);
      hand_over<bf16>(rows, r, row, stat[0], stat[1]);
    }
  }
}

}  // namespace

void attention_few_amx(const AttentionProblem& p, const AttentionTask& t, const AttentionTask* after) {
  static thread_local Scratch scratch;
  if (p.kv == AttentionKv::Fp8) return run_few<true>(p, t, after, scratch);
  run_few<false>(p, t, after, scratch);
}

}  // namespace aloft
