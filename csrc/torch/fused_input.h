// The part of a decoder layer in front of its attention, as work that can be launched: aloft::attention_input.
#pragma once
#include "kernels/norm.h"
#include "kernels/qkv.h"
#include "torch/fused_projection.h"

namespace aloft::fused {

struct InputArguments {  // as those of the operator
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
  const Schemes::One& qkv;
};

class InputStage {
 public:
  static constexpr char kName[] = "aloft::attention_input";

  // Checks everything; leaves out the memory of meta tensors.
  explicit InputStage(const InputArguments& a);
  int64_t tokens() const { return tokens_; }
  size_t scratch_bytes() const;
  // Where the work puts its results: query [T, num_heads, D]; residual [T, W], unused without one to add.
  void put(const at::Tensor& query, const at::Tensor& residual, void* scratch);
  aclError operator()() const;

 private:
  int64_t tokens_ = 0, hidden_ = 0, width_ = 0, rows_ = 0, slots_ = 0;
  RmsNormArgs norm_;
  Projection qkv_;
  void* input_ = nullptr;  // what qkv_ makes of its rows
  QkvArgs finish_;
};

}  // namespace aloft::fused
