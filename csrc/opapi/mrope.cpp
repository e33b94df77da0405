// Rotary embedding by position from a cos/sin cache, with the sections of multimodal models.
#include <cstring>

#include "kernels/convert.h"
#include "kernels/rotary.h"
#include "opapi/op.h"

namespace aloft {
namespace {

// Row of `positions` that gives entry i of the half table.
std::vector<int> section_rows(const std::vector<int64_t>& section, int64_t half, bool interleaved) {
  std::vector<int> rows(static_cast<size_t>(half), 0);
  if (!interleaved) {
    size_t i = 0;
    for (size_t k = 0; k < section.size(); ++k) {
      for (int64_t n = 0; n < section[k]; ++n) rows[i++] = static_cast<int>(k);
    }
    return rows;
  }
  const int64_t bound = 3 * section[1];  // the documentation bounds both rows with section[1]
  for (int64_t i = 0; i < bound && i < half; ++i) rows[static_cast<size_t>(i)] = static_cast<int>(i % 3);
  return rows;
}

void rotate_heads(const Tensor& x, const Tensor& y, const std::vector<float>& cos, const std::vector<float>& sin,
                  int64_t head_size, int64_t rotary_dim, bool adjacent) {
  Dense from(x, Dense::Read), to(y, Dense::Write);
  RotaryArgs a;
  a.dtype = x.dtype;
  a.input = a.output = adjacent ? Pairs::Adjacent : Pairs::Halves;
  a.table = Pairs::Shared;
  a.ndim = 2;
  a.sizes[0] = x.size(0), a.sizes[1] = x.size(1) / head_size;
  a.x_strides[0] = a.y_strides[0] = x.size(1);
  a.x_strides[1] = a.y_strides[1] = head_size;
  a.cos_strides[0] = a.sin_strides[0] = rotary_dim / 2;
  a.width = rotary_dim, a.tail = head_size - rotary_dim;
  a.x = from.data(), a.y = to.data(), a.cos = cos.data(), a.sin = sin.data();
  rotary(a);
  to.commit();
}

// cache_mode: 0 "default", 1 "interleave".
Work plan_mrope(const aclTensor* positions, const aclTensor* query, const aclTensor* key, const aclTensor* cache,
                const aclIntArray* sections, int64_t head_size, bool neox, int64_t cache_mode,
                const aclTensor* query_out, const aclTensor* key_out) {
  const Tensor P = in("positions", positions), Q = in("query", query), K = in("key", key);
  const Tensor Cache = in("cos_sin_cache", cache), QO = out("query_out", query_out), KO = out("key_out", key_out);
  require(Q.dtype == DType::F32 || Q.dtype == DType::F16 || Q.dtype == DType::BF16,
          "query must be float16, bfloat16 or float32, got %s", dtype_name(Q.dtype));
  require(K.dtype == Q.dtype, "key must have the dtype of query (%s), got %s", dtype_name(Q.dtype),
          dtype_name(K.dtype));
  require(Cache.dtype == Q.dtype || Cache.dtype == DType::F32,
          "cos_sin_cache must have the dtype of query (%s), got %s", dtype_name(Q.dtype), dtype_name(Cache.dtype));
  limit(Cache.dtype == Q.dtype, "cos_sin_cache is %s, it must have the dtype of query (%s)", dtype_name(Cache.dtype),
        dtype_name(Q.dtype));
  require(P.dtype == DType::I32 || P.dtype == DType::I64, "positions must be int32 or int64, got %s",
          dtype_name(P.dtype));
  require(Q.ndim == 2 && K.ndim == 2,
          "query and key must be [tokens, heads * head_size], they have %d and %d dimensions", Q.ndim, K.ndim);
  require(Cache.ndim == 2, "cos_sin_cache must be [positions, rotary_dim], it has %d dimensions", Cache.ndim);
  const int64_t tokens = Q.size(0), rotary_dim = Cache.size(1);
  require(K.size(0) == tokens, "key has %lld tokens, query has %lld", static_cast<long long>(K.size(0)),
          static_cast<long long>(tokens));
  require(head_size > 0 && Q.size(1) % head_size == 0 && K.size(1) % head_size == 0,
          "head_size is %lld, the widths of query (%lld) and key (%lld) must be multiples of it",
          static_cast<long long>(head_size), static_cast<long long>(Q.size(1)), static_cast<long long>(K.size(1)));
  require(rotary_dim % 2 == 0 && rotary_dim <= head_size,
          "rotary_dim (the width of cos_sin_cache) is %lld, it must be even and at most head_size (%lld)",
          static_cast<long long>(rotary_dim), static_cast<long long>(head_size));
  const int64_t multiple = Q.dtype == DType::F32 ? 16 : 32;
  limit(head_size % multiple == 0 && rotary_dim % multiple == 0,
        "head_size (%lld) and rotary_dim (%lld) must be multiples of %lld", static_cast<long long>(head_size),
        static_cast<long long>(rotary_dim), static_cast<long long>(multiple));
  ALOFT_REQUIRE(QO.dtype == Q.dtype && QO.same_shape(Q) && KO.dtype == K.dtype && KO.same_shape(K),
                "query_out and key_out must be like query %s and key %s", Q.shape_text().c_str(),
                K.shape_text().c_str());
  // With one position a token the sections say nothing, and torch_npu's adapter passes uninitialised numbers
  // for mrope_section=None.
  std::vector<int64_t> section = sections && P.ndim > 1 ? sections->values : std::vector<int64_t>();
  int64_t total = 0;
  for (const int64_t part : section) {
    require(part >= 0, "mrope_section holds a negative number");
    total += part;
  }
  if (!total) section.clear();
  require(cache_mode == 0 || cache_mode == 1, "cache_mode is %lld, it must be 0 (default) or 1 (interleave)",
          static_cast<long long>(cache_mode));
  if (section.empty()) {
    ALOFT_REQUIRE(P.numel() == tokens, "positions must hold one value for each of the %lld tokens, its shape is %s",
                  static_cast<long long>(tokens), P.shape_text().c_str());
  } else {
    require(total == rotary_dim / 2, "mrope_section adds up to %lld, it must be rotary_dim / 2 = %lld",
            static_cast<long long>(total), static_cast<long long>(rotary_dim / 2));
    require(cache_mode == 0 || section.size() == 3, "cache_mode interleave needs 3 sections, mrope_section has %zu",
            section.size());
    ALOFT_REQUIRE(P.ndim == 2 && P.size(0) == static_cast<int64_t>(section.size()) && P.size(1) == tokens,
                  "positions must be [%zu, %lld] for this mrope_section, its shape is %s", section.size(),
                  static_cast<long long>(tokens), P.shape_text().c_str());
  }
  if (!tokens) return nullptr;
  return [=] {
    const int64_t half = rotary_dim / 2, rows = P.numel() / tokens, count = Cache.size(0);
    Dense table(Cache, Dense::Read), places(P, Dense::Read);
    std::vector<int64_t> position(static_cast<size_t>(P.numel()));
    convert(places.data(), P.dtype, position.data(), DType::I64, P.numel());
    for (const int64_t p : position) {
      require(p >= 0 && p < count, "positions holds %lld, cos_sin_cache has %lld rows", static_cast<long long>(p),
              static_cast<long long>(count));
    }
    const std::vector<int> pick = section.empty() ? std::vector<int>() : section_rows(section, half, cache_mode == 1);
    std::vector<float> cos(static_cast<size_t>(tokens * half)), sin(cos.size()), line(static_cast<size_t>(rotary_dim));
    const int64_t item = static_cast<int64_t>(dtype_size(Cache.dtype)) * rotary_dim;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t p = position[static_cast<size_t>(row * tokens + t)];
        convert(static_cast<const char*>(table.data()) + p * item, Cache.dtype, line.data(), DType::F32, rotary_dim);
        for (int64_t i = 0; i < half; ++i) {
          if (!pick.empty() && pick[static_cast<size_t>(i)] != row) continue;
          cos[static_cast<size_t>(t * half + i)] = line[static_cast<size_t>(i)];
          sin[static_cast<size_t>(t * half + i)] = line[static_cast<size_t>(half + i)];
        }
      }
    }
    if (Q.numel()) rotate_heads(Q, QO, cos, sin, head_size, rotary_dim, !neox);
    if (K.numel()) rotate_heads(K, KO, cos, sin, head_size, rotary_dim, !neox);
  };
}

}  // namespace

ALOFT_ACLNN(RopeWithSinCosCache,
            (const aclTensor* positions, const aclTensor* query, const aclTensor* key, const aclTensor* cache,
             const aclIntArray* sections, int64_t head_size, bool neox, const aclTensor* query_out,
             const aclTensor* key_out),
            (positions, query, key, cache, sections, head_size, neox, query_out, key_out)) {
  return plan_mrope(positions, query, key, cache, sections, head_size, neox, 0, query_out, key_out);
}

ALOFT_ACLNN(RopeWithSinCosCacheV2,
            (const aclTensor* positions, const aclTensor* query, const aclTensor* key, const aclTensor* cache,
             const aclIntArray* sections, int64_t head_size, bool neox, int64_t cache_mode, const aclTensor* query_out,
             const aclTensor* key_out),
            (positions, query, key, cache, sections, head_size, neox, cache_mode, query_out, key_out)) {
  return plan_mrope(positions, query, key, cache, sections, head_size, neox, cache_mode, query_out, key_out);
}

}  // namespace aloft
