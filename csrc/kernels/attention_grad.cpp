// Backward of attention: the weights are computed again from the scores and the row statistics of the forward.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/attention_tile.h"
#include "kernels/half.h"
#include "kernels/parallel.h"

namespace aloft {
namespace {

constexpr int64_t kRows = 64;

template <class T>
void widen(const void* from, int64_t n, float* to) {
  const T* row = static_cast<const T*>(from);
  for (int64_t i = 0; i < n; ++i) to[i] = to_float(row[i]);
}
template <class T>
void narrow(const float* from, int64_t n, float factor, void* to) {
  T* row = static_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) row[i] = from_float<T>(from[i] * factor);
}
template <class T>
const void* at(const void* base, int64_t offset) {
  return static_cast<const T*>(base) + offset;
}
template <class T>
void* at(void* base, int64_t offset) {
  return static_cast<T*>(base) + offset;
}

float bias_at(const AttentionProblem& p, const void* pse, int64_t offset) {
  const float bias = p.pse_type == AttentionType::F32   ? static_cast<const float*>(pse)[offset]
                     : p.pse_type == AttentionType::F16 ? to_float(static_cast<const f16*>(pse)[offset])
                                                        : to_float(static_cast<const bf16*>(pse)[offset]);
  return p.pse_before_scale ? bias * p.scale : bias;
}

void transpose(const float* from, int64_t rows, int64_t columns, int64_t row_size, float* to, int64_t to_row) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) to[c * to_row + r] = from[r * row_size + c];
    for (int64_t r = rows; r < to_row; ++r) to[c * to_row + r] = 0.f;
  }
}

// All queries of one key-value head of one sequence: it owns its dq, dk and dv rows.
template <class T>
class HeadGrad {
 public:
  HeadGrad(const AttentionProblem& p, const AttentionGrad& g, int64_t sequence, int64_t kv_head, float* dsinks)
      : p_(p),
        g_(g),
        s_(p.sequences[sequence]),
        gs_(g.sequences[sequence]),
        kernels_(attention_kernels()),
        kv_head_(kv_head),
        group_(p.heads / p.kv_heads),
        d_(attention_pad(p.d + p.d_rope, 16)),
        dv_(attention_pad(p.d_v, 16)),
        dsinks_(dsinks) {}

  void run() {
    const int64_t keys = attention_pad(std::max<int64_t>(s_.kv_len, 1), kKeyTile);
    dk_.assign(static_cast<size_t>(keys * d_), 0.f);
    dvalues_.assign(static_cast<size_t>(keys * dv_), 0.f);
    for (std::vector<float>* v : {&q_, &q_turned_, &dq_}) v->assign(static_cast<size_t>(kRows * d_), 0.f);
    for (std::vector<float>* v : {&d_out_, &d_out_turned_}) v->assign(static_cast<size_t>(kRows * dv_), 0.f);
    k_.assign(static_cast<size_t>(kKeyTile * d_), 0.f);
    v_.assign(static_cast<size_t>(kKeyTile * dv_), 0.f);
    line_.assign(static_cast<size_t>(std::max(d_, dv_)), 0.f);
    for (std::vector<float>* v : {&weights_, &scores_, &d_weights_}) v->assign(kKeyTile * kRows, 0.f);
    const int64_t rows = s_.q_len * group_;
    for (int64_t row0 = 0; row0 < rows; row0 += kRows) block(row0, std::min(kRows, rows - row0));
    for (int64_t j = 0; j < s_.kv_len; ++j) {
      const float* dk = dk_.data() + j * d_;
      narrow<T>(dk, p_.d, 1.f, at<T>(gs_.dk, j * g_.dk_token + kv_head_ * g_.dk_head));
      if (p_.d_rope)
        narrow<T>(dk + p_.d, p_.d_rope, 1.f, at<T>(gs_.dk_rope, j * g_.dk_rope_token + kv_head_ * g_.dk_rope_head));
      narrow<T>(dvalues_.data() + j * dv_, p_.d_v, 1.f, at<T>(gs_.dv, j * g_.dv_token + kv_head_ * g_.dv_head));
    }
  }

