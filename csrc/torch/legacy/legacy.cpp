#include "torch/legacy/legacy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace aloft::torch_legacy {
namespace {

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return at::kFloat;
    case DType::F16:
      return at::kHalf;
    case DType::BF16:
      return at::kBFloat16;
    case DType::F64:
      return at::kDouble;
    case DType::I8:
      return at::kChar;
    case DType::U8:
      return at::kByte;
    case DType::I16:
      return at::kShort;
    case DType::I32:
      return at::kInt;
    case DType::I64:
      return at::kLong;
    case DType::Bool:
      return at::kBool;
    default:
      TORCH_CHECK(false, "the dtype ", static_cast<int>(dtype), " is not supported");
  }
}

template <class Map>
auto find(const Map& map, const char* name) {
  const auto it = map.find(name);
  return it == map.end() ? nullptr : &it->second;
}

}  // namespace

void provide(const char* type, Plan plan) {
  aloftProvideLegacy(aloftLegacyOperator{type, reinterpret_cast<void (*)()>(plan)});
}

void check(const Call& call, size_t inputs, size_t outputs) {
  TORCH_CHECK(call.inputs.size() >= inputs && call.outputs.size() >= outputs, "it has ", call.inputs.size(),
              " inputs and ", call.outputs.size(), " outputs, at least ", inputs, " and ", outputs, " were expected");
}

at::Tensor tensor(const Operand& operand) {
  TORCH_CHECK(operand.dims == operand.storage_dims, "an operand is in the internal format ",
              static_cast<int>(operand.storage_format), ", the operator takes row-major memory");
  const auto options = at::TensorOptions().dtype(scalar_type(operand.dtype));
  at::Tensor view = at::from_blob(operand.data, operand.dims, options);
  return operand.host ? view.clone() : view;
}

at::Tensor input(const Call& call, size_t index) { return tensor(call.inputs[index]); }
at::Tensor output(const Call& call, size_t index) { return tensor(call.outputs[index]); }
bool has_input(const Call& call, size_t index) {
  return call.inputs.size() > index && call.inputs[index].dtype != DType::Undefined;
}

std::vector<int64_t> integers(const Call& call, size_t index) {
  TORCH_CHECK(call.inputs[index].host, "input ", index, " must be a list of integers in host memory");
  const at::Tensor values = input(call, index).to(at::kLong).reshape(-1);
  const int64_t* first = values.const_data_ptr<int64_t>();
  return {first, first + values.numel()};
}

double number(const Call& call, size_t index) {
  const at::Tensor value = input(call, index);
  TORCH_CHECK(call.inputs[index].host && value.numel() == 1, "input ", index, " must be one value in host memory");
  return value.reshape({}).item().toDouble();
}

int64_t integer(const Call& call, const char* attribute, int64_t otherwise) {
  const auto* value = call.attr ? find(call.attr->ints, attribute) : nullptr;
  return value ? *value : otherwise;
}
double real(const Call& call, const char* attribute, double otherwise) {
  const auto* value = call.attr ? find(call.attr->floats, attribute) : nullptr;
  return value ? static_cast<double>(*value) : otherwise;
}
std::string text(const Call& call, const char* attribute, const char* otherwise) {
  const auto* value = call.attr ? find(call.attr->strings, attribute) : nullptr;
  return value ? *value : otherwise;
}
std::vector<int64_t> integers(const Call& call, const char* attribute) {
  const auto* value = call.attr ? find(call.attr->int_lists, attribute) : nullptr;
  TORCH_CHECK(value, "the attribute ", attribute, " is missing");
  return *value;
}
std::vector<float> reals(const Call& call, const char* attribute) {
  const auto* value = call.attr ? find(call.attr->float_lists, attribute) : nullptr;
  TORCH_CHECK(value, "the attribute ", attribute, " is missing");
  return *value;
}

at::Tensor wide(const at::Tensor& t) {
  return t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16 ? t.to(at::kFloat) : t;
}

void on_cpu(const std::function<void()>& f) {
  at::NoGradGuard no_grad;
  c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                           c10::autocast_dispatch_keyset);
  f();
}

void provide_all() {
  provide_shapes();
  provide_layers();
  provide_boxes();
  provide_suppression();
  provide_convolutions();
  provide_optimizers();
  provide_random();
}

}  // namespace aloft::torch_legacy
