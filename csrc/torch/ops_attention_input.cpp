// aloft::attention_input: from the hidden states of a decoder layer to its query, and keys and values in the cache, in
// one operator: residual, RMS norm, QKV projection, norms of query and key heads, rotary embedding, cache write. Bit
// for bit the operators it stands for, whose composite takes its place on CANN (src/aloft/ops/decoder_layer.py).
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/qkv.h"
#include "torch/fused.h"

namespace aloft {
namespace {

using fused::given;
using fused::Optional;

constexpr char kName[] = "aloft::attention_input";

struct Arguments {
  const at::Tensor& hidden;
  const Optional& residual;
  const at::Tensor& norm_weight;
  double norm_eps;
  const at::Tensor& qkv_weight;
  const Optional& qkv_bias;
  const at::Tensor &cos, &sin;
  bool interleaved;
  const at::Tensor &key_cache, &value_cache, &slot_mapping;
  int64_t num_heads;
  const Optional &q_norm_weight, &k_norm_weight;
  double qk_norm_eps;
  int64_t block_rows;
};

// A cache [blocks, block_size, heads, d], rows of d contiguous.
PagedRows cache_rows(const char* name, const at::Tensor& cache, const at::Tensor& like) {
  TORCH_CHECK_VALUE(cache.dim() == 4 && cache.size(2) > 0 && cache.size(3) > 0, kName, ": ", name, " has the shape ",
                    cache.sizes(), "; it must be [blocks, block_size, num_kv_heads, head_dim]");
  TORCH_CHECK_VALUE(cache.scalar_type() == like.scalar_type(), kName, ": ", name, " must have the dtype of hidden, ",
                    like.scalar_type(), ", got ", cache.scalar_type());
  TORCH_CHECK_VALUE(cache.size(3) == 1 || cache.stride(3) == 1, kName, ": the last dimension of ", name,
                    " must be contiguous");
  PagedRows rows;
  if (cache.device().type() != c10::DeviceType::Meta) rows.data = cache.data_ptr();
  rows.block = cache.stride(0), rows.token = cache.stride(1), rows.head = cache.stride(2);
  return rows;
}

void check_table(const char* name, const at::Tensor& table, const at::Tensor& hidden, int64_t width) {
  TORCH_CHECK_VALUE(table.scalar_type() == hidden.scalar_type(), kName, ": ", name, " must have the dtype of hidden, ",
                    hidden.scalar_type(), ", got ", table.scalar_type());
  TORCH_CHECK_VALUE((table.dim() == 2 || (table.dim() == 3 && table.size(1) == 1)) && table.size(0) == hidden.size(0) &&
                        table.size(-1) % 2 == 0 && table.size(-1) <= width &&
                        (table.size(-1) <= 1 || table.stride(-1) == 1),
                    kName, ": ", name, " must be [", hidden.size(0), ", 1, even, at most head_dim ", width,
                    "] with contiguous rows, got ", table.sizes());
}

// The work of one call.
class Work {
 public:
  // Also checks; leaves out all memory of meta tensors.
  explicit Work(const Arguments& a) {
    fused::check_dtype(kName, "hidden", a.hidden);
    TORCH_CHECK_VALUE(a.hidden.dim() == 2, kName, ": hidden must be [tokens, width], got ", a.hidden.sizes());
    tokens_ = a.hidden.size(0), hidden_ = a.hidden.size(1);
    fused::check_rows(kName, "hidden", a.hidden, a.hidden, tokens_, hidden_);
    if (given(a.residual)) fused::check_rows(kName, "residual", *a.residual, a.hidden, tokens_, hidden_);
    fused::check_vector(kName, "norm_weight", a.norm_weight, a.hidden, hidden_);
    QkvArgs& q = finish_;
    q.key = cache_rows("key_cache", a.key_cache, a.hidden),
    q.value = cache_rows("value_cache", a.value_cache, a.hidden);
    TORCH_CHECK_VALUE(a.key_cache.sizes() == a.value_cache.sizes(), kName, ": value_cache ", a.value_cache.sizes(),
                      " must have the shape of key_cache ", a.key_cache.sizes());
    q.dtype = fused::dtype_of(a.hidden);
    q.tokens = tokens_, q.heads = a.num_heads, q.kv_heads = a.key_cache.size(2), q.d = a.key_cache.size(3);
    q.block_size = a.key_cache.size(1);
    slots_ = a.key_cache.size(0) * q.block_size;
    TORCH_CHECK_VALUE(q.heads > 0, kName, ": num_heads must be positive, got ", q.heads);
    width_ = (q.heads + 2 * q.kv_heads) * q.d;
    qkv_ = fused::projection(kName, "qkv_weight", a.qkv_weight, a.qkv_bias, a.hidden, hidden_, width_);
    check_table("cos", a.cos, a.hidden, q.d), check_table("sin", a.sin, a.hidden, q.d);
    TORCH_CHECK_VALUE(a.cos.size(-1) == a.sin.size(-1), kName, ": cos ", a.cos.sizes(), " and sin ", a.sin.sizes(),
                      " differ");
    q.d_rotary = a.cos.size(-1), q.cos_stride = a.cos.stride(0), q.sin_stride = a.sin.stride(0);
    q.interleaved = a.interleaved;
    TORCH_CHECK_VALUE(a.slot_mapping.dim() == 1 && a.slot_mapping.size(0) == tokens_ &&
                          (a.slot_mapping.scalar_type() == at::kInt || a.slot_mapping.scalar_type() == at::kLong) &&
                          a.slot_mapping.is_contiguous(),
                      kName, ": slot_mapping must be contiguous int32 or int64 [", tokens_, "], got ",
                      a.slot_mapping.scalar_type(), " ", a.slot_mapping.sizes());
    q.slot_dtype = a.slot_mapping.scalar_type() == at::kInt ? DType::I32 : DType::I64;
    q.epsilon = static_cast<float>(a.qk_norm_eps);
    if (given(a.q_norm_weight)) fused::check_vector(kName, "q_norm_weight", *a.q_norm_weight, a.hidden, q.d);
    if (given(a.k_norm_weight)) fused::check_vector(kName, "k_norm_weight", *a.k_norm_weight, a.hidden, q.d);
    rows_ = fused::rows_at_a_time(kName, tokens_, a.block_rows);
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

  // Takes scratch from `scratch`, which must live until the work is launched.
  void put(const at::Tensor& query, const at::Tensor& residual, fused::Scratch* scratch) {
    const int64_t normed = scratch->add(rows_ * hidden_, norm_.dtype), made = scratch->add(rows_ * width_, norm_.dtype);
    scratch->allocate(query);
    norm_.y = scratch->at(normed);
    norm_.sum = norm_.residual ? residual.data_ptr() : nullptr;
    finish_.qkv = scratch->at(made);
    finish_.query = query.data_ptr();
  }

  aclError operator()() const {
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
      norm.x = fused::shifted(norm_.x, t * hidden_, dtype);
      if (norm.residual) {
        norm.residual = fused::shifted(norm_.residual, t * hidden_, dtype);
        norm.sum = fused::shifted(norm_.sum, t * hidden_, dtype);
      }
      rms_norm(norm);
      qkv_(norm.rows, norm.y, finish.qkv);
      finish.cos = fused::shifted(finish_.cos, t * finish_.cos_stride, dtype);
      finish.sin = fused::shifted(finish_.sin, t * finish_.sin_stride, dtype);
      finish.query = fused::shifted(finish_.query, t * finish_.heads * finish_.d, dtype);
      finish.slots = static_cast<const char*>(finish_.slots) + t * (finish_.slot_dtype == DType::I32 ? 4 : 8);
      finish_qkv(finish);
    }
    return kOk;
  }

