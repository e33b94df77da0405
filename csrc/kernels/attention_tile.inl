// The forms of the attention kernel that compute in fp32 lanes, after attention_rows.inl. The including file defines
// besides: sum4 (the sums of four vectors), kMaxDot (rows of a dot-product block), kGemmRows.
//
// Blocking: keys go by in tiles of kKeyTile; of each row only its maximum, its sum of weights and its output are kept
// (online softmax), so nothing grows with the context. Rows are query heads x tokens that share a KV head.
// Few rows (run_dots, decode): bound by reading the cache. Keys are read where they lie, four at a time against up to
// kMaxDot rows: kMaxDot x 4 sums in registers, the head's width in the inner loop; values likewise, four vectors of a
// row at once. More rows take turns over the tile, which is in the first level by then; meanwhile the tile that
// follows (the next KV head's of the same tokens, or the next tokens') is fetched row by row.
// Many rows (run_block, prefill): bound by multiply-adds. A tile of keys and values is widened to fp32 once for all
// rows; scores are [key][row], so that maxima, exponentials and sums go along the lanes without shuffles. Both products
// are gemm(): kGemmRows x 2 vectors of sums in registers, the depth in the inner loop, one broadcast for two products.

// ---- matrix product --------------------------------------------------------------------------------------------

template <int MR, int NV, bool kUnitRow>
inline void gemm_micro(int64_t k, const float* a, int64_t row_a, int64_t col_a, const float* b, int64_t ldb, float* c,
                       int64_t ldc, bool accumulate) {
  V sum_[MR][NV];
  for (int i = 0; i < MR; ++i)
    for (int j = 0; j < NV; ++j) sum_[i][j] = accumulate ? load(c + i * ldc + j * W) : set1(0.f);
#pragma GCC unroll 4
  for (int64_t p = 0; p < k; ++p) {
    V bv[NV];
    for (int j = 0; j < NV; ++j) bv[j] = load(b + j * W);
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const V av = set1(kUnitRow ? a[i] : a[i * row_a]);
      for (int j = 0; j < NV; ++j) sum_[i][j] = fma(av, bv[j], sum_[i][j]);
    }
    a += col_a;
    b += ldb;
  }
  for (int i = 0; i < MR; ++i)
    for (int j = 0; j < NV; ++j) store(c + i * ldc + j * W, sum_[i][j]);
}

template <int NV, bool kUnitRow>
void gemm_column(int64_t m, int64_t k, const float* a, int64_t row_a, int64_t col_a, const float* b, int64_t ldb,
                 float* c, int64_t ldc, bool accumulate) {
  int64_t i = 0;
  for (; i + kGemmRows <= m; i += kGemmRows)
    gemm_micro<kGemmRows, NV, kUnitRow>(k, a + i * row_a, row_a, col_a, b, ldb, c + i * ldc, ldc, accumulate);
  int64_t left = m - i;
  a += i * row_a;
  c += i * ldc;
  for (; left >= 6; left -= 6, a += 6 * row_a, c += 6 * ldc)
    gemm_micro<6, NV, kUnitRow>(k, a, row_a, col_a, b, ldb, c, ldc, accumulate);
  switch (left) {
    case 1:
      return gemm_micro<1, NV, kUnitRow>(k, a, row_a, col_a, b, ldb, c, ldc, accumulate);
    case 2:
      return gemm_micro<2, NV, kUnitRow>(k, a, row_a, col_a, b, ldb, c, ldc, accumulate);
    case 3:
      return gemm_micro<3, NV, kUnitRow>(k, a, row_a, col_a, b, ldb, c, ldc, accumulate);
    case 4:
      return gemm_micro<4, NV, kUnitRow>(k, a, row_a, col_a, b, ldb, c, ldc, accumulate);
    case 5:
      return gemm_micro<5, NV, kUnitRow>(k, a, row_a, col_a, b, ldb, c, ldc, accumulate);
    default:
      return;
  }
}

template <bool kUnitRow>
void gemm_all(int64_t m, int64_t n, int64_t k, const float* a, int64_t row_a, int64_t col_a, const float* b,
              int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  int64_t j = 0;
  for (; j + 2 * W <= n; j += 2 * W)
    gemm_column<2, kUnitRow>(m, k, a, row_a, col_a, b + j, ldb, c + j, ldc, accumulate);
  if (j < n) gemm_column<1, kUnitRow>(m, k, a, row_a, col_a, b + j, ldb, c + j, ldc, accumulate);
}

