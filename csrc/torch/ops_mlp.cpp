// aloft::mlp_block: from the result of attention to the hidden states of the next decoder layer in one operator: output
// projection, residual, RMS norm, gate and up projection, SwiGLU, down projection, stage by stage over all rows (or
// over blocks of them, which bounds the memory in between). aloft::gated_matmul: its gate and up projection with
// SwiGLU. Bit for bit the operators they stand for; composites take their place on CANN
// (src/aloft/ops/decoder_layer.py).
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <tuple>

#include "kernels/matmul_fused.h"
#include "torch/fused.h"

namespace aloft {
namespace {

using fused::Optional;

constexpr char kBlock[] = "aloft::mlp_block", kGated[] = "aloft::gated_matmul";
constexpr int64_t kPanel = 16;
// Up to so many rows SwiGLU takes its operands from the product's registers. The activation of more rows costs more
// than their way through the cache, and whole rows go faster than blocks of them.
constexpr int64_t kDirectRows = 64;

// silu(gate) * up with [gate, up] = x @ weight.
class Gated {
 public:
  Gated() = default;
  Gated(const char* op, const at::Tensor& weight, const Optional& bias, const at::Tensor& like, int64_t in)
      : product_(fused::projection(op, "gate_up_weight", weight, bias, like, in)), dtype_(fused::dtype_of(like)) {
    TORCH_CHECK_VALUE(product_.out % 2 == 0, op,
                      ": gate_up_weight must have an even number of columns, gate and up, got ", product_.out);
  }

  int64_t in() const { return product_.in; }
  int64_t out() const { return product_.out / 2; }
  // Elements of memory wanted for the sums of so many rows.
  int64_t sums(int64_t rows) const { return direct(rows) ? 0 : rows * product_.out; }

  void operator()(int64_t rows, const void* x, void* sums, void* y) const {
    if (direct(rows)) {
      Matmul call = product_.call(rows, x, y);
      call.out.row_stride = out();
      matmul_gated(call);
      return;
    }
    product_(rows, x, sums);
    GatedArgs args;
    args.dtype = dtype_, args.rows = rows, args.cols = out(), args.stride = product_.out;
    args.act = sums, args.gate = fused::shifted(sums, out(), dtype_), args.y = y;
    gated(args);
  }

 private:
  bool direct(int64_t rows) const { return rows <= kDirectRows && !product_.bias && out() % kPanel == 0; }

  fused::Projection product_;
  DType dtype_ = DType::F32;
};

class Work {
 public:
  Work(const at::Tensor& attention, const at::Tensor& residual, const at::Tensor& o_weight, const Optional& o_bias,
       const at::Tensor& norm_weight, double norm_eps, const at::Tensor& gate_up_weight, const Optional& gate_up_bias,
       const at::Tensor& down_weight, const Optional& down_bias, int64_t block_rows)
      : meta_(attention.device().type() == c10::DeviceType::Meta) {
    fused::check_dtype(kBlock, "attention", attention);
    TORCH_CHECK_VALUE(attention.dim() == 2 && attention.is_contiguous(), kBlock,
                      ": attention must be contiguous [tokens, heads * head_dim], got ", attention.sizes());
    TORCH_CHECK_VALUE(residual.dim() == 2, kBlock, ": residual must be [tokens, width], got ", residual.sizes());
    tokens_ = attention.size(0), hidden_ = residual.size(1);
    fused::check_rows(kBlock, "residual", residual, attention, tokens_, hidden_);
    fused::check_vector(kBlock, "norm_weight", norm_weight, attention, hidden_);
    o_ = fused::projection(kBlock, "o_weight", o_weight, o_bias, attention, attention.size(1), hidden_);
    gated_ = Gated(kBlock, gate_up_weight, gate_up_bias, attention, hidden_);
    down_ = fused::projection(kBlock, "down_weight", down_weight, down_bias, attention, gated_.out(), hidden_);
    rows_ = fused::rows_at_a_time(kBlock, tokens_, block_rows);
    norm_.cols = norm_.x_stride = hidden_;
    norm_.dtype = norm_.gamma_dtype = fused::dtype_of(attention);
    norm_.epsilon = static_cast<float>(norm_eps);
    if (meta_) return;
    attention_ = attention.const_data_ptr();
    norm_.residual = residual.const_data_ptr(), norm_.gamma = norm_weight.const_data_ptr();
  }

