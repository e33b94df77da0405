// What every form of the attention kernel is made of, compiled once per instruction set inside an unnamed namespace:
// exponentials, where rows lie, what a row sees, how it ends. The including file defines: V (a vector of W floats),
// load(const T*) for float, bf16, f16, int8_t and f8, store, set1, add, sub, mul, div, fma (a * b + c), maximum,
// round_to_int, pow2 (2^n for integral n), pick_ge (a >= b ? x : y), sum, largest.
// No standard library here: an inline function shared with other files could carry these instructions there.

struct Scratch {
  float* data = nullptr;
  int64_t size = 0;
  ~Scratch() { free(data); }
  float* get(int64_t floats) {
    if (floats > size) {
      free(data);
      size = floats;
      void* memory = nullptr;
      if (posix_memalign(&memory, 64, static_cast<size_t>(floats) * sizeof(float)) != 0) abort();
      data = static_cast<float*>(memory);
    }
    return data;
  }
};

constexpr float kMinusInf = -__builtin_inff();

// e^x for x up to about 80; 0 below -87.
inline V exp_vector(V x) {
  const V n = round_to_int(mul(x, set1(1.44269504088896341f)));
  V r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  V y = set1(1.9875691500e-4f);
  y = fma(y, r, set1(1.3981999507e-3f));
  y = fma(y, r, set1(8.3334519073e-3f));
  y = fma(y, r, set1(4.1665795894e-2f));
  y = fma(y, r, set1(1.6666665459e-1f));
  y = fma(y, r, set1(5.0000001201e-1f));
  y = fma(y, mul(r, r), add(r, set1(1.f)));
  return pick_ge(set1(-87.f), x, set1(0.f), mul(y, pow2(n)));  // NaN stays NaN
}
inline float exp_scalar(float x) {
  float lanes[W];
  store(lanes, exp_vector(set1(x)));
  return lanes[0];
}
// cap * tanh(x / cap), through exp(-2|x|/cap); symmetric, absolute error about 1e-7 * cap.
inline V soft_cap_vector(V x, V cap, V inverse) {
  const V z = mul(x, inverse), zero = set1(0.f), one = set1(1.f);
  const V magnitude = maximum(z, sub(zero, z));
  const V e = exp_vector(mul(magnitude, set1(-2.f)));
  const V t = div(sub(one, e), add(one, e));
  return mul(cap, pick_ge(z, zero, t, sub(zero, t)));
}

// ---- keys and values -------------------------------------------------------------------------------------------

struct Lie {  // where the rows of one operand lie
  int64_t token, head, block, chunk, block_size;
};

template <class T>
inline void find_rows(const void* base, const int32_t* blocks, const Lie& lie, int64_t head, int64_t key, int64_t n,
                      const T** rows) {
  const T* start = static_cast<const T*>(base) + head * lie.head;
  if (!blocks) {
    for (int64_t i = 0; i < n; ++i) rows[i] = start + (key + i) * lie.token;
    return;
  }
  int64_t i = 0;
  while (i < n) {
    const int64_t block = (key + i) / lie.block_size, in_block = (key + i) % lie.block_size;
    const int64_t run = lie.block_size - in_block < n - i ? lie.block_size - in_block : n - i;
    const T* row = start + blocks[block] * lie.block + in_block * lie.token;
    for (int64_t r = 0; r < run; ++r, row += lie.token) rows[i + r] = row;
    i += run;
  }
}

// 2^(exponent + shift) of keys [key, key + n), one a token; NaN for a token that is.
inline void exponent_scales(const AttentionProblem& p, const AttentionSequence& s, const int8_t* exponents, int64_t key,
                            int64_t n, int shift, float* to) {
  int64_t i = 0;
  while (i < n) {
    const int64_t in_block = (key + i) % p.block_size;
    const int64_t run = p.block_size - in_block < n - i ? p.block_size - in_block : n - i;
    const int8_t* from = exponents + s.blocks[(key + i) / p.block_size] * p.exponent_block + in_block;
    for (int64_t r = 0; r < run; ++r) {
      const uint32_t biased = from[r] == -128 ? 0xff : static_cast<uint32_t>(from[r] + shift + 127);
      const uint32_t bits = biased << 23 | (biased == 0xff ? 0x400000 : 0);
      memcpy(to + i + r, &bits, 4);
    }
    i += run;
  }
}

template <class T>
inline void widen(const T* from, int64_t n, int64_t chunk, float* to, int64_t padded) {
  int64_t i = 0;
  if (chunk == 16) {
    for (; i + W <= n; i += W) store(to + i, load(from + i));
    for (; i < n; ++i) to[i] = to_float(from[i]);
  } else {
    for (; i < n; ++i) to[i] = to_float(from[i / 16 * chunk + i % 16]);
  }
  for (; i < padded; ++i) to[i] = 0.f;
}

// ---- what is common to both forms ------------------------------------------------------------------------------

struct Rows {  // the rows of a task: token = first + r / group
  const AttentionProblem& p;
  const AttentionTask& t;
  const AttentionSequence& s;
  const int64_t kv_head;
  int64_t group, d, d_padded, v_padded, begin, end, count;

