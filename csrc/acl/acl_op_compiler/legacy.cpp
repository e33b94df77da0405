// The legacy operator door: operators by type name, with descriptors instead of aclTensor.
#include "acl/desc.h"
#include "acl/launch.h"

ALOFT_API aclError aclopCompileAndExecute(const char* type, int input_count, const aclTensorDesc* const input_descs[],
                                          const aclDataBuffer* const inputs[], int output_count,
                                          const aclTensorDesc* const output_descs[], aclDataBuffer* const outputs[],
                                          const aclopAttr* attr, int engine, int compile_type, const char* path,
                                          aclrtStream stream) {
  aloftSetError("the legacy operator %s is not implemented by the virtual NPU", type ? type : "(null)");
  return aloft::kOpFailure;
}