  // Takes scratch from `scratch`, which must live until the work is launched.
  void put(const at::Tensor& hidden, const at::Tensor& residual, fused::Scratch* scratch) {
    const DType dtype = norm_.dtype;
    const int64_t rows = scratch->add(rows_ * hidden_, dtype), activated = scratch->add(rows_ * gated_.out(), dtype);
    const int64_t sums = scratch->add(gated_.sums(rows_), dtype);
    scratch->allocate(hidden);
    norm_.x = norm_.y = scratch->at(rows);
    norm_.sum = residual.data_ptr();
    activated_ = scratch->at(activated), sums_ = scratch->at(sums);
    out_ = hidden.data_ptr();
  }

  aclError operator()() const {
    const DType dtype = norm_.dtype;
    for (int64_t t = 0; t < tokens_; t += rows_) {
      RmsNormArgs norm = norm_;
      norm.rows = std::min(rows_, tokens_ - t);
      norm.residual = fused::shifted(norm_.residual, t * hidden_, dtype);
      norm.sum = fused::shifted(norm_.sum, t * hidden_, dtype);
      o_(norm.rows, fused::shifted(attention_, t * o_.in, dtype), norm.y);
      rms_norm(norm);
      gated_(norm.rows, norm.y, sums_, activated_);
      down_(norm.rows, activated_, fused::shifted(out_, t * hidden_, dtype));
    }
    return kOk;
  }

  bool idle() const { return meta_ || !tokens_; }

 private:
  int64_t tokens_ = 0, hidden_ = 0, rows_ = 0;
  bool meta_;
  const void* attention_ = nullptr;
  void *activated_ = nullptr, *sums_ = nullptr, *out_ = nullptr;
  fused::Projection o_, down_;
  Gated gated_;
  RmsNormArgs norm_;
};

std::tuple<at::Tensor, at::Tensor> mlp_block(const at::Tensor& attention, const at::Tensor& residual,
                                             const at::Tensor& o_weight, const Optional& o_bias,
                                             const at::Tensor& norm_weight, double norm_eps,
                                             const at::Tensor& gate_up_weight, const Optional& gate_up_bias,
                                             const at::Tensor& down_weight, const Optional& down_bias,
                                             int64_t block_rows) {
  Work work(attention, residual, o_weight, o_bias, norm_weight, norm_eps, gate_up_weight, gate_up_bias, down_weight,
            down_bias, block_rows);
  std::tuple<at::Tensor, at::Tensor> made{at::empty(residual.sizes(), residual.options()),
                                          at::empty(residual.sizes(), residual.options())};
  if (work.idle()) return made;
  fused::Scratch scratch;
  work.put(std::get<0>(made), std::get<1>(made), &scratch);
  fused::run(kBlock, residual, work);
  return made;
}

at::Tensor gated_matmul(const at::Tensor& x, const at::Tensor& gate_up_weight, const Optional& gate_up_bias) {
  fused::check_dtype(kGated, "x", x);
  TORCH_CHECK_VALUE(x.dim() == 2 && x.is_contiguous(), kGated, ": x must be contiguous [tokens, width], got ",
                    x.sizes());
  const Gated gated(kGated, gate_up_weight, gate_up_bias, x, x.size(1));
  at::Tensor made = at::empty({x.size(0), gated.out()}, x.options());
  if (x.device().type() == c10::DeviceType::Meta || !made.numel()) return made;
  fused::Scratch scratch;
  const int64_t at = scratch.add(gated.sums(x.size(0)), fused::dtype_of(x));
  if (gated.sums(x.size(0))) scratch.allocate(x);
  fused::run(kGated, x, [gated, rows = x.size(0), x = x.const_data_ptr(), sums = scratch.at(at), y = made.data_ptr()] {
    gated(rows, x, sums, y);
    return aclError{kOk};
  });
  return made;
}

}  // namespace
}  // namespace aloft

TORCH_LIBRARY_FRAGMENT(aloft, m) {
  m.def(
      "mlp_block(Tensor attention, Tensor residual, Tensor o_weight, Tensor? o_bias, Tensor norm_weight, float "
      "norm_eps, Tensor gate_up_weight, Tensor? gate_up_bias, Tensor down_weight, Tensor? down_bias, int block_rows=0) "
      "-> (Tensor, Tensor)");
  m.def("gated_matmul(Tensor x, Tensor gate_up_weight, Tensor? gate_up_bias=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(aloft, PrivateUse1, m) {
  m.impl("mlp_block", TORCH_FN(aloft::mlp_block));
  m.impl("gated_matmul", TORCH_FN(aloft::gated_matmul));
}
TORCH_LIBRARY_IMPL(aloft, Meta, m) {
  m.impl("mlp_block", TORCH_FN(aloft::mlp_block));
  m.impl("gated_matmul", TORCH_FN(aloft::gated_matmul));
}
