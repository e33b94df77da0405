// What products and attention read, write and compute, told to the timing (acl/timing.cpp) while it is on.
#pragma once
#include <algorithm>
#include <utility>

#include "acl/launch.h"
#include "kernels/attention.h"
#include "kernels/matmul.h"

namespace aloft {

// Every element once; two operations a multiply-add.
inline void note_matmul(const Matmul& call) {
  note_work([&] {
    const auto size = [](const Operand& o) { return o.type == Element::F32 ? 4.0 : 2.0; };
    double batch = 1;
    for (int d = 0; d < call.batch_dims; ++d) batch *= static_cast<double>(call.batch[d]);
    const double m = static_cast<double>(call.m), n = static_cast<double>(call.n), k = static_cast<double>(call.k);
    const double bytes = m * k * size(call.a) + k * n * size(call.b) + m * n * size(call.out);
    return std::pair<double, double>(batch * bytes, batch * 2 * m * n * k);
  });
}

// Each sequence's keys and values once; what a causal mask or a window hides is not counted.
inline void note_attention(const AttentionProblem& p) {
  note_work([&] {
    double bytes = 0, pairs = 0;
    const bool narrow = p.kv == AttentionKv::Int8 || p.kv == AttentionKv::Fp8;
    const double size = p.type == AttentionType::F32 ? 4 : 2, cached = narrow ? 1 : size;
    for (int64_t i = 0; i < p.count; ++i) {
      const AttentionSequence& s = p.sequences[i];
      for (int64_t row = 0; row < s.q_len; ++row) {
        const int64_t last = std::min(s.kv_len - 1, std::max(row + s.high, s.prefix - 1));
        pairs += static_cast<double>(std::max<int64_t>(0, last - std::max<int64_t>(0, row + s.low) + 1));
      }
      bytes += cached * static_cast<double>(s.kv_len * p.kv_heads * (p.d + p.d_rope + p.d_v));
      bytes += size * static_cast<double>(s.q_len * p.heads * (p.d + p.d_rope + p.d_v));
    }
    const double operations = 2 * pairs * static_cast<double>(p.heads * (p.d + p.d_rope + p.d_v));
    return std::pair<double, double>(bytes, operations);
  });
}

}  // namespace aloft
