// The descriptor objects of the legacy operator door (aclopCompileAndExecute). Created by libascendcl,
// read by libacl_op_compiler.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "acl/abi.h"

// An operator of the legacy door that another library brings.
struct aloftLegacyOperator {
  const char* type;  // never freed
  void (*plan)();    // an aloft::legacy::Plan
};
ALOFT_API void aloftProvideLegacy(aloftLegacyOperator op);
// Null when nobody brought `type`.
ALOFT_API const aloftLegacyOperator* aloftFindLegacy(const char* type);

// Type, logical shape and format given at creation; `storage_*` is what aclSetTensorFormat and
// aclSetTensorShape set later (the physical layout), and equals the logical one until then.
struct aclTensorDesc {
  aloft::DType dtype = aloft::DType::Undefined;
  std::vector<int64_t> dims;
  aloft::Format format = aloft::Format::ND;
  std::vector<int64_t> storage_dims;
  aloft::Format storage_format = aloft::Format::ND;
  int32_t placement = 0;  // 0: device memory, 1 and 2: host memory (a value the host reads when the call is made)
  std::string name;
};

struct aclDataBuffer {
  void* data = nullptr;
  uint64_t size = 0;  // bytes
};

struct aclopAttr {
  std::map<std::string, int64_t> ints;  // bool, int and data type attributes
  std::map<std::string, float> floats;
  std::map<std::string, std::string> strings;
  std::map<std::string, std::vector<int64_t>> int_lists;  // bool and int lists
  std::map<std::string, std::vector<float>> float_lists;
  std::map<std::string, std::vector<std::vector<int64_t>>> int_list_lists;
};