 private:
  int64_t token(int64_t row) const { return row / group_; }
  int64_t head(int64_t row) const { return kv_head_ * group_ + row % group_; }
  bool hidden(int64_t token, int64_t head, int64_t key) const {
    if (key < token + s_.low || key > std::max(token + s_.high, s_.prefix - 1)) return true;
    return s_.mask && s_.mask[head * p_.mask_head + token * p_.mask_token + key];
  }

  void read_block(int64_t row0, int64_t n) {
    std::fill(q_.begin(), q_.end(), 0.f);
    std::fill(d_out_.begin(), d_out_.end(), 0.f);
    std::fill(dq_.begin(), dq_.end(), 0.f);
    for (int64_t r = 0; r < n; ++r) {
      const int64_t t = token(row0 + r), h = head(row0 + r);
      float* q = q_.data() + r * d_;
      widen<T>(at<T>(s_.q, t * p_.q_token + h * p_.q_head), p_.d, q);
      if (p_.d_rope) widen<T>(at<T>(s_.q_rope, t * p_.q_rope_token + h * p_.q_rope_head), p_.d_rope, q + p_.d);
      for (int64_t i = 0; i < p_.d + p_.d_rope; ++i) q[i] *= p_.scale;
      float* d_out = d_out_.data() + r * dv_;
      widen<T>(at<T>(gs_.d_out, t * g_.d_out_token + h * g_.d_out_head), p_.d_v, d_out);
      widen<T>(at<T>(static_cast<const void*>(s_.out), t * p_.out_token + h * p_.out_head), p_.d_v, line_.data());
      float delta = 0.f;
      for (int64_t i = 0; i < p_.d_v; ++i) delta += d_out[i] * line_[static_cast<size_t>(i)];
      delta_[r] = delta;
      max_[r] = s_.softmax_max[t * s_.stat_token + h * s_.stat_head];
      const float sum = s_.softmax_sum[t * s_.stat_token + h * s_.stat_head];
      inverse_[r] = sum != 0.f ? 1.f / sum : 0.f;
      if (dsinks_) dsinks_[h] -= std::exp(p_.sinks[h] - max_[r]) * inverse_[r] * delta;
    }
    transpose(q_.data(), kRows, d_, d_, q_turned_.data(), kRows);
    transpose(d_out_.data(), kRows, dv_, dv_, d_out_turned_.data(), kRows);
  }

  void read_keys(int64_t key0, int64_t n) {
    for (int64_t j = 0; j < n; ++j) {
      float* k = k_.data() + j * d_;
      widen<T>(at<T>(s_.k, (key0 + j) * p_.k_token + kv_head_ * p_.k_head), p_.d, k);
      if (p_.d_rope)
        widen<T>(at<T>(s_.k_rope, (key0 + j) * p_.k_rope_token + kv_head_ * p_.k_rope_head), p_.d_rope, k + p_.d);
      widen<T>(at<T>(s_.v, (key0 + j) * p_.v_token + kv_head_ * p_.v_head), p_.d_v, v_.data() + j * dv_);
    }
  }

  void block(int64_t row0, int64_t n) {
    read_block(row0, n);
    const int64_t first = token(row0), last = token(row0 + n - 1);
    const int64_t begin = std::max<int64_t>(0, first + s_.low) / kKeyTile * kKeyTile;
    const int64_t end = std::min(s_.kv_len, std::max(last + s_.high, s_.prefix - 1) + 1);
    for (int64_t key0 = begin; key0 < end; key0 += kKeyTile) {
      const int64_t keys = std::min(kKeyTile, s_.kv_len - key0);
      read_keys(key0, keys);
      // Everything [key][row].
      kernels_.gemm(keys, kRows, d_, k_.data(), d_, 1, q_turned_.data(), kRows, scores_.data(), kRows, false);
      kernels_.gemm(keys, kRows, dv_, v_.data(), dv_, 1, d_out_turned_.data(), kRows, d_weights_.data(), kRows, false);
      for (int64_t j = 0; j < keys; ++j) {
        float* scores = scores_.data() + j * kRows;
        for (int64_t r = 0; r < n; ++r) {
          if (s_.pse)
            scores[r] += bias_at(p_, s_.pse, head(row0 + r) * p_.pse_head + token(row0 + r) * p_.pse_token + key0 + j);
          scores[r] -= max_[r];
        }
      }
      kernels_.exp(keys * kRows, scores_.data(), weights_.data());
      for (int64_t j = 0; j < keys; ++j) weigh(row0, n, key0, j);
      kernels_.gemm(keys, dv_, n, weights_.data(), kRows, 1, d_out_.data(), dv_, dvalues_.data() + key0 * dv_, dv_,
                    true);
      kernels_.gemm(keys, d_, n, scores_.data(), kRows, 1, q_.data(), d_, dk_.data() + key0 * d_, d_, true);
      kernels_.gemm(n, d_, keys, scores_.data(), 1, kRows, k_.data(), d_, dq_.data(), d_, true);
    }
    for (int64_t r = 0; r < n; ++r) {
      const int64_t t = token(row0 + r), h = head(row0 + r);
      const float* dq = dq_.data() + r * d_;
      narrow<T>(dq, p_.d, p_.scale, at<T>(gs_.dq, t * g_.dq_token + h * g_.dq_head));
      if (p_.d_rope)
        narrow<T>(dq + p_.d, p_.d_rope, p_.scale, at<T>(gs_.dq_rope, t * g_.dq_rope_token + h * g_.dq_rope_head));
    }
  }

