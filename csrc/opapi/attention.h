// What the attention operators share: layouts, operands with one unit stride, visibility of keys.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "opapi/op.h"

namespace aloft {

// Where batch, token, head and head-size elements of an operand lie. Strides count elements.
struct AttentionView {
  int64_t batch = 1, tokens = 0, heads = 0, d = 0;
  int64_t batch_stride = 0, token_stride = 0, head_stride = 0;
};

// `layout` is one of BSH, SBH, BSND, BNSD, NBSD, TND, NTD, NSD. `heads` splits H.
AttentionView attention_view(const char* name, const Tensor& t, const std::string& layout, int64_t heads);
inline bool attention_packed(const std::string& layout) { return layout == "TND" || layout == "NTD"; }

AttentionType attention_type(const Tensor& t);

// Inside the work: the operand itself, or a dense copy of it when its last dimension is not contiguous.
class AttentionOperand {
 public:
  explicit AttentionOperand(const Tensor& t, Dense::Use use = Dense::Read) : tensor_(t) {
    if (t && t.ndim > 0 && t.size(-1) > 1 && t.stride(-1) != 1) {
      dense_ = std::make_unique<Dense>(t, use);
      tensor_ = dense_->tensor();
    }
  }
  explicit operator bool() const { return tensor_.present; }
  const Tensor& tensor() const { return tensor_; }
  // Address of the element `offset` elements after the first.
  char* at(int64_t offset) const {
    return static_cast<char*>(tensor_.data) + offset * static_cast<int64_t>(dtype_size(tensor_.dtype));
  }
  void commit() {
    if (dense_) dense_->commit();
  }

 private:
  Tensor tensor_;
  std::unique_ptr<Dense> dense_;
};

// Visibility of keys as the sparse modes define it.
struct AttentionSparse {
  int64_t mode = 0;
  int64_t pre = INT32_MAX, next = INT32_MAX;
  bool bounded = false;  // mode 0 with a mask: pre and next count
  void apply(AttentionSequence* s) const;
};

std::vector<int64_t> attention_lengths(const aclIntArray* values);
bool attention_mask_dtype(DType t);
// A compressed mask is the strict upper triangle of ones; looked at in a few rows, in strict mode only.
void check_compressed_mask(const Tensor& mask);
// Stores v, rounded to the type of t, `offset` elements after its first.
void store_float(const Tensor& t, int64_t offset, float v);
// Sinks as fp32, whatever their type.
std::vector<float> attention_sinks(const Tensor& sinks);

}  // namespace aloft
