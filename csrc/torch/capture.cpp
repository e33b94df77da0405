// The generic route while a graph is being captured: nothing is computed. The Meta kernel gives the
// geometry of the results, whose memory comes from the graph's pool, and a node that repeats the CPU
// operator over the captured addresses goes into the graph. Nodes own no device memory, as on hardware.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/resize_ops.h>

#include <cstring>

#include "torch/device.h"
#include "torch/generator.h"
#include "torch/host_kernels.h"
#include "torch/route.h"
#include "torch/touches.h"

namespace aloft::torch_route {
namespace {

struct Output {
  size_t result;  // which of the operator's results
  int64_t item;   // which tensor of a list, -1: the result is a tensor
  at::Tensor to;  // CPU view of the captured memory
};

class RouteNode final : public RandomNode {
 public:
  RouteNode(const Operator& op, torch::jit::Stack arguments, std::vector<Output> outputs, at::Generator generator)
      : RandomNode(op.name),
        op_(op),
        arguments_(std::move(arguments)),
        outputs_(std::move(outputs)),
        generator_(std::move(generator)) {}

  RandomNode* random() override { return generator_.defined() ? this : nullptr; }
  aclError draw(Draw* draw) override {
    if (!generator_.defined()) return kOk;
    try {
      *draw = take_draw(generator_);
      return kOk;
    } catch (const std::exception& error) {
      return aloftFail(kOpFailure, (std::string(name()) + ": " + error.what()).c_str());
    }
  }
  aclError run_with(const Draw& draw) override {
    try {
      torch::jit::Stack stack = arguments_;
      std::optional<DrawFrom> from;
      if (generator_.defined()) {
        const at::Generator host = host_generator(draw);
        set_generator(op_, host, &stack);
        from.emplace(host);
      }
      call_host(op_, &stack);
      c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
      for (const auto& output : outputs_) {
        const c10::IValue& value = stack[output.result];
        const at::Tensor from = output.item < 0 ? value.toTensor() : value.toTensorList().get(output.item);
        // In evaluation the CPU kernel of batch norm gives no statistics, where Meta kernels promise them.
        if (from.numel() == 0 && std::strstr(op_.name, "batch_norm")) continue;
        TORCH_CHECK(from.sizes().equals(output.to.sizes()), op_.name, " was captured with a result of shape ",
                    output.to.sizes(), ", the replay gives ", from.sizes());
        at::_ops::copy_::call(const_cast<at::Tensor&>(output.to), from, false);
      }
      return kOk;
    } catch (const std::exception& error) {
      aloftSetError("%s in a captured graph: %s", name(), error.what());
      return kOpFailure;
    }
  }

