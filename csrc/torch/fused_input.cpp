#include "torch/fused_input.h"

#include <algorithm>

namespace aloft::fused {
namespace {

// A cache [blocks, block_size, heads, d], rows of d contiguous.
PagedRows cache_rows(const char* name, const at::Tensor& cache, const at::Tensor& like) {
  TORCH_CHECK_VALUE(cache.dim() == 4 && cache.size(2) > 0 && cache.size(3) > 0, InputStage::kName, ": ", name,
                    " has the shape ", cache.sizes(), "; it must be [blocks, block_size, num_kv_heads, head_dim]");
  TORCH_CHECK_VALUE(cache.scalar_type() == like.scalar_type(), InputStage::kName, ": ", name,
                    " must have the dtype of hidden, ", like.scalar_type(), ", got ", cache.scalar_type());
  TORCH_CHECK_VALUE(cache.size(3) == 1 || cache.stride(3) == 1, InputStage::kName, ": the last dimension of ", name,
                    " must be contiguous");
  PagedRows rows;
  if (cache.device().type() != c10::DeviceType::Meta) rows.data = cache.data_ptr();
  rows.block = cache.stride(0), rows.token = cache.stride(1), rows.head = cache.stride(2);
  return rows;
}

void check_table(const char* name, const at::Tensor& table, const at::Tensor& hidden, int64_t width) {
  TORCH_CHECK_VALUE(table.scalar_type() == hidden.scalar_type(), InputStage::kName, ": ", name,
                    " must have the dtype of hidden, ", hidden.scalar_type(), ", got ", table.scalar_type());
  TORCH_CHECK_VALUE((table.dim() == 2 || (table.dim() == 3 && table.size(1) == 1)) && table.size(0) == hidden.size(0) &&
                        2 * table.size(-1) <= width && (table.size(-1) <= 1 || table.stride(-1) == 1),
                    InputStage::kName, ": ", name, " must be [", hidden.size(0), ", 1, at most half of head_dim ",
                    width, "] with contiguous rows, got ", table.sizes());
}

}  // namespace

InputStage::InputStage(const InputArguments& a) {
  check_dtype(kName, "hidden", a.hidden);
  TORCH_CHECK_VALUE(a.hidden.dim() == 2, kName, ": hidden must be [tokens, width], got ", a.hidden.sizes());
  tokens_ = a.hidden.size(0), hidden_ = a.hidden.size(1);
  check_rows(kName, "hidden", a.hidden, a.hidden, tokens_, hidden_);
  if (given(a.residual)) check_rows(kName, "residual", *a.residual, a.hidden, tokens_, hidden_);
  check_vector(kName, "norm_weight", a.norm_weight, a.hidden, hidden_);
  QkvArgs& q = finish_;
  q.key = cache_rows("key_cache", a.key_cache, a.hidden), q.value = cache_rows("value_cache", a.value_cache, a.hidden);
  TORCH_CHECK_VALUE(a.key_cache.sizes() == a.value_cache.sizes(), kName, ": value_cache ", a.value_cache.sizes(),
                    " must have the shape of key_cache ", a.key_cache.sizes());
  q.dtype = dtype_of(a.hidden);
  q.tokens = tokens_, q.heads = a.num_heads, q.kv_heads = a.key_cache.size(2), q.d = a.key_cache.size(3);
  q.block_size = a.key_cache.size(1);
  slots_ = a.key_cache.size(0) * q.block_size;
  TORCH_CHECK_VALUE(q.heads > 0, kName, ": num_heads must be positive, got ", q.heads);
  width_ = (q.heads + 2 * q.kv_heads) * q.d;
  qkv_ = Projection(kName, "qkv_weight", a.qkv_weight, a.qkv_bias, a.qkv, a.hidden, hidden_, width_);
  check_table("cos", a.cos, a.hidden, q.d), check_table("sin", a.sin, a.hidden, q.d);
  TORCH_CHECK_VALUE(a.cos.size(-1) == a.sin.size(-1), kName, ": cos ", a.cos.sizes(), " and sin ", a.sin.sizes(),
                    " differ");
  q.d_rotary = 2 * a.cos.size(-1), q.cos_stride = a.cos.stride(0), q.sin_stride = a.sin.stride(0);
  q.interleaved = a.interleaved;
  TORCH_CHECK_VALUE(a.slot_mapping.dim() == 1 && a.slot_mapping.size(0) == tokens_ &&
                        (a.slot_mapping.scalar_type() == at::kInt || a.slot_mapping.scalar_type() == at::kLong) &&
                        a.slot_mapping.is_contiguous(),
                    kName, ": slot_mapping must be contiguous int32 or int64 [", tokens_, "], got ",
                    a.slot_mapping.scalar_type(), " ", a.slot_mapping.sizes());
  q.slot_dtype = a.slot_mapping.scalar_type() == at::kInt ? DType::I32 : DType::I64;
  q.epsilon = static_cast<float>(a.qk_norm_eps);
  if (given(a.q_norm_weight)) check_vector(kName, "q_norm_weight", *a.q_norm_weight, a.hidden, q.d);
  if (given(a.k_norm_weight)) check_vector(kName, "k_norm_weight", *a.k_norm_weight, a.hidden, q.d);
  rows_ = rows_at_a_time(kName, tokens_, a.block_rows);
  norm_.cols = norm_.x_stride = hidden_;
  norm_.dtype = norm_.gamma_dtype = q.dtype;
  norm_.epsilon = static_cast<float>(a.norm_eps);
  if (a.hidden.device().type() == c10::DeviceType::Meta) return;
  norm_.x = a.hidden.const_data_ptr(), norm_.gamma = a.norm_weight.const_data_ptr();
  if (given(a.residual)) norm_.residual = a.residual->const_data_ptr();
  q.cos = a.cos.const_data_ptr(), q.sin = a.sin.const_data_ptr(), q.slots = a.slot_mapping.const_data_ptr();
  if (given(a.q_norm_weight)) q.q_norm = a.q_norm_weight->const_data_ptr();
  if (given(a.k_norm_weight)) q.k_norm = a.k_norm_weight->const_data_ptr();
}

size_t InputStage::scratch_bytes() const {
  return padded_bytes(rows_ * hidden_, norm_.dtype) + padded_bytes(rows_ * width_, norm_.dtype) +
         qkv_.input_bytes(rows_);
}

void InputStage::put(const at::Tensor& query, const at::Tensor& residual, void* scratch) {
  norm_.y = scratch;
  norm_.sum = norm_.residual ? residual.data_ptr() : nullptr;
  finish_.qkv = static_cast<char*>(scratch) + padded_bytes(rows_ * hidden_, norm_.dtype);
  input_ = static_cast<char*>(finish_.qkv) + padded_bytes(rows_ * width_, norm_.dtype);
  finish_.query = query.data_ptr();
}

aclError InputStage::operator()() const {
  for (int64_t t = 0; t < tokens_; ++t) {
    const int64_t slot = finish_.slot_dtype == DType::I32 ? static_cast<const int32_t*>(finish_.slots)[t]
                                                          : static_cast<const int64_t*>(finish_.slots)[t];
    if (slot < slots_) continue;
    aloftSetError("%s: slot_mapping[%lld] is %lld, the cache has %lld slots", kName, static_cast<long long>(t),
                  static_cast<long long>(slot), static_cast<long long>(slots_));
    return kRtInvalidParam;
  }
  const DType dtype = norm_.dtype;
  for (int64_t t = 0; t < tokens_; t += rows_) {
    RmsNormArgs norm = norm_;
    QkvArgs finish = finish_;
    norm.rows = finish.tokens = std::min(rows_, tokens_ - t);
    norm.x = shifted(norm_.x, t * hidden_, dtype);
    if (norm.residual) {
      norm.residual = shifted(norm_.residual, t * hidden_, dtype);
      norm.sum = shifted(norm_.sum, t * hidden_, dtype);
    }
    norm_into(norm, qkv_, input_);
    qkv_(norm.rows, norm.y, input_, finish.qkv);
    finish.cos = shifted(finish_.cos, t * finish_.cos_stride, dtype);
    finish.sin = shifted(finish_.sin, t * finish_.sin_stride, dtype);
    finish.query = shifted(finish_.query, t * finish_.heads * finish_.d, dtype);
    finish.slots = static_cast<const char*>(finish_.slots) + t * (finish_.slot_dtype == DType::I32 ? 4 : 8);
    finish_qkv(finish);
  }
  return kOk;
}

}  // namespace aloft::fused
