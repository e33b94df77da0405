// The few computing operators that torch_npu 2.13 still sends through the legacy door.
#include <cstring>

#include "acl/acl_op_compiler/legacy.h"
#include "kernels/activation.h"
#include "kernels/norm.h"
#include "kernels/strided.h"

namespace aloft {
namespace legacy {
namespace {

void need_float(const char* role, const Operand& o) {
  if (o.dtype != DType::F32 && o.dtype != DType::F16 && o.dtype != DType::BF16) {
    refuse("the %s must be float16, bfloat16 or float32", role);
  }
}

void need_like(const char* role, const Operand& o, const Operand& model) {
  if (o.dtype != model.dtype || o.storage_dims != model.storage_dims || o.storage_format != model.storage_format) {
    refuse("the %s must have dtype, shape and layout of the input", role);
  }
}

void need_rows(const char* role, const Operand& o) {
  if (o.storage_format != o.format || o.storage_dims != o.dims) {
    refuse("the %s has the internal format %d, the operator takes row-major memory", role,
           static_cast<int>(o.storage_format));
  }
}

}  // namespace

// y = x * sigmoid(scale * x). Zero padding stays zero, so any layout will do.
Work swish(const Call& call) {
  need(call, 1, 1);
  const Operand &x = call.inputs[0], &y = call.outputs[0];
  need_float("input", x);
  need_like("output", y, x);
  const float scale = static_cast<float>(float_attr(call, "scale", 1.0));
  return [=] { activate(Activation::Silu, scale, x.dtype, x.data, y.data, x.elements()); };
}

// (x, gamma, beta) -> (y, mean, rstd), normalised from begin_norm_axis on.
Work layer_norm_v3(const Call& call) {
  need(call, 3, 3);
  const Operand &x = call.inputs[0], &gamma = call.inputs[1], &beta = call.inputs[2];
  const Operand &y = call.outputs[0], &mean = call.outputs[1], &rstd = call.outputs[2];
  need_float("input", x);
  need_rows("input", x);
  need_like("output", y, x);
  const int64_t ndim = static_cast<int64_t>(x.dims.size());
  int64_t axis = int_attr(call, "begin_norm_axis", 0);
  if (axis < 0) axis += ndim;
  if (axis < 0 || axis > ndim) refuse("begin_norm_axis is out of range");
  LayerNormArgs a;
  a.rows = a.cols = 1;
  for (int64_t i = 0; i < ndim; ++i) (i < axis ? a.rows : a.cols) *= x.dims[static_cast<size_t>(i)];
  if (gamma.elements() != a.cols || beta.elements() != a.cols) {
    refuse("gamma and beta must hold %lld elements like the normalised dimensions", static_cast<long long>(a.cols));
  }
  if (gamma.dtype != beta.dtype || (gamma.dtype != x.dtype && gamma.dtype != DType::F32)) {
    refuse("gamma and beta must have the dtype of the input, or float32");
  }
  if (mean.elements() != a.rows || rstd.elements() != a.rows || mean.dtype != rstd.dtype) {
    refuse("mean and rstd must hold one value a row");
  }
  need_float("mean", mean);
  if (!a.rows || !a.cols) return nullptr;
  a.dtype = x.dtype, a.weight_dtype = gamma.dtype, a.stats_dtype = mean.dtype;
  a.epsilon = static_cast<float>(float_attr(call, "epsilon", 1e-5));
  a.x = x.data, a.gamma = gamma.data, a.beta = beta.data, a.y = y.data, a.mean = mean.data, a.rstd = rstd.data;
  return [a] { layer_norm(a); };
}

// zero_() of a tensor with an internal format: zero in every layout, padding included.
Work zeros_like(const Call& call) {
  need(call, 1, 1);
  const Operand& y = call.outputs[0];
  need_like("output", y, call.inputs[0]);
  char* data = y.data;
  const size_t bytes = static_cast<size_t>(y.elements()) * y.item();
  return [=] { std::memset(data, 0, bytes); };
}

// The second input holds the permutation, in host memory.
Work transpose(const Call& call) {
  need(call, 2, 1);
  const Operand &x = call.inputs[0], &order = call.inputs[1], &y = call.outputs[0];
  need_rows("input", x);
  need_rows("output", y);
  const size_t ndim = x.dims.size();
  if (!order.host || order.dtype != DType::I64 || order.elements() != static_cast<int64_t>(ndim)) {
    refuse("the permutation must be %zu int64 values in host memory", ndim);
  }
  std::vector<int64_t> perm(ndim), from(ndim), to(ndim), strides(ndim, 1);
  if (ndim) std::memcpy(perm.data(), order.data, ndim * sizeof(int64_t));
  for (size_t i = ndim; i-- > 1;) strides[i - 1] = strides[i] * x.dims[i];
  std::vector<bool> used(ndim, false);
  int64_t step = 1;
  for (size_t i = ndim; i-- > 0;) {
    const int64_t p = perm[i];
    if (p < 0 || p >= static_cast<int64_t>(ndim) || used[static_cast<size_t>(p)]) refuse("not a permutation");
    used[static_cast<size_t>(p)] = true;
    if (y.dims.size() != ndim || y.dims[i] != x.dims[static_cast<size_t>(p)]) {
      refuse("the output has the shape %s, the input is %s", shape_text(y.dims).c_str(), shape_text(x.dims).c_str());
    }
    from[i] = strides[static_cast<size_t>(p)];
    to[i] = step;
    step *= y.dims[i];
  }
  const char* source = x.data;
  char* target = y.data;
  const size_t item = x.item();
  return [=, sizes = y.dims] {
    strided_copy(source, from.data(), target, to.data(), sizes.data(), static_cast<int>(sizes.size()), item);
  };
}

}  // namespace legacy
}  // namespace aloft