 private:
  const Operator& op_;
  torch::jit::Stack arguments_;
  std::vector<Output> outputs_;
  at::Generator generator_;
};

// A few bytes from one place to another: a decode step begins and ends with such a copy, and there the dispatcher,
// which no cache holds any more, takes fifty times as long as the bytes.
Node* small_copy(const Operator& op, const torch::jit::Stack& arguments) {
  constexpr size_t kSmall = 1 << 16;
  if (std::strcmp(op.name, "aten::copy_") != 0) return nullptr;
  const at::Tensor &to = arguments[0].toTensor(), &from = arguments[1].toTensor();
  if (to.scalar_type() != from.scalar_type() || !to.sizes().equals(from.sizes()) || to.nbytes() > kSmall ||
      !to.is_contiguous() || !from.is_contiguous() || to.is_neg() != from.is_neg() || to.is_conj() != from.is_conj()) {
    return nullptr;
  }
  const auto copy = [to, from, bytes = to.nbytes()] {
    std::memmove(to.data_ptr(), from.const_data_ptr(), bytes);
    return aclError{kOk};
  };
  return new FunctionNode(op.name, copy);
}

// Meta tensors for the CPU tensors of one call.
class MetaArguments {
 public:
  at::Tensor of(const at::Tensor& cpu) {
    // Numbers stay what they are: promotion asks for them, and Meta kernels take them.
    if (!cpu.defined() || cpu.unsafeGetTensorImpl()->is_wrapped_number()) return cpu;
    for (const auto& [known, meta] : pairs_)
      if (known.is_same(cpu)) return meta;
    // A Python number stays what it is: Meta kernels take it beside meta tensors, and those written in Python read it.
    if (cpu.unsafeGetTensorImpl()->is_wrapped_number()) return cpu;
    at::Tensor meta(at::detail::empty_strided_meta(cpu.sizes(), cpu.strides(), cpu.scalar_type()));
    pairs_.emplace_back(cpu, meta);
    return meta;
  }
  // The CPU tensor whose stand-in `meta` is, or undefined.
  at::Tensor cpu_of(const at::Tensor& meta) const {
    for (const auto& [cpu, known] : pairs_)
      if (known.is_same(meta)) return cpu;
    return {};
  }
  // The CPU tensor whose memory `meta` is a view of, or undefined.
  at::Tensor base_of(const at::Tensor& meta) const {
    for (const auto& [cpu, known] : pairs_)
      if (known.storage().is_alias_of(meta.storage())) return cpu;
    return {};
  }
  const std::vector<std::pair<at::Tensor, at::Tensor>>& pairs() const { return pairs_; }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

template <class F>
void each_tensor(c10::IValue& value, F&& f) {
  if (value.isTensor()) {
    value = f(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& t : value.toTensorVector()) list.push_back(f(t));
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    const c10::List<std::optional<at::Tensor>> given = value.toOptionalTensorList();
    c10::List<std::optional<at::Tensor>> list;
    for (size_t i = 0; i < given.size(); ++i) {
      std::optional<at::Tensor> item = given.get(i);
      if (item) item = f(*item);
      list.push_back(std::move(item));
    }
    value = std::move(list);
  }
}

// Runs the Meta kernel; false when there is none that fits.
bool run_meta(const Operator& op, torch::jit::Stack* stack) {
  if (!op.handle.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return false;
  c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView |
                                           c10::autocast_dispatch_keyset);
  try {
    op.handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  } catch (const c10::NotImplementedError&) {
    return false;
  } catch (const std::exception& error) {
    // Meta kernels written in Python say the same with a Python exception.
    if (std::strstr(error.what(), "NotImplementedError") || std::strstr(error.what(), "DynamicOutputShape"))
      return false;
    throw;
  }
  return true;
}

// What a replay of the call reads and writes, in strict mode (else nobody asks).
std::vector<Touch> touched(const Operator& op, const torch::jit::Stack& arguments, const std::vector<Output>& outputs) {
  std::vector<Touch> all;
  if (!aloftPoisonSwitch().load(std::memory_order_relaxed)) return all;
  for (const auto& arg : op.special) {
    if (arg.kind == ArgKind::Generator || arg.kind == ArgKind::Device) continue;
    c10::IValue value = arguments[arg.index];
    each_tensor(value, [&](const at::Tensor& t) {
      add_touch(arg.overwritten ? Use::Writes : Use::Keeps, t, &all);
      return t;
    });
  }
  for (const Output& output : outputs) add_touch(Use::Writes, output.to, &all);
  return all;
}

bool only_written_results(const Operator& op) {
  for (const auto& result : op.handle.schema().returns())
    if (!result.alias_info() || !result.alias_info()->isWrite()) return false;
  return true;
}

}  // namespace

bool needs_host(const Operator& op, Call& call, const torch::jit::Stack& stack) {
  bool needs = op.host_result;
  const size_t first = stack.size() - op.arguments;
  for (const auto& arg : op.special) {
    if (!arg.written) continue;
    c10::IValue value = stack[first + arg.index];
    each_tensor(value, [&](const at::Tensor& t) {
      needs = needs || (t.defined() && !call.views().original(t).defined() && aloftDeviceOf(t.const_data_ptr()) != -1);
      return t;
    });
  }
  return needs;
}

void record(const Operator& op, Call& call, aclrtStream stream, torch::jit::Stack* stack) {
  TORCH_CHECK(!op.host_result, op.name,
              " hands a value of the device to the host: that is not permitted while a graph is being captured");
  const size_t first = stack->size() - op.arguments;
  torch::jit::Stack arguments(stack->begin() + first, stack->end());
  MetaArguments stand_ins;
  torch::jit::Stack meta = arguments;
  for (const auto& arg : op.special) {
    c10::IValue& value = meta[arg.index];
    if (arg.kind == ArgKind::Device) {
      value = c10::Device(c10::DeviceType::Meta);
    } else {
      each_tensor(value, [&](const at::Tensor& t) { return stand_ins.of(t); });
    }
  }
  // The results, as the caller gets them.
  std::vector<Output> outputs;
  torch::jit::Stack results;
  if (!run_meta(op, &meta)) {
    TORCH_CHECK(only_written_results(op), op.name,
                " cannot be captured in a graph: the shape of its result "
                "depends on data, or is not known without computing it");
    for (size_t i = 0; i < op.returns; ++i) {
      // Results that are written arguments come in the order of those arguments.
      size_t seen = 0;
      for (const auto& arg : op.special)
        if (arg.written && seen++ == i) {
          c10::IValue value = arguments[arg.index];
          each_tensor(value, [&](const at::Tensor& t) { return call.views().original(t); });
          results.push_back(std::move(value));
        }
    }
  } else {
    for (const auto& [cpu, shape] : stand_ins.pairs()) {
      if (cpu.sizes().equals(shape.sizes())) continue;
      call.views().resize(cpu, shape.sizes());  // out= of another shape
    }
    for (size_t i = 0; i < op.returns; ++i) {
      c10::IValue value = meta[i];
      int64_t item = value.isTensor() ? -1 : 0;
      each_tensor(value, [&](const at::Tensor& t) -> at::Tensor {
        const int64_t at = item < 0 ? item : item++;
        if (!t.defined()) return t;
        if (at::Tensor cpu = stand_ins.cpu_of(t); cpu.defined()) {
          at::Tensor known = call.views().original(cpu);
          return known.defined() ? known : cpu;
        }
        if (at::Tensor base = stand_ins.base_of(t); base.defined()) {
          at::Tensor known = call.views().original(base);
          if (known.defined()) return view_over(known.storage(), known.key_set(), t);
        }
        TORCH_CHECK(call.on_device(), op.name,
                    " brings data to the host: that is not permitted while a graph is being captured");
        at::Tensor created = npu_like(t, call.device());
        outputs.push_back(Output{i, at, cpu_view(created, nullptr)});
        return created;
      });
      results.push_back(std::move(value));
    }
  }
  TORCH_CHECK(!call.views().writes_converted(), op.name,
              " cannot be captured in a graph: it writes to a tensor in an internal format");
  // Pageable host tensors go into the graph by value, views of device memory and pinned memory by address.
  for (const auto& arg : op.special)
    if (arg.kind != ArgKind::Generator && arg.kind != ArgKind::Device)
      each_tensor(arguments[arg.index], [&](const at::Tensor& t) -> at::Tensor {
        if (!t.defined() || call.views().original(t).defined()) return t;
        if (aloftDeviceOf(t.const_data_ptr()) == -1) return t;
        TORCH_CHECK(!arg.written, op.name,
                    " writes to pageable host memory: that is not permitted while a graph is being captured");
        return at::_ops::clone::call(t, std::nullopt);
      });
  at::Generator generator;
  if (op.random) generator = npu_generator(call.generator(), call.device());
  aclError error = kOk;
  const int mode = aloftLaunchBegin(stream, op.name, &error);
  if (mode == kRefused) raise(error, op.name);
  const auto touches = touched(op, arguments, outputs);
  Node* node = small_copy(op, arguments);
  if (!node) node = new RouteNode(op, std::move(arguments), std::move(outputs), std::move(generator));
  if (mode == kRunNow) {  // the capture ended meanwhile
    error = node->run();
    aloftLaunchEnd(stream, op.name, error);
    delete node;
  } else {
    error = launch_node(stream, node, [&]() -> const std::vector<Touch>& { return touches; });
  }
  if (error != kOk) raise(error, op.name);
  stack->erase(stack->begin() + first, stack->end());
  for (auto& value : results) stack->push_back(std::move(value));
}

}  // namespace aloft::torch_route