void gemm(int64_t m, int64_t n, int64_t k, const float* a, int64_t row_a, int64_t col_a, const float* b, int64_t ldb,
          float* c, int64_t ldc, bool accumulate) {
  if (row_a == 1)
    gemm_all<true>(m, n, k, a, row_a, col_a, b, ldb, c, ldc, accumulate);
  else
    gemm_all<false>(m, n, k, a, row_a, col_a, b, ldb, c, ldc, accumulate);
}

void exp_array(int64_t n, const float* x, float* y) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(y + i, exp_vector(load(x + i)));
  for (; i < n; ++i) y[i] = exp_scalar(x[i]);
}

// ---- few rows: dot products straight from the cache ------------------------------------------------------------

// Rows of a head lie far apart in a cache that holds all heads of a token: no hardware prefetcher follows them.
template <class T>
inline void fetch(const T* row, int64_t n) {
  const char* line = reinterpret_cast<const char*>(row);
  for (int64_t i = 0; i < n * static_cast<int64_t>(sizeof(T)); i += 64) __builtin_prefetch(line + i, 0, 2);
}

template <class T, int MB>
inline void dot_rows(const float* q, int64_t d, const T* const* keys, int64_t n4, float* scores,
                     const T* const* ahead) {
  for (int64_t j = 0; j < n4; j += 4) {
    if (ahead)
      for (int c = 0; c < 4; ++c) fetch(ahead[j + c], d);
    const T *k0 = keys[j], *k1 = keys[j + 1], *k2 = keys[j + 2], *k3 = keys[j + 3];
    V sum_[MB][4];
    for (int m = 0; m < MB; ++m)
      for (int c = 0; c < 4; ++c) sum_[m][c] = set1(0.f);
    for (int64_t i = 0; i < d; i += W) {
      const V a = load(k0 + i), b = load(k1 + i), c = load(k2 + i), e = load(k3 + i);
#pragma GCC unroll 4
      for (int m = 0; m < MB; ++m) {
        const V x = load(q + m * d + i);
        sum_[m][0] = fma(x, a, sum_[m][0]);
        sum_[m][1] = fma(x, b, sum_[m][1]);
        sum_[m][2] = fma(x, c, sum_[m][2]);
        sum_[m][3] = fma(x, e, sum_[m][3]);
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < MB; ++m) sum4(sum_[m][0], sum_[m][1], sum_[m][2], sum_[m][3], scores + m * kKeyTile + j);
  }
}

template <class T, int MB, int NV>
inline void add_values(const float* weights, const T* const* values, int64_t at, int64_t n, float* out, int64_t ldo,
                       const T* const* ahead) {
  V sum_[MB][NV];
  for (int m = 0; m < MB; ++m)
    for (int c = 0; c < NV; ++c) sum_[m][c] = load(out + m * ldo + at + c * W);
  for (int64_t j = 0; j < n; ++j) {
    const T* row = values[j] + at;
    if (ahead) fetch(ahead[j] + at, NV * W);
    V v[NV];
    for (int c = 0; c < NV; ++c) v[c] = load(row + c * W);
#pragma GCC unroll 4
    for (int m = 0; m < MB; ++m) {
      const V w = set1(weights[m * kKeyTile + j]);
      for (int c = 0; c < NV; ++c) sum_[m][c] = fma(w, v[c], sum_[m][c]);
    }
  }
  for (int m = 0; m < MB; ++m)
    for (int c = 0; c < NV; ++c) store(out + m * ldo + at + c * W, sum_[m][c]);
}

template <class T, int MB>
inline void value_block(const float* weights, const T* const* values, int64_t d_v, int64_t n, float* out, int64_t ldo,
                        const T* const* ahead) {
  int64_t at = 0;
  for (; at + 4 * W <= d_v; at += 4 * W) add_values<T, MB, 4>(weights, values, at, n, out, ldo, ahead);
  for (; at < d_v; at += W) add_values<T, MB, 1>(weights, values, at, n, out, ldo, ahead);
}

template <class T>
void all_dots(const float* q, int64_t rows, int64_t d, const T* const* keys, int64_t n4, float* scores,
              const T* const* ahead) {
  for (int64_t m = 0; m < rows;) {
    const int64_t left = rows - m;
    const int64_t step = left == kMaxDot + 1 && kMaxDot > 2 ? kMaxDot - 1 : (left < kMaxDot ? left : kMaxDot);
    const float* from = q + m * d;
    float* to = scores + m * kKeyTile;
    if (step == 1) dot_rows<T, 1>(from, d, keys, n4, to, m ? nullptr : ahead);
    if (step == 2) dot_rows<T, 2>(from, d, keys, n4, to, m ? nullptr : ahead);
    if (step == 3) dot_rows<T, 3>(from, d, keys, n4, to, m ? nullptr : ahead);
    if (kMaxDot > 3 && step == 4) dot_rows<T, kMaxDot>(from, d, keys, n4, to, m ? nullptr : ahead);
    m += step;
  }
}

template <class T>
void all_values(const float* weights, int64_t rows, const T* const* values, int64_t d_v, int64_t n, float* out,
                int64_t ldo, const T* const* ahead) {
  for (int64_t m = 0; m < rows;) {
    const int64_t left = rows - m;
    const int64_t step = left == kMaxDot + 1 && kMaxDot > 2 ? kMaxDot - 1 : (left < kMaxDot ? left : kMaxDot);
    const float* from = weights + m * kKeyTile;
    float* to = out + m * ldo;
    if (step == 1) value_block<T, 1>(from, values, d_v, n, to, ldo, m ? nullptr : ahead);
    if (step == 2) value_block<T, 2>(from, values, d_v, n, to, ldo, m ? nullptr : ahead);
    if (step == 3) value_block<T, 3>(from, values, d_v, n, to, ldo, m ? nullptr : ahead);
    if (kMaxDot > 3 && step == 4) value_block<T, kMaxDot>(from, values, d_v, n, to, ldo, m ? nullptr : ahead);
    m += step;
  }
}

// Weights of one row over one tile from its scores; the row's maximum, sum and output are brought up to date.
inline void soften(const Rows& rows, int64_t r, int64_t key, int64_t n, float* s, float* m, float* l, float* out) {
  const AttentionProblem& p = rows.p;
  const int64_t token = rows.token(r), head = rows.head(r);
  if (rows.s.pse)
    for (int64_t j = 0; j < n; ++j) s[j] += pse_at(p, rows.s, head, token, key + j);
  if (p.soft_cap > 0.f)
    for (int64_t j = 0; j < kKeyTile; j += W)
      store(s + j, soft_cap_vector(load(s + j), set1(p.soft_cap), set1(1.f / p.soft_cap)));
  const int64_t low = token + rows.s.low - key, high = rows.highest(token) - key;
  for (int64_t j = 0; j < low && j < n; ++j) s[j] = kMinusInf;
  for (int64_t j = high + 1 > 0 ? high + 1 : 0; j < n; ++j) s[j] = kMinusInf;
  if (rows.s.mask) {
    const uint8_t* mask = rows.s.mask + head * p.mask_head + token * p.mask_token + key;
    for (int64_t j = 0; j < n; ++j)
      if (mask[j]) s[j] = kMinusInf;
  }
  for (int64_t j = n; j < kKeyTile; ++j) s[j] = kMinusInf;
  V top = load(s);
  for (int64_t j = W; j < kKeyTile; j += W) top = maximum(top, load(s + j));
  const float tile_max = largest(top);
  const float m_new = tile_max > *m ? tile_max : *m;
  const float m_safe = m_new == kMinusInf ? 0.f : m_new;
  V total = set1(0.f);
  for (int64_t j = 0; j < kKeyTile; j += W) {
    const V e = exp_vector(sub(load(s + j), set1(m_safe)));
    total = add(total, e);
    store(s + j, e);
  }
  if (m_new != *m && *l != 0.f) {
    const float alpha = exp_scalar(*m - m_safe);
    *l *= alpha;
    for (int64_t i = 0; i < rows.v_padded; i += W) store(out + i, mul(load(out + i), set1(alpha)));
  }
  *l += sum(total);
  *m = m_new;
  if (rows.drop())
    for (int64_t j = 0; j < n; ++j) s[j] = rows.keeps(r, key + j) ? s[j] / p.keep_prob : 0.f;
}

// A quantised key's scale goes into the query; what its offset adds to every score of the row comes back.
inline float scale_query(const AttentionProblem& p, int64_t kv_head, float* q, int64_t step) {
  if (!p.k_scale) return 0.f;
  const float *scale = p.k_scale + kv_head * p.d, *offset = p.k_offset ? p.k_offset + kv_head * p.d : nullptr;
  float shift = 0.f;
  for (int64_t i = 0; i < p.d; ++i) {
    q[i * step] *= scale[i];
    if (offset) shift += q[i * step] * offset[i];
  }
  return shift;
}

// Pointers to the rows of one head in one tile.
template <class T>
struct TileRows {
  const T* keys[kKeyTile];
  const T* values[kKeyTile];
  void find(const AttentionProblem& p, const AttentionSequence& s, int64_t kv_head, int64_t key, int64_t n) {
    const Lie k_lie{p.k_token, p.k_head, p.k_block, p.k_chunk, p.block_size};
    const Lie v_lie{p.v_token, p.v_head, p.v_block, p.v_chunk, p.block_size};
    find_rows(s.k, s.blocks, k_lie, kv_head, key, n, keys);
    find_rows(s.v, s.blocks, v_lie, kv_head, key, n, values);
    for (int64_t j = n; j < kKeyTile; ++j) keys[j] = keys[n - 1], values[j] = values[n - 1];
  }
};

template <class T, class K>
void run_dots(const AttentionProblem& p, const AttentionTask& t, Scratch& scratch) {
  const Rows first(p, t, t.kv_head);
  const AttentionSequence& s = first.s;
  const int64_t m_rows = first.count, dp = first.d_padded, vp = first.v_padded, heads = t.kv_heads;
  const bool direct_k = p.d_rope == 0 && p.d % W == 0 && p.k_chunk == 16;
  const bool direct_v = p.d_v % W == 0 && p.v_chunk == 16;
  const int64_t of_head = m_rows * (dp + vp + 3);
  float* scores = scratch.get(heads * of_head + kKeyTile * (m_rows + dp + vp) + 64);
  float* wide_k = scores + m_rows * kKeyTile;
  float* wide_v = wide_k + kKeyTile * dp;
  float* state = wide_v + kKeyTile * vp;  // of each head: queries, outputs, maxima, sums, shifts
  for (int64_t h = 0; h < heads; ++h) {
    const Rows rows(p, t, t.kv_head + h);
    float *q = state + h * of_head, *out = q + m_rows * dp, *m = out + m_rows * vp, *l = m + m_rows;
    for (int64_t r = 0; r < m_rows; ++r) {
      const int64_t token = rows.token(r), head = rows.head(r);
      widen(static_cast<const T*>(s.q) + token * p.q_token + head * p.q_head, p.d, 16, q + r * dp, p.d_rope ? p.d : dp);
      if (p.d_rope)
        widen(static_cast<const T*>(s.q_rope) + token * p.q_rope_token + head * p.q_rope_head, p.d_rope, 16,
              q + r * dp + p.d, dp - p.d);
      for (int64_t i = 0; i < dp; ++i) q[r * dp + i] *= p.scale;
      l[m_rows + r] = scale_query(p, rows.kv_head, q + r * dp, 1);
      m[r] = kMinusInf;
      l[r] = 0.f;
    }
    memset(out, 0, static_cast<size_t>(m_rows * vp) * sizeof(float));
  }
  const float *wide_keys[kKeyTile], *wide_values[kKeyTile];
  for (int64_t j = 0; j < kKeyTile; ++j) {
    wide_keys[j] = wide_k + j * dp;
    wide_values[j] = wide_v + j * vp;
  }
  alignas(64) float k_scales[kKeyTile], v_scales[kKeyTile];  // of the tile's tokens, where each has its own
  TileRows<K> tiles[2];                                      // this one and the next, which is fetched meanwhile
  int turn = 0;
  const auto size_at = [&](int64_t key) { return first.end - key < kKeyTile ? first.end - key : kKeyTile; };
  if (first.begin < first.end) tiles[0].find(p, s, t.kv_head, first.begin, size_at(first.begin));
  for (int64_t key = first.begin; key < first.end; key += kKeyTile) {
    const int64_t n = size_at(key), n4 = (n + 3) / 4 * 4;
    if (p.k_exponents) {
      exponent_scales(p, s, p.k_exponents, key, n, 8, k_scales);
      exponent_scales(p, s, p.v_exponents, key, n, 8, v_scales);
    }
    for (int64_t h = 0; h < heads; ++h, turn ^= 1) {
      const Rows rows(p, t, t.kv_head + h);
      float *q = state + h * of_head, *out = q + m_rows * dp, *m = out + m_rows * vp, *l = m + m_rows;
      const TileRows<K>& tile = tiles[turn];
      const K *const *ahead_k = nullptr, *const *ahead_v = nullptr;
      const int64_t next_key = h + 1 < heads ? key : key + kKeyTile;
      if (next_key < first.end) {
        TileRows<K>& next = tiles[turn ^ 1];
        next.find(p, s, t.kv_head + (h + 1 < heads ? h + 1 : 0), next_key, size_at(next_key));
        ahead_k = next.keys, ahead_v = next.values;
      }
      if (direct_k) {
        all_dots<K>(q, m_rows, dp, tile.keys, n4, scores, ahead_k);
      } else {
        for (int64_t j = 0; j < n4; ++j) widen(tile.keys[j], p.d, p.k_chunk, wide_k + j * dp, p.d_rope ? p.d : dp);
        if (p.d_rope) {
          const Lie lie{p.k_rope_token, p.k_rope_head, p.k_rope_block, p.k_rope_chunk, p.block_size};
          const K* ropes[kKeyTile];
          find_rows(s.k_rope, s.blocks, lie, t.kv_head + h, key, n, ropes);
          for (int64_t j = n; j < n4; ++j) ropes[j] = ropes[n - 1];
          for (int64_t j = 0; j < n4; ++j) widen(ropes[j], p.d_rope, p.k_rope_chunk, wide_k + j * dp + p.d, dp - p.d);
        }
        all_dots<float>(q, m_rows, dp, wide_keys, n4, scores, nullptr);
      }
      if (p.k_offset)
        for (int64_t r = 0; r < m_rows; ++r)
          for (int64_t j = 0; j < n; ++j) scores[r * kKeyTile + j] += l[m_rows + r];
      if (p.k_exponents)
        for (int64_t r = 0; r < m_rows; ++r)
          for (int64_t j = 0; j < n; ++j) scores[r * kKeyTile + j] *= k_scales[j];
      for (int64_t r = 0; r < m_rows; ++r) soften(rows, r, key, n, scores + r * kKeyTile, m + r, l + r, out + r * vp);
      if (p.v_exponents)
        for (int64_t r = 0; r < m_rows; ++r)
          for (int64_t j = 0; j < n; ++j) scores[r * kKeyTile + j] *= v_scales[j];
      if (direct_v) {
        all_values<K>(scores, m_rows, tile.values, p.d_v, n, out, vp, ahead_v);
      } else {
        for (int64_t j = 0; j < n; ++j) widen(tile.values[j], p.d_v, p.v_chunk, wide_v + j * vp, vp);
        all_values<float>(scores, m_rows, wide_values, vp, n, out, vp, nullptr);
      }
    }
  }
  for (int64_t h = 0; h < heads; ++h) {
    const Rows rows(p, t, t.kv_head + h);
    const float *out = state + h * of_head + m_rows * dp, *m = out + m_rows * vp, *l = m + m_rows;
    for (int64_t r = 0; r < m_rows; ++r) hand_over<T>(rows, r, out + r * vp, m[r], l[r]);
  }
}

// ---- many rows: matrix products, rows in the lanes of the scores -----------------------------------------------

template <class T, class K>
void run_block(const AttentionProblem& p, const AttentionTask& t, Scratch& scratch) {
  const Rows rows(p, t, t.kv_head);
  const int64_t count = rows.count, wide = attention_pad(count, W), d = rows.d, dp = rows.d_padded, vp = rows.v_padded;
  const Lie k_lie{p.k_token, p.k_head, p.k_block, p.k_chunk, p.block_size};
  const Lie r_lie{p.k_rope_token, p.k_rope_head, p.k_rope_block, p.k_rope_chunk, p.block_size};
  const Lie v_lie{p.v_token, p.v_head, p.v_block, p.v_chunk, p.block_size};
  float* q = scratch.get(d * wide + kKeyTile * (wide + dp + vp) + count * vp + 6 * wide + dp + 64);
  float* scores = q + d * wide;  // [key][row]
  float* wide_k = scores + kKeyTile * wide;
  float* wide_v = wide_k + kKeyTile * dp;
  float* out = wide_v + kKeyTile * vp;  // [row][d_v]
  float* m_all = out + count * vp;
  float* l_all = m_all + wide;
  float* alpha = l_all + wide;
  float* low = alpha + wide;
  float* high = low + wide;
  float* shift = high + wide;
  float* line = shift + wide;
  memset(q, 0, static_cast<size_t>(d * wide) * sizeof(float));
  for (int64_t r = 0; r < count; ++r) {
    const T* from = static_cast<const T*>(rows.s.q) + rows.token(r) * p.q_token + rows.head(r) * p.q_head;
    widen(from, p.d, 16, line, p.d);
    if (p.d_rope)
      widen(static_cast<const T*>(rows.s.q_rope) + rows.token(r) * p.q_rope_token + rows.head(r) * p.q_rope_head,
            p.d_rope, 16, line + p.d, p.d_rope);
    for (int64_t i = 0; i < d; ++i) q[i * wide + r] = line[i] * p.scale;
    shift[r] = scale_query(p, t.kv_head, q + r, wide);
  }
  for (int64_t r = 0; r < wide; ++r) {
    m_all[r] = kMinusInf;
    l_all[r] = 0.f;
  }
  memset(out, 0, static_cast<size_t>(count * vp) * sizeof(float));
  const K* keys[kKeyTile];
  float scales[kKeyTile];
  const int64_t first = rows.token(0), last = rows.token(count - 1);
  for (int64_t key = rows.begin; key < rows.end; key += kKeyTile) {
    const int64_t n = rows.end - key < kKeyTile ? rows.end - key : kKeyTile;
    find_rows(rows.s.k, rows.s.blocks, k_lie, t.kv_head, key, n, keys);
    for (int64_t j = 0; j < n; ++j) widen(keys[j], p.d, p.k_chunk, wide_k + j * dp, p.d);
    if (p.d_rope) {
      find_rows(rows.s.k_rope, rows.s.blocks, r_lie, t.kv_head, key, n, keys);
      for (int64_t j = 0; j < n; ++j) widen(keys[j], p.d_rope, p.k_rope_chunk, wide_k + j * dp + p.d, p.d_rope);
    }
    gemm_all<false>(n, wide, d, wide_k, dp, 1, q, wide, scores, wide, false);
    if (p.k_exponents) {
      exponent_scales(p, rows.s, p.k_exponents, key, n, 8, scales);
      for (int64_t j = 0; j < n; ++j)
        for (int64_t r = 0; r < wide; r += W)
          store(scores + j * wide + r, mul(load(scores + j * wide + r), set1(scales[j])));
    }
    if (p.k_offset)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t r = 0; r < count; ++r) scores[j * wide + r] += shift[r];
    if (rows.s.pse)
      for (int64_t r = 0; r < count; ++r)
        for (int64_t j = 0; j < n; ++j) scores[j * wide + r] += pse_at(p, rows.s, rows.head(r), rows.token(r), key + j);
    if (p.soft_cap > 0.f)
      for (int64_t i = 0; i < n * wide; i += W)
        store(scores + i, soft_cap_vector(load(scores + i), set1(p.soft_cap), set1(1.f / p.soft_cap)));
    const bool all_visible = key >= last + rows.s.low && key + n - 1 <= rows.highest(first);
    if (!all_visible) {
      for (int64_t r = 0; r < wide; ++r) {
        const int64_t token = rows.token(r < count ? r : count - 1);
        const int64_t from = token + rows.s.low - key, to = rows.highest(token) - key;
        low[r] = static_cast<float>(from < 0 ? 0 : (from > kKeyTile ? kKeyTile : from));
        high[r] = static_cast<float>(to < -1 ? -1 : (to > kKeyTile ? kKeyTile : to));
      }
      for (int64_t j = 0; j < n; ++j) {
        const V at = set1(static_cast<float>(j)), hidden = set1(kMinusInf);
        for (int64_t r = 0; r < wide; r += W) {
          V s = load(scores + j * wide + r);
          s = pick_ge(at, load(low + r), s, hidden);
          store(scores + j * wide + r, pick_ge(load(high + r), at, s, hidden));
        }
      }
    }
    if (rows.s.mask)
      for (int64_t r = 0; r < count; ++r) {
        const uint8_t* mask = rows.s.mask + rows.head(r) * p.mask_head + rows.token(r) * p.mask_token + key;
        for (int64_t j = 0; j < n; ++j)
          if (mask[j]) scores[j * wide + r] = kMinusInf;
      }
    for (int64_t r = 0; r < wide; r += W) {
      float* s = scores + r;
      V top = load(m_all + r);
      const V before = top;
      for (int64_t j = 0; j < n; ++j) top = maximum(top, load(s + j * wide));
      const V lowest = set1(-3.402823466e38f);
      const V safe = pick_ge(top, lowest, top, set1(0.f));
      V total = set1(0.f);
      for (int64_t j = 0; j < n; ++j) {
        const V e = exp_vector(sub(load(s + j * wide), safe));
        total = add(total, e);
        store(s + j * wide, e);
      }
      const V shrink = exp_vector(sub(before, safe));
      store(alpha + r, shrink);
      store(l_all + r, fma(load(l_all + r), shrink, total));
      store(m_all + r, top);
    }
    if (key != rows.begin)
      for (int64_t r = 0; r < count; ++r)
        if (alpha[r] != 1.f)
          for (int64_t i = 0; i < vp; i += W) store(out + r * vp + i, mul(load(out + r * vp + i), set1(alpha[r])));
    if (rows.drop())
      for (int64_t r = 0; r < count; ++r)
        for (int64_t j = 0; j < n; ++j)
          scores[j * wide + r] = rows.keeps(r, key + j) ? scores[j * wide + r] / p.keep_prob : 0.f;
    if (p.v_exponents) {
      exponent_scales(p, rows.s, p.v_exponents, key, n, 8, scales);
      for (int64_t j = 0; j < n; ++j)
        for (int64_t r = 0; r < wide; r += W)
          store(scores + j * wide + r, mul(load(scores + j * wide + r), set1(scales[j])));
    }
    find_rows(rows.s.v, rows.s.blocks, v_lie, t.kv_head, key, n, keys);
    for (int64_t j = 0; j < n; ++j) widen(keys[j], p.d_v, p.v_chunk, wide_v + j * vp, vp);
    gemm_all<true>(count, vp, n, scores, 1, wide, wide_v, vp, out, vp, true);
  }
  for (int64_t r = 0; r < count; ++r) hand_over<T>(rows, r, out + r * vp, m_all[r], l_all[r]);
}

// ---- entries ---------------------------------------------------------------------------------------------------

template <class T, class K>
void run_types(const AttentionProblem& p, const AttentionTask& t) {
  static thread_local Scratch scratch;
  const AttentionSequence& s = p.sequences[t.sequence];
  if (s.q_len * (p.heads / p.kv_heads) <= kDotRows)
    run_dots<T, K>(p, t, scratch);
  else
    run_block<T, K>(p, t, scratch);
}

template <class T>
void run_type(const AttentionProblem& p, const AttentionTask& t) {
  if (p.kv == AttentionKv::Int8) return run_types<T, int8_t>(p, t);
  if (p.kv == AttentionKv::Fp8) return run_types<T, f8>(p, t);
  if (p.kv == AttentionKv::F32) return run_types<T, float>(p, t);
  run_types<T, T>(p, t);
}

void run(const AttentionProblem& p, const AttentionTask& t, const AttentionTask*) {
  if (p.type == AttentionType::F32) return run_type<float>(p, t);
  if (p.type == AttentionType::F16) return run_type<f16>(p, t);
  run_type<bf16>(p, t);
}
