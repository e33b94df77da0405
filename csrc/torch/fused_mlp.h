// The part of a decoder layer behind its attention, as work that can be launched: aloft::mlp_block, and of it
// aloft::gated_matmul.
#pragma once
#include "kernels/norm.h"
#include "torch/fused_projection.h"

namespace aloft::fused {

// silu(gate) * up with [gate, up] = x @ weight + bias.
class GatedProduct {
 public:
  GatedProduct() = default;
  GatedProduct(const char* op, const at::Tensor& weight, const Optional& bias, const Schemes::One& how,
               const at::Tensor& like, int64_t in);
  const Projection& product() const { return product_; }
  int64_t out() const { return product_.out() / 2; }
  // Elements of memory wanted for the sums of so many rows.
  int64_t sums(int64_t rows) const { return product_.gates() ? 0 : rows * product_.out(); }
  // Of rows that product() took.
  void operator()(int64_t rows, const void* x, void* input, void* sums, void* y) const;

 private:
  Projection product_;
  DType dtype_ = DType::F32;
};

struct MlpArguments {  // as those of the operator
  const at::Tensor &attention, &residual, &o_weight;
  const Optional& o_bias;
  const at::Tensor& norm_weight;
  double norm_eps;
  const at::Tensor& gate_up_weight;
  const Optional& gate_up_bias;
  const at::Tensor& down_weight;
  const Optional& down_bias;
  int64_t block_rows;
  const Schemes::One &o, &gate_up, &down;
};

class MlpStage {
 public:
  static constexpr char kName[] = "aloft::mlp_block";

  // Checks everything; leaves out the memory of meta tensors.
  explicit MlpStage(const MlpArguments& a);
  int64_t tokens() const { return tokens_; }
  size_t scratch_bytes() const;
  // Where the work puts its results, both [T, W].
  void put(const at::Tensor& hidden, const at::Tensor& residual, void* scratch);
  aclError operator()() const;

 private:
  int64_t tokens_ = 0, hidden_ = 0, rows_ = 0;
  const void* attention_ = nullptr;
  void *activated_ = nullptr, *sums_ = nullptr, *input_ = nullptr, *out_ = nullptr;
  Projection o_, down_;
  GatedProduct gated_;
  RmsNormArgs norm_;
};

}  // namespace aloft::fused
