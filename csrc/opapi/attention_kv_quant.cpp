#include "opapi/attention_kv_quant.h"

#include <algorithm>

#include "kernels/parallel.h"

namespace aloft {
namespace {

// Where the value for (sequence, head, element, key) lies in a row-major array of the mode's shape.
struct Index {
  int64_t mode, count, width;  // width: tokens of the last dimension
  KvShape shape;
  int64_t at(int64_t b, int64_t head, int64_t i, int64_t key, int64_t block, int64_t in_block) const {
    switch (mode) {
      case 1:
        return b * width + key;
      case 2:
        return head;
      case 3:
        return (b * shape.kv_heads + head) * width + key;
      case 4:
        return block * shape.block_size + in_block;
      case 5:
        return (block * shape.kv_heads + head) * shape.block_size + in_block;
      default:
        return count == 1 ? 0 : head * shape.d + i;
    }
  }
};

int64_t expected_count(const KvQuant& q, const KvShape& s, int64_t width) {
  switch (q.mode) {
    case 1:
      return s.batch * width;
    case 2:
      return s.kv_heads;
    case 3:
      return s.batch * s.kv_heads * width;
    case 4:
      return s.blocks * s.block_size;
    case 5:
      return s.blocks * s.kv_heads * s.block_size;
    default:
      return s.kv_heads * s.d;
  }
}

constexpr const char* kModes[] = {"[1] or one value for each of %lld heads and %lld elements",
                                  "[1, sequences, tokens]",
                                  "[heads]",
                                  "[sequences, heads, tokens]",
                                  "[blocks, block_size]",
                                  "[blocks, heads, block_size]"};

}  // namespace

void check_kv_quant(const char* name, const KvQuant& q, const KvShape& shape, DType query) {
  require(q.mode >= 0 && q.mode <= 5, "the antiquant mode of %s is %lld; valid: 0 to 5", name, ll(q.mode));
  require((q.mode != 4 && q.mode != 5) || shape.blocks > 0, "antiquant mode %lld of %s belongs to a paged cache",
          ll(q.mode), name);
  for (const Tensor* t : {&q.scale, &q.offset}) {
    if (!t->present) continue;
    const char* what = t == &q.scale ? "scale" : "offset";
    require(is_float(t->dtype), "the antiquant %s of %s must be float, got %s", what, name, dtype_name(t->dtype));
    if (q.by_token()) {
      limit(t->dtype == DType::F32, "the antiquant %s of %s by token must be float32, got %s", what, name,
            dtype_name(t->dtype));
    } else {
      limit(t->dtype == query || t->dtype == DType::F32, "the antiquant %s of %s must have query's dtype (%s), got %s",
            what, name, dtype_name(query), dtype_name(t->dtype));
    }
    const int64_t width = t->ndim ? t->size(-1) : 1;
    const bool ok = t->numel() == expected_count(q, shape, width) || (q.mode == 0 && t->numel() == 1);
    const bool enough = (q.mode != 1 && q.mode != 3) || width >= shape.tokens;
    ALOFT_REQUIRE(ok && enough, "the antiquant %s of %s has the shape %s; mode %lld takes %s", what, name,
                  t->shape_text().c_str(), ll(q.mode),
                  q.mode ? kModes[q.mode] : "[1], or [heads, head size] in any form");
  }
}

std::vector<float> kv_channels(const Tensor& t, const KvShape& shape) {
  if (!t) return {};
  const std::vector<float> given = float_values(t);
  std::vector<float> all(static_cast<size_t>(shape.kv_heads * shape.d));
  const size_t d = static_cast<size_t>(shape.d);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = given[given.size() == 1 ? 0 : given.size() == all.size() ? i : i / d];
  }
  return all;
}

void widen_kv(const KvQuant& key, const KvQuant& value, const KvShape& key_shape, const KvShape& value_shape,
              AttentionProblem* p, std::vector<AttentionSequence>* sequences, std::vector<float>* memory) {
  size_t total = 0;
  for (const AttentionSequence& s : *sequences) {
    total += static_cast<size_t>(s.kv_len * p->kv_heads * (p->d + p->d_v));
  }
  memory->resize(total);
  float* to = memory->data();
  for (size_t b = 0; b < sequences->size(); ++b) {
    AttentionSequence& s = (*sequences)[b];
    const auto widen = [&](const KvQuant& q, const KvShape& shape, const void* from, int64_t token, int64_t head,
                           int64_t block, float* out) {
      const std::vector<float> scale = float_values(q.scale), offset = float_values(q.offset);
      const Index place{q.mode, static_cast<int64_t>(scale.size()), q.scale.ndim ? q.scale.size(-1) : 1, shape};
      const Index zero{q.mode, static_cast<int64_t>(offset.size()), q.offset && q.offset.ndim ? q.offset.size(-1) : 1,
                       shape};
      parallel_for(s.kv_len, 16, [&](int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end; ++j) {
          const int64_t nth = s.blocks ? s.blocks[j / p->block_size] : 0, in = s.blocks ? j % p->block_size : j;
          for (int64_t h = 0; h < p->kv_heads; ++h) {
            const int8_t* row = static_cast<const int8_t*>(from) + nth * block + in * token + h * head;
            float* line = out + (j * p->kv_heads + h) * shape.d;
            for (int64_t i = 0; i < shape.d; ++i) {
              const int64_t sb = static_cast<int64_t>(b);
              const float o = offset.empty() ? 0.f : offset[static_cast<size_t>(zero.at(sb, h, i, j, nth, in))];
              line[i] = (static_cast<float>(row[i]) + o) * scale[static_cast<size_t>(place.at(sb, h, i, j, nth, in))];
            }
          }
        }
      });
    };
    widen(key, key_shape, s.k, p->k_token, p->k_head, p->k_block, to);
    s.k = to, to += s.kv_len * p->kv_heads * p->d;
    widen(value, value_shape, s.v, p->v_token, p->v_head, p->v_block, to);
    s.v = to, to += s.kv_len * p->kv_heads * p->d_v;
  }
  for (AttentionSequence& s : *sequences) s.blocks = nullptr;
  p->kv = AttentionKv::F32;
  p->k_token = p->kv_heads * p->d, p->k_head = p->d;
  p->v_token = p->kv_heads * p->d_v, p->v_head = p->d_v;
}

}  // namespace aloft
