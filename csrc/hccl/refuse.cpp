// Collectives are not here yet: functions torch_npu looks up by name are absent, the one it links against refuses.
#include "acl/abi.h"
#include "acl/launch.h"

ALOFT_API int HcclSetConfig(int config, uint64_t value) {
  aloftSetError("HcclSetConfig: this virtual NPU has no collectives yet");
  return 5;  // not supported
}