  int64_t tokens() const { return tokens_; }

 private:
  int64_t tokens_ = 0, hidden_ = 0, width_ = 0, rows_ = 0, slots_ = 0;
  RmsNormArgs norm_;
  fused::Projection qkv_;
  QkvArgs finish_;
};

std::tuple<at::Tensor, at::Tensor> results(const Arguments& a) {
  return {at::empty({a.hidden.size(0), a.num_heads, a.key_cache.size(3)}, a.hidden.options()),
          at::empty(given(a.residual) ? a.hidden.sizes() : at::IntArrayRef({0}), a.hidden.options())};
}

template <bool kMeta>
std::tuple<at::Tensor, at::Tensor> attention_input(
    const at::Tensor& hidden, const Optional& residual, const at::Tensor& norm_weight, double norm_eps,
    const at::Tensor& qkv_weight, const Optional& qkv_bias, const at::Tensor& cos, const at::Tensor& sin,
    bool interleaved, at::Tensor& key_cache, at::Tensor& value_cache, const at::Tensor& slot_mapping, int64_t num_heads,
    const Optional& q_norm_weight, const Optional& k_norm_weight, double qk_norm_eps, int64_t block_rows) {
  const Arguments arguments{hidden,    residual,      norm_weight,   norm_eps,    qkv_weight,  qkv_bias,
                            cos,       sin,           interleaved,   key_cache,   value_cache, slot_mapping,
                            num_heads, q_norm_weight, k_norm_weight, qk_norm_eps, block_rows};
  Work work(arguments);
  auto made = results(arguments);
  if (kMeta || !work.tokens()) return made;
  fused::Scratch scratch;
  work.put(std::get<0>(made), std::get<1>(made), &scratch);
  fused::run(kName, hidden, work);
  return made;
}

}  // namespace
}  // namespace aloft

TORCH_LIBRARY_FRAGMENT(aloft, m) {
  m.def(
      "attention_input(Tensor hidden, Tensor? residual, Tensor norm_weight, float norm_eps, Tensor qkv_weight, Tensor? "
      "qkv_bias, Tensor cos, Tensor sin, bool interleaved, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor "
      "slot_mapping, int num_heads, Tensor? q_norm_weight=None, Tensor? k_norm_weight=None, float qk_norm_eps=1e-06, "
      "int block_rows=0) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(aloft, PrivateUse1, m) { m.impl("attention_input", TORCH_FN(aloft::attention_input<false>)); }
TORCH_LIBRARY_IMPL(aloft, Meta, m) { m.impl("attention_input", TORCH_FN(aloft::attention_input<true>)); }