  // Row j of the tile: weights become what multiplied the values, scores the gradient of the scores.
  void weigh(int64_t row0, int64_t n, int64_t key0, int64_t j) {
    float* weights = weights_.data() + j * kRows;
    float* d_scores = scores_.data() + j * kRows;
    const float* d_weights = d_weights_.data() + j * kRows;
    for (int64_t r = 0; r < n; ++r) {
      const int64_t t = token(row0 + r), h = head(row0 + r);
      if (hidden(t, h, key0 + j)) {
        weights[r] = d_scores[r] = 0.f;
        continue;
      }
      const float weight = weights[r] * inverse_[r];
      float kept = 1.f;
      if (p_.drop_mask) {
        const int64_t bit = s_.drop_bit + (h * s_.q_len + t) * s_.kv_len + key0 + j;
        kept = (p_.drop_mask[bit >> 3] >> (bit & 7)) & 1 ? 1.f / p_.keep_prob : 0.f;
      }
      weights[r] = weight * kept;
      d_scores[r] = weight * (d_weights[r] * kept - delta_[r]);
      if (gs_.dpse)
        gs_.dpse[h * p_.pse_head + t * p_.pse_token + key0 + j] += d_scores[r] * (p_.pse_before_scale ? p_.scale : 1.f);
    }
    for (int64_t r = n; r < kRows; ++r) weights[r] = d_scores[r] = 0.f;
  }

  const AttentionProblem& p_;
  const AttentionGrad& g_;
  const AttentionSequence& s_;
  const AttentionGradSequence& gs_;
  const AttentionKernels& kernels_;
  const int64_t kv_head_, group_, d_, dv_;
  float* dsinks_;
  std::vector<float> q_, q_turned_, d_out_, d_out_turned_, dq_, dk_, dvalues_, k_, v_, line_, weights_, scores_,
      d_weights_;
  float max_[kRows], inverse_[kRows], delta_[kRows];
};

}  // namespace

void attention_backward(const AttentionProblem& p, const AttentionGrad& g) {
  bool shared = false;  // bias gradients may be shared by sequences: one after the other then
  for (int64_t b = 0; b < p.count; ++b) shared = shared || g.sequences[b].dpse;
  const int64_t tasks = p.count * p.kv_heads;
  std::vector<float> sinks(g.dsinks ? static_cast<size_t>(p.count * p.heads) : 0, 0.f);
  parallel_for(tasks, shared ? std::max<int64_t>(tasks, 1) : 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / p.kv_heads, h = i % p.kv_heads;
      float* dsinks = g.dsinks ? sinks.data() + b * p.heads : nullptr;
      if (p.type == AttentionType::F32)
        HeadGrad<float>(p, g, b, h, dsinks).run();
      else if (p.type == AttentionType::F16)
        HeadGrad<f16>(p, g, b, h, dsinks).run();
      else
        HeadGrad<bf16>(p, g, b, h, dsinks).run();
    }
  });
  for (int64_t h = 0; g.dsinks && h < p.heads; ++h) {
    g.dsinks[h] = 0.f;
    for (int64_t b = 0; b < p.count; ++b) g.dsinks[h] += sinks[static_cast<size_t>(b * p.heads + h)];
  }
}

}  // namespace aloft
