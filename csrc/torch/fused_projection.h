// A projection of a decoder layer, y = x @ weight + bias, whichever kind of weight its linear layer has.
#pragma once
#include <ATen/core/List.h>

#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/quant_matmul.h"
#include "torch/fused.h"

namespace aloft::fused {

// Which operators a projection stands for; the numbers are those of src/aloft/ops/projection.py.
enum class Scheme : int64_t {
  Float = 0,       // a product with a weight of the model's dtype
  Dynamic = 1,     // npu_dynamic_quant and npu_quant_matmul, int8 or int4 weights
  WeightOnly = 2,  // npu_weight_quant_batchmatmul, int8 or int4 weights
};

// The arguments `scales` and `schemes` of an operator: a scale and an offset, a scheme and a group size for each of its
// projections, or nothing at all where all weights are of the model's dtype.
class Schemes {
 public:
  using Scales = std::optional<c10::List<Optional>>;
  struct One {
    Scheme scheme = Scheme::Float;
    int64_t group = 0;
    Optional scale, offset;
  };

  Schemes(const char* op, const Scales& scales, at::IntArrayRef schemes, size_t projections);
  One operator[](size_t projection) const;

 private:
  const char* op_;
  const Scales& scales_;
  at::IntArrayRef schemes_;
};

class Projection {
 public:
  Projection() = default;
  // Checks everything; leaves out the memory of meta tensors. out < 0: any.
  Projection(const char* op, const char* name, const at::Tensor& weight, const Optional& bias, const Schemes::One& how,
             const at::Tensor& like, int64_t in, int64_t out = -1);

  int64_t in() const { return in_; }
  int64_t out() const { return out_; }

  // Memory for what is made of so many rows of x before they are multiplied.
  size_t input_bytes(int64_t rows) const;
  // Makes it of rows [begin, end) of x, which are dense, in the calling thread.
  void take(const void* x, void* input, int64_t begin, int64_t end, int64_t rows) const;
  // The same of all rows, in parallel.
  void take(const void* x, void* input, int64_t rows) const;
  // y = x @ weight + bias, dense, of rows that were taken.
  void operator()(int64_t rows, const void* x, void* input, void* y) const;

  // Whether the product can end in SwiGLU: y [rows, out / 2] = silu(g) * u with [g, u] = x @ weight + bias.
  bool gates() const;
  void gated(int64_t rows, const void* x, void* input, void* y) const;

 private:
  void set_float(const char* op, const char* name, const at::Tensor& weight, const at::Tensor& like, int64_t out);
  void set_quantized(const char* op, const char* name, const at::Tensor& weight, const Schemes::One& how,
                     const at::Tensor& like, int64_t out);
  int64_t code_bytes(int64_t rows) const { return (rows * in_ + 63) / 64 * 64; }
  Matmul float_call(int64_t rows, const void* x, void* y) const;
  QuantMatmul quant_call(int64_t rows, const void* input, void* y, const float* bias) const;

  Scheme scheme_ = Scheme::Float;
  DType dtype_ = DType::F32;  // of the model
  int64_t in_ = 0, out_ = 0;
  const void* bias_ = nullptr;  // of bias_dtype_
  DType bias_dtype_ = DType::F32;
  Operand weight_;         // Float
  QuantWeight quantized_;  // the others
  int64_t group_ = 0;
  const void *scale_ = nullptr, *offset_ = nullptr;
  DType scale_dtype_ = DType::F32;
};

// rms_norm, whose rows the projection takes as they are finished.
void norm_into(const RmsNormArgs& norm, const Projection& projection, void* input);

}  // namespace aloft::fused
