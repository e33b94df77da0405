#include "opapi/attention.h"

#include <algorithm>

#include "kernels/half.h"

namespace aloft {

AttentionView attention_view(const char* name, const Tensor& t, const std::string& layout, int64_t heads) {
  ALOFT_REQUIRE(t.ndim == static_cast<int>(layout.size()), "%s has the shape %s, the layout %s needs %zu dimensions",
                name, t.shape_text().c_str(), layout.c_str(), layout.size());
  AttentionView v;
  for (int i = 0; i < t.ndim; ++i) {
    const int64_t size = t.size(i), stride = t.stride(i);
    switch (layout[static_cast<size_t>(i)]) {
      case 'B':
        v.batch = size, v.batch_stride = stride;
        break;
      case 'S':
      case 'T':
        v.tokens = size, v.token_stride = stride;
        break;
      case 'N':
        v.heads = size, v.head_stride = stride;
        break;
      case 'D':
        v.d = size;
        break;
      default:  // H
        ALOFT_REQUIRE(heads > 0 && size % heads == 0, "%s has the shape %s: %lld does not split into %lld heads", name,
                      t.shape_text().c_str(), static_cast<long long>(size), static_cast<long long>(heads));
        v.heads = heads, v.d = size / heads, v.head_stride = v.d;
    }
  }
  return v;
}

AttentionType attention_type(const Tensor& t) {
  if (t.dtype == DType::F16) return AttentionType::F16;
  return t.dtype == DType::BF16 ? AttentionType::BF16 : AttentionType::F32;
}

namespace {
int64_t bounded(int64_t tokens) {
  if (tokens >= INT32_MAX) return kAttentionFar;
  return tokens <= INT32_MIN ? -kAttentionFar : tokens;
}
}  // namespace

void AttentionSparse::apply(AttentionSequence* s) const {
  const int64_t offset = s->kv_len - s->q_len;
  switch (mode) {
    case 0:
      if (bounded) s->low = -aloft::bounded(pre), s->high = aloft::bounded(next);
      break;
    case 2:
      s->high = 0;
      break;
    case 3:
      s->high = offset;
      break;
    case 4:
      s->low = offset - aloft::bounded(pre), s->high = offset + aloft::bounded(next);
      break;
    default:  // 1: the mask alone
      break;
  }
}

std::vector<int64_t> attention_lengths(const aclIntArray* values) {
  return values ? values->values : std::vector<int64_t>();
}

bool attention_mask_dtype(DType t) { return t == DType::Bool || t == DType::I8 || t == DType::U8; }

void check_compressed_mask(const Tensor& mask) {
  if (contract() != Contract::Strict) return;
  const auto* m = mask.ptr<uint8_t>();
  for (const int64_t row : {0, 1, 127, 1024, 2047}) {
    for (int64_t column = 0; column < 2048; ++column) {
      const bool hidden = m[row * mask.stride(-2) + column * mask.stride(-1)] != 0;
      if (hidden != (column > row)) {
        fail(kParamInvalid,
             "atten_mask must be the 2048x2048 upper triangle of ones above the diagonal; row %lld column %lld is %d",
             static_cast<long long>(row), static_cast<long long>(column), hidden ? 1 : 0);
      }
    }
  }
}

void store_float(const Tensor& t, int64_t offset, float v) {
  if (t.dtype == DType::F32) {
    t.ptr<float>()[offset] = v;
  } else if (t.dtype == DType::F16) {
    t.ptr<f16>()[offset] = from_float<f16>(v);
  } else {
    t.ptr<bf16>()[offset] = from_float<bf16>(v);
  }
}

std::vector<float> attention_sinks(const Tensor& sinks) {
  std::vector<float> values;
  for (int64_t i = 0; sinks && i < sinks.size(0); ++i) {
    const int64_t at = i * sinks.stride(0);
    values.push_back(sinks.dtype == DType::F32   ? sinks.ptr<float>()[at]
                     : sinks.dtype == DType::F16 ? to_float(sinks.ptr<f16>()[at])
                                                 : to_float(sinks.ptr<bf16>()[at]));
  }
  return values;
}

}  // namespace aloft
