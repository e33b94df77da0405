#include "torch/route.h"

#include <ATen/core/List.h>
#include <ATen/ops/empty_strided_ops.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string_view>

#include "torch/device.h"
#include "torch/generator.h"
#include "torch/host_kernels.h"
#include "torch/widen.h"

namespace aloft::torch_route {
namespace {

// Operators that take CPU tensors beside NPU tensors: indices and lengths that the host reads anyway.
constexpr std::string_view kHostTensorOperators[] = {
    "copy_",
    "_copy_from",
    "_copy_from_and_resize",
    "copy_memory_",
    "index",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "_unsafe_index",
    "_pack_padded_sequence",
    "_pad_packed_sequence",
    "_ctc_loss",
    "_ctc_loss_backward",
    "tensor_split",
    "_foreach_copy_",
    "segment_reduce",
    "_segment_reduce_backward",
    "histogramdd",
    "_fused_adam_",
    "_fused_adamw_",
    "_fused_sgd_",
};

// Operators of which the CPU's 16-bit kernels are slow, or round after every step where the device rounds once.
constexpr std::string_view kFloatOperators[] = {
    "convolution",
    "convolution_backward",
    "convolution_overrideable",
    "convolution_backward_overrideable",
    "_convolution",
    "slow_conv_dilated2d",
    "slow_conv_transpose2d",
    "slow_conv3d_forward",
    "_slow_conv2d_forward",
    "_slow_conv2d_backward",
    "_conv_depthwise2d",
    "conv_tbc",
    "_cdist_forward",
    "_cdist_backward",
    "_euclidean_dist",
    "_pdist_forward",
    "logsumexp",
    "addbmm",
    "addr",
    "vdot",
    "matmul_backward",
    "linalg_cross",
    "linalg_matrix_exp",
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
    "native_batch_norm_backward",
    "batch_norm_backward",
    "_adaptive_avg_pool3d",
    "_adaptive_avg_pool3d_backward",
    "mse_loss",
    "mse_loss_backward",
    "soft_margin_loss",
    "soft_margin_loss_backward",
    "_trilinear",
    "grid_sampler_2d",
    "grid_sampler_2d_backward",
    "grid_sampler_3d",
    "grid_sampler_3d_backward",
};

// Operators that write all of their first argument without reading it. (out= arguments are never read.)
constexpr std::string_view kOverwritingOperators[] = {
    "copy_",    "copy_memory_", "_foreach_copy_", "fill_",        "zero_",      "_foreach_zero_", "normal_",
    "uniform_", "random_",      "bernoulli_",     "exponential_", "geometric_", "cauchy_",        "log_normal_",
};

bool tensor_type(const c10::Type& type) { return type.kind() == c10::TypeKind::TensorType; }

std::optional<ArgKind> kind_of(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return ArgKind::Tensor;
    case c10::TypeKind::GeneratorType:
      return ArgKind::Generator;
    case c10::TypeKind::DeviceObjType:
      return ArgKind::Device;
    case c10::TypeKind::OptionalType:
      return kind_of(*type.containedType(0));
    case c10::TypeKind::ListType: {
      const auto& element = *type.containedType(0);
      if (tensor_type(element)) return ArgKind::TensorList;
      if (element.kind() == c10::TypeKind::OptionalType && tensor_type(*element.containedType(0)))
        return ArgKind::OptionalTensorList;
      return std::nullopt;
    }
    default:
      return std::nullopt;
  }
}

const c10::DispatchKeySet kHostKeys(c10::DispatchKey::CPU);
const c10::DispatchKeySet kAbove = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

}  // namespace

Operator::Operator(const c10::OperatorHandle& op, HostKernel host) : handle(op), host(host) {
  const auto& schema = op.schema();
  name = eternal(schema.name());
  arguments = schema.arguments().size();
  returns = schema.returns().size();
  random = op.hasTag(at::Tag::nondeterministic_seeded);
  has_generator = false;
  writes = false;
  std::string_view base = schema.name();
  base.remove_prefix(base.find("::") + 2);
  bool overwrites = false;
  for (auto known : kOverwritingOperators) overwrites |= base == known;
  for (size_t i = 0; i < arguments; ++i) {
    const auto& argument = schema.arguments()[i];
    const auto kind = kind_of(*argument.real_type());
    if (!kind) continue;
    const bool written = argument.alias_info() && argument.alias_info()->isWrite();
    const bool overwritten = written && (argument.kwarg_only() || (overwrites && i == 0));
    special.push_back(Arg{static_cast<uint16_t>(i), *kind, written, overwritten});
    has_generator |= *kind == ArgKind::Generator;
    writes |= written;
  }
  several_devices =
      base == "copy_" || base == "_copy_from" || base == "_copy_from_and_resize" || base == "_foreach_copy_";
  in_float = false;
  for (auto known : kFloatOperators) in_float |= base == known;
  in_float |= base.find("upsample_") != std::string_view::npos;
  host_tensors = false;
  for (auto known : kHostTensorOperators) host_tensors |= base == known;
  host_results = base == "_pack_padded_sequence" ? 1u << 1 : 0;  // the batch sizes
  host_result = false;
  for (const auto& result : schema.returns()) {
    const auto kind = kind_of(*result.real_type());
    host_result |= !kind || (*kind != ArgKind::Tensor && *kind != ArgKind::TensorList);
  }
}

