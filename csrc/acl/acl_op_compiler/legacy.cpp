// The legacy operator door: operators by type name, with descriptors instead of aclTensor. torch_npu comes here
// for what has no aclnn function. Of these exist the ones below and those libaloft_torch brings (csrc/torch/legacy),
// everything else fails by name.
#include "acl/acl_op_compiler/legacy.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

#include "acl/dtype.h"
#include "acl/launch.h"

namespace aloft {
namespace legacy {

int64_t Operand::elements() const {
  int64_t n = 1;
  for (const int64_t d : storage_dims) n *= d;
  return n;
}

size_t Operand::item() const { return dtype_size(dtype); }

void refuse(const char* format, ...) {
  char buffer[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(buffer, sizeof buffer, format, arguments);
  va_end(arguments);
  throw Refused{buffer};
}

std::string shape_text(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

void need(const Call& call, size_t inputs, size_t outputs) {
  if (call.inputs.size() != inputs || call.outputs.size() != outputs) {
    refuse("it has %zu inputs and %zu outputs, %zu and %zu were expected", call.inputs.size(), call.outputs.size(),
           inputs, outputs);
  }
}

int64_t int_attr(const Call& call, const char* name, int64_t otherwise) {
  if (!call.attr) return otherwise;
  const auto it = call.attr->ints.find(name);
  return it == call.attr->ints.end() ? otherwise : it->second;
}

double float_attr(const Call& call, const char* name, double otherwise) {
  if (!call.attr) return otherwise;
  const auto it = call.attr->floats.find(name);
  return it == call.attr->floats.end() ? otherwise : static_cast<double>(it->second);
}

namespace {

struct Entry {
  const char* type;
  Plan plan;
};
constexpr Entry kOperators[] = {
    {"Identity", format_cast},        {"TransData", format_cast},   {"Swish", swish},
    {"LayerNormV3", layer_norm_v3},   {"Transpose", transpose},     {"ZerosLike", zeros_like},
    {"MatMul", matrix_product},       {"MatMulV2", matrix_product}, {"BatchMatMul", batch_product},
    {"BatchMatMulV2", batch_product},
};

Operand read(const char* role, int index, const aclTensorDesc* desc, const aclDataBuffer* buffer) {
  if (!desc || !buffer) refuse("%s %d has no descriptor or no buffer", role, index);
  Operand o;
  o.dtype = desc->dtype;
  if (o.dtype == DType::Undefined) return o;  // an optional operand that is not given
  o.dims = desc->dims;
  o.format = desc->format;
  o.storage_dims = desc->storage_dims;
  o.storage_format = desc->storage_format;
  o.host = desc->placement != 0;
  o.data = static_cast<char*>(buffer->data);
  o.bytes = buffer->size;
  if (!o.item()) refuse("%s %d has the dtype %d, which is not supported", role, index, static_cast<int>(o.dtype));
  const uint64_t wanted = static_cast<uint64_t>(o.elements()) * o.item();
  if (o.bytes < wanted || (wanted && !o.data)) {
    refuse("%s %d has %llu bytes, its shape %s needs %llu", role, index, static_cast<unsigned long long>(o.bytes),
           shape_text(o.storage_dims).c_str(), static_cast<unsigned long long>(wanted));
  }
  return o;
}

Entry find(const char* type) {
  for (const Entry& entry : kOperators) {
    if (std::strcmp(entry.type, type) == 0) return entry;
  }
  const aloftLegacyOperator* brought = aloftFindLegacy(type);
  return brought ? Entry{brought->type, reinterpret_cast<Plan>(brought->plan)} : Entry{type, nullptr};
}

// How an operator nobody implements was called.
std::string signature(int count, const aclTensorDesc* const descs[]) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    if (i) text += ", ";
    if (!descs[i]) continue;
    text += std::to_string(static_cast<int>(descs[i]->dtype)) + shape_text(descs[i]->dims);
    if (descs[i]->storage_format != descs[i]->format)
      text += "/" + std::to_string(static_cast<int>(descs[i]->storage_format));
    if (descs[i]->placement) text += " on the host";
  }
  return text;
}

std::string attribute_names(const aclopAttr* attr) {
  std::string text;
  if (!attr) return text;
  const auto add = [&](const auto& map) {
    for (const auto& [name, value] : map) text += " " + name;
  };
  add(attr->ints), add(attr->floats), add(attr->strings), add(attr->int_lists), add(attr->float_lists);
  return text;
}

aclError report(const char* type, const char* text) {
  const std::string full = std::string("the legacy operator ") + type + ": " + text;
  return aloftFail(kOpFailure, full.c_str());
}

}  // namespace
}  // namespace legacy
}  // namespace aloft

ALOFT_API aclError aclopCompileAndExecute(const char* type, int input_count, const aclTensorDesc* const input_descs[],
                                          const aclDataBuffer* const inputs[], int output_count,
                                          const aclTensorDesc* const output_descs[], aclDataBuffer* const outputs[],
                                          const aclopAttr* attr, int engine, int compile_type, const char* path,
                                          aclrtStream stream) {
  using namespace aloft::legacy;
  if (!type) return report("(null)", "its type is a null pointer");
  const Entry entry = find(type);
  if (!entry.plan) {
    const std::string text = "not implemented by the virtual NPU (inputs " + signature(input_count, input_descs) +
                             "; outputs " + signature(output_count, output_descs) + "; attributes" +
                             attribute_names(attr) + ")";
    return report(type, text.c_str());
  }
  try {
    Call call{entry.type, {}, {}, attr};
    for (int i = 0; i < input_count; ++i) call.inputs.push_back(read("input", i, input_descs[i], inputs[i]));
    for (int i = 0; i < output_count; ++i) call.outputs.push_back(read("output", i, output_descs[i], outputs[i]));
    Work work = entry.plan(call);
    if (!work) return aloft::kOk;
    const auto guarded = [work = std::move(work), name = entry.type]() -> aclError {
      try {
        work();
        return aloft::kOk;
      } catch (const std::exception& error) {
        return report(name, error.what());
      }
    };
    return aloft::launch(stream, entry.type, guarded, [&call] {
      std::vector<aloft::Touch> all;
      for (const auto& o : call.inputs) all.push_back(aloft::Touch::bytes(aloft::Use::Keeps, o.data, o.bytes));
      for (const auto& o : call.outputs) all.push_back(aloft::Touch::bytes(aloft::Use::Writes, o.data, o.bytes));
      return all;
    });
  } catch (const Refused& refused) {
    return report(type, refused.text.c_str());
  } catch (const std::exception& error) {
    return report(type, error.what());
  }
}
