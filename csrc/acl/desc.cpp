#include "acl/desc.h"

#include <mutex>

#include "acl/state.h"

using namespace aloft;

namespace {

struct Provided {
  std::mutex mutex;
  std::map<std::string, aloftLegacyOperator> operators;
};

Provided& provided() {
  static auto* const p = new Provided;
  return *p;
}

bool good_dims(int count, const int64_t* dims) { return count >= 0 && (count == 0 || dims); }

// Runs `set` unless the attribute set or a name is missing.
template <class F>
aclError set_attribute(const char* call, aclopAttr* attr, const char* name, F&& set) {
  if (!attr || !name) return fail(kInvalidParam, "%s: the attribute set or the name is null", call);
  set();
  return kOk;
}

}  // namespace

ALOFT_API void aloftProvideLegacy(aloftLegacyOperator op) {
  std::lock_guard<std::mutex> lock(provided().mutex);
  provided().operators[op.type] = op;
}

ALOFT_API const aloftLegacyOperator* aloftFindLegacy(const char* type) {
  std::lock_guard<std::mutex> lock(provided().mutex);
  const auto it = provided().operators.find(type);
  return it == provided().operators.end() ? nullptr : &it->second;
}

ALOFT_API aclTensorDesc* aclCreateTensorDesc(int dtype, int count, const int64_t* dims, int format) {
  if (!good_dims(count, dims)) {
    fail(kInvalidParam, "aclCreateTensorDesc: %d dimensions and no array of them", count);
    return nullptr;
  }
  auto* desc = new aclTensorDesc;
  desc->dtype = static_cast<DType>(dtype);
  desc->dims.assign(dims, dims + count);
  desc->format = static_cast<Format>(format);
  desc->storage_dims = desc->dims;
  desc->storage_format = desc->format;
  return desc;
}

ALOFT_API void aclDestroyTensorDesc(const aclTensorDesc* desc) { delete desc; }
ALOFT_API int aclGetTensorDescType(const aclTensorDesc* desc) {
  return static_cast<int>(desc ? desc->dtype : DType::Undefined);
}
ALOFT_API int aclGetTensorDescFormat(const aclTensorDesc* desc) {
  return static_cast<int>(desc ? desc->format : Format::Undefined);
}
ALOFT_API size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) { return desc ? desc->dims.size() : 0; }

ALOFT_API aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t index, int64_t* size) {
  if (!desc || !size || index >= desc->dims.size()) {
    return fail(kInvalidParam, "aclGetTensorDescDimV2: dimension %zu of a descriptor with %zu", index,
                desc ? desc->dims.size() : 0);
  }
  *size = desc->dims[index];
  return kOk;
}

ALOFT_API void aclSetTensorDescName(aclTensorDesc* desc, const char* name) {
  if (desc) desc->name = name ? name : "";
}

ALOFT_API aclError aclSetTensorFormat(aclTensorDesc* desc, int format) {
  if (!desc) return fail(kInvalidParam, "aclSetTensorFormat: the descriptor is null");
  desc->storage_format = static_cast<Format>(format);
  return kOk;
}

ALOFT_API aclError aclSetTensorShape(aclTensorDesc* desc, int count, const int64_t* dims) {
  if (!desc || !good_dims(count, dims)) return fail(kInvalidParam, "aclSetTensorShape: a null argument");
  desc->storage_dims.assign(dims, dims + count);
  return kOk;
}

ALOFT_API aclError aclSetTensorPlaceMent(aclTensorDesc* desc, int placement) {
  if (!desc) return fail(kInvalidParam, "aclSetTensorPlaceMent: the descriptor is null");
  desc->placement = placement;
  return kOk;
}

ALOFT_API aclDataBuffer* aclCreateDataBuffer(void* data, size_t size) { return new aclDataBuffer{data, size}; }
ALOFT_API aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) {
  if (!buffer) return fail(kInvalidParam, "aclDestroyDataBuffer: the buffer is null");
  delete buffer;
  return kOk;
}

ALOFT_API aclopAttr* aclopCreateAttr() { return new aclopAttr; }
ALOFT_API void aclopDestroyAttr(const aclopAttr* attr) { delete attr; }

ALOFT_API aclError aclopSetAttrBool(aclopAttr* attr, const char* name, uint8_t value) {
  return set_attribute("aclopSetAttrBool", attr, name, [&] { attr->ints[name] = value; });
}
ALOFT_API aclError aclopSetAttrInt(aclopAttr* attr, const char* name, int64_t value) {
  return set_attribute("aclopSetAttrInt", attr, name, [&] { attr->ints[name] = value; });
}
ALOFT_API aclError aclopSetAttrDataType(aclopAttr* attr, const char* name, int value) {
  return set_attribute("aclopSetAttrDataType", attr, name, [&] { attr->ints[name] = value; });
}
ALOFT_API aclError aclopSetAttrFloat(aclopAttr* attr, const char* name, float value) {
  return set_attribute("aclopSetAttrFloat", attr, name, [&] { attr->floats[name] = value; });
}
ALOFT_API aclError aclopSetAttrString(aclopAttr* attr, const char* name, const char* value) {
  return set_attribute("aclopSetAttrString", attr, name, [&] { attr->strings[name] = value ? value : ""; });
}
ALOFT_API aclError aclopSetAttrListBool(aclopAttr* attr, const char* name, int count, const uint8_t* values) {
  return set_attribute("aclopSetAttrListBool", attr, name,
                       [&] { attr->int_lists[name].assign(values, values + count); });
}
ALOFT_API aclError aclopSetAttrListInt(aclopAttr* attr, const char* name, int count, const int64_t* values) {
  return set_attribute("aclopSetAttrListInt", attr, name,
                       [&] { attr->int_lists[name].assign(values, values + count); });
}
ALOFT_API aclError aclopSetAttrListFloat(aclopAttr* attr, const char* name, int count, const float* values) {
  return set_attribute("aclopSetAttrListFloat", attr, name,
                       [&] { attr->float_lists[name].assign(values, values + count); });
}
ALOFT_API aclError aclopSetAttrListListInt(aclopAttr* attr, const char* name, int lists, const int* counts,
                                           const int64_t* const values[]) {
  return set_attribute("aclopSetAttrListListInt", attr, name, [&] {
    auto& all = attr->int_list_lists[name];
    all.clear();
    for (int i = 0; i < lists; ++i) all.emplace_back(values[i], values[i] + counts[i]);
  });
}