void call_host(const Operator& op, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard below(kAbove);
  const auto call = [&] {
    if (op.host) return op.host->callBoxed(op.handle, kHostKeys, stack);
    op.handle.redispatchBoxed(kHostKeys, stack);
  };
  const at::ScalarType half = half_argument(op, *stack);
  if (C10_LIKELY(half == at::ScalarType::Undefined)) return call();
  if (op.in_float) {
    Widened wide(op, stack, half);
    call();
    return wide.narrow();
  }
  const size_t below_arguments = stack->size() - op.arguments;
  const torch::jit::Stack arguments(stack->begin() + below_arguments, stack->end());
  try {
    call();
  } catch (const c10::Error& error) {
    if (!no_half_kernel(error.what_without_backtrace())) throw;
    stack->resize(below_arguments);
    stack->insert(stack->end(), arguments.begin(), arguments.end());
    Widened wide(op, stack, half);
    call();
    wide.narrow();
  }
}

void set_generator(const Operator& op, const at::Generator& host, torch::jit::Stack* stack) {
  const size_t first = stack->size() - op.arguments;
  for (const auto& arg : op.special)
    if (arg.kind == ArgKind::Generator) (*stack)[first + arg.index] = host;
}

Call::Call(const Operator& op, torch::jit::Stack* stack) : op_(op), stack_(stack) {}

at::Tensor Call::argument(const at::Tensor& tensor, const Arg& arg) {
  if (!tensor.defined()) return tensor;
  if (tensor.device().type() == kNpu) return views_.add(tensor, arg.written, op_.several_devices);
  if (!op_.host_tensors && (tensor.dim() > 0 || arg.written)) host_.push_back(tensor);
  return tensor;
}

void Call::to_host() {
  const size_t first = stack_->size() - op_.arguments;
  const Arg* device_argument = nullptr;
  for (const auto& arg : op_.special) {
    c10::IValue& value = (*stack_)[first + arg.index];
    if (value.isNone()) {
      if (arg.kind == ArgKind::Device) device_argument = &arg;
      continue;
    }
    switch (arg.kind) {
      case ArgKind::Tensor:
        value = argument(value.toTensor(), arg);
        break;
      case ArgKind::TensorList: {
        const c10::List<at::Tensor> given = std::move(value).toTensorList();
        c10::List<at::Tensor> list;
        list.reserve(given.size());
        for (size_t i = 0; i < given.size(); ++i) list.push_back(argument(given.get(i), arg));
        value = std::move(list);
        break;
      }
      case ArgKind::OptionalTensorList: {
        const c10::List<std::optional<at::Tensor>> given = std::move(value).toOptionalTensorList();
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(given.size());
        for (size_t i = 0; i < given.size(); ++i) {
          std::optional<at::Tensor> item = given.get(i);
          if (item) item = argument(*item, arg);
          list.push_back(std::move(item));
        }
        value = std::move(list);
        break;
      }
      case ArgKind::Generator:
        generator_ = std::move(value);
        value = c10::IValue();
        break;
      case ArgKind::Device:
        device_argument = &arg;
        device_ = value.toDevice();
        value = c10::Device(c10::DeviceType::CPU);
        break;
    }
  }
  if (!views_.empty()) {
    TORCH_CHECK(host_.empty(), "Expected all tensors to be on the same device, but found at least two devices, ",
                views_.device(), " and ", host_[0].device(), "! (", op_.name, ")");
  }
  if (!device_) {
    if (!views_.empty()) {
      device_ = views_.device();
    } else if (device_argument) {
      device_ = c10::Device(kNpu, current_device());
    }
  } else if (device_->type() != kNpu) {
    device_.reset();
  } else if (!device_->has_index()) {
    device_ = c10::Device(kNpu, views_.empty() ? current_device() : views_.device().index());
  }
}

at::Tensor Call::result(at::Tensor&& tensor, bool stays) {
  if (!tensor.defined() || tensor.device().type() != c10::DeviceType::CPU) return std::move(tensor);
  at::Tensor known = views_.original(tensor);
  if (known.defined()) return known;
  if (!device_ || stays) return std::move(tensor);
  return npu_tensor(std::move(tensor), *device_);
}

void Call::to_device() {
  if (op_.writes) views_.write_back();
  const size_t first = stack_->size() - op_.returns;
  for (size_t i = 0; i < op_.returns; ++i) {
    c10::IValue& value = (*stack_)[first + i];
    if (value.isTensor()) {
      value = result(std::move(value).toTensor(), op_.host_results >> i & 1);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> given = std::move(value).toTensorList();
      c10::List<at::Tensor> list;
      list.reserve(given.size());
      for (size_t j = 0; j < given.size(); ++j) {
        at::Tensor item = given.extract(j);
        list.push_back(result(std::move(item), false));
      }
      value = std::move(list);
    }
  }
}

void route(const Operator& op, torch::jit::Stack* stack) {
  Call call(op, stack);
  call.to_host();
  const c10::DeviceIndex here = current_device();
  const c10::DeviceIndex device =
      call.views().empty() ? (call.on_device() ? call.device().index() : here) : call.views().device().index();
  c10::OptionalDeviceGuard guard;
  if (device != here) guard.reset_device(c10::Device(kNpu, device));
  aclrtStream stream = current_stream(device);
  if (C10_UNLIKELY(aloftStreamDefers(stream)) && (aloftStreamIsCapturing(stream) || !needs_host(op, call, *stack)))
    return record(op, call, stream, stack);
  std::optional<DrawFrom> draw;
  if (op.random) {
    const at::Generator host = host_generator(take_draw(npu_generator(call.generator(), c10::Device(kNpu, device))));
    set_generator(op, host, stack);
    draw.emplace(host);
  }
  if (C10_UNLIKELY(op.several_devices)) call.views().drain_others(device);
  {
    Turn turn(stream, op.name);
    // An allocation may have to wait for the device, and results may belong elsewhere.
    ResultsOnDevice adopt(!turn.holds_worker() && call.on_device() && call.device().index() == device &&
                          !op.host_results);
    call_host(op, stack);
  }
  call.to_device();
}

}  // namespace aloft::torch_route