  Rows(const AttentionProblem& problem, const AttentionTask& task, int64_t head)
      : p(problem), t(task), s(problem.sequences[task.sequence]), kv_head(head), count(task.rows) {
    group = p.heads / p.kv_heads;
    d = p.d + p.d_rope;
    d_padded = attention_pad(d, W);
    v_padded = attention_pad(p.d_v, 16);
    const int64_t first = token(0), last = token(count - 1);
    const int64_t low = first + s.low;
    begin = t.key0;
    if (low > begin) begin = low / kKeyTile * kKeyTile > begin ? low / kKeyTile * kKeyTile : begin;
    end = highest(last) + 1 < t.key1 ? highest(last) + 1 : t.key1;
  }
  int64_t token(int64_t r) const { return (t.row0 + r) / group; }
  int64_t head(int64_t r) const { return kv_head * group + (t.row0 + r) % group; }
  int64_t highest(int64_t token) const {
    const int64_t by_band = token + s.high;
    return s.prefix - 1 > by_band ? s.prefix - 1 : by_band;
  }
  bool drop() const { return p.drop_mask != nullptr; }
  bool keeps(int64_t r, int64_t key) const {
    const int64_t bit = s.drop_bit + (head(r) * s.q_len + token(r)) * s.kv_len + key;
    return (p.drop_mask[bit >> 3] >> (bit & 7)) & 1;
  }
};

inline float pse_at(const AttentionProblem& p, const AttentionSequence& s, int64_t head, int64_t token, int64_t key) {
  const int64_t at = head * p.pse_head + token * p.pse_token + key;
  const float bias = p.pse_type == AttentionType::F32   ? static_cast<const float*>(s.pse)[at]
                     : p.pse_type == AttentionType::F16 ? to_float(static_cast<const f16*>(s.pse)[at])
                                                        : to_float(static_cast<const bf16*>(s.pse)[at]);
  return p.pse_before_scale ? bias * p.scale : bias;
}

template <class T>
void finish_row(const Rows& rows, int64_t r, const float* values, float m, float l) {
  const AttentionProblem& p = rows.p;
  const AttentionSequence& s = rows.s;
  const int64_t head = rows.head(r), token = rows.token(r);
  const bool seen = l != 0.f;  // also when NaN: it has to show
  float largest_ = m, total = l, factor = seen ? 1.f / l : 0.f;
  if (p.sinks) {
    const float sink = p.sinks[head];
    largest_ = seen && m > sink ? m : sink;
    const float weight = seen ? exp_scalar(m - largest_) : 0.f;
    total = (seen ? l * weight : 0.f) + exp_scalar(sink - largest_);
    factor = weight / total;
  } else if (!seen) {
    largest_ = -3.402823466e38f;
  }
  T* out = static_cast<T*>(s.out) + token * p.out_token + head * p.out_head;
  if (p.v_scale) {
    const float *scale = p.v_scale + rows.kv_head * p.d_v,
                *offset = p.v_offset ? p.v_offset + rows.kv_head * p.d_v : nullptr;
    const float share = l * factor;  // the sum of the weights: one, less the sink's
    for (int64_t i = 0; i < p.d_v; ++i) {
      out[i] = from_float<T>((values[i] * factor + (offset ? offset[i] * share : 0.f)) * scale[i]);
    }
  } else {
    for (int64_t i = 0; i < p.d_v; ++i) out[i] = from_float<T>(values[i] * factor);
  }
  if (s.lse) s.lse[token * p.lse_token + head * p.lse_head] = seen ? m + logf(l) : p.empty_lse;
  if (s.softmax_max) {
    float* to_max = s.softmax_max + token * s.stat_token + head * s.stat_head;
    float* to_sum = s.softmax_sum + token * s.stat_token + head * s.stat_head;
    for (int i = 0; i < 8; ++i) {
      to_max[i] = largest_;
      to_sum[i] = total;
    }
  }
}

template <class T>
inline void hand_over(const Rows& rows, int64_t r, const float* values, float m, float l) {
  if (!rows.t.partial) return finish_row<T>(rows, r, values, m, l);
  const int64_t row = (rows.kv_head - rows.t.kv_head) * rows.count + r;
  float* to = rows.t.partial + row * attention_partial_row(rows.p);
  for (int64_t i = 0; i < rows.v_padded; ++i) to[i] = values[i];
  to[rows.v_padded] = m;
  to[rows.v_padded + 1] = l;
}

// ---- the end of rows whose keys were split ---------------------------------------------------------------------

[[maybe_unused]] void merge(const AttentionProblem& p, const AttentionTask& task, int64_t splits, int64_t step) {
  static thread_local Scratch scratch;
  const Rows rows(p, task, task.kv_head);
  const int64_t row_size = attention_partial_row(p), vp = rows.v_padded;
  const int64_t padded = attention_pad(splits, W);
  float *values = scratch.get(vp + padded), *weights = values + vp;
  for (int64_t r = 0; r < rows.count; ++r) {
    const float* first = task.partial + r * row_size;
    float m = kMinusInf, l = 0.f;
    for (int64_t i = 0; i < splits; ++i) {
      const float* stats = first + i * step + vp;
      weights[i] = stats[1] == 0.f ? kMinusInf : stats[0];  // a part that saw nothing
      m = weights[i] > m ? weights[i] : m;
    }
    for (int64_t i = splits; i < padded; ++i) weights[i] = kMinusInf;
    const V top = set1(m == kMinusInf ? 0.f : m);
    for (int64_t i = 0; i < padded; i += W) store(weights + i, exp_vector(sub(load(weights + i), top)));
    for (int64_t i = 0; i < splits; ++i) l += first[i * step + vp + 1] * weights[i];
    for (int64_t c = 0; c < vp; c += W) {
      V sum_ = set1(0.f);
      for (int64_t i = 0; i < splits; ++i) sum_ = fma(load(first + i * step + c), set1(weights[i]), sum_);
      store(values + c, sum_);
    }
    if (p.type == AttentionType::F32)
      finish_row<float>(rows, r, values, m, l);
    else if (p.type == AttentionType::F16)
      finish_row<f16>(rows, r, values, m, l);
    else
      finish_row<bf16>(rows, r, values, m, l);
  }
}
