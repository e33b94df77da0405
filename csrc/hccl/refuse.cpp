// Collectives are not here yet: functions torch_npu looks up by name are absent.
#include "acl/abi.h"
#include "acl/launch.h"

// Config 0 asks for deterministic reductions, which torch_npu sets when it starts: whatever runs here is
// deterministic, so both values hold.
ALOFT_API int HcclSetConfig(int config, uint64_t value) {
  if (config == 0) return 0;
  aloftSetError("HcclSetConfig: option %d is not known to the virtual NPU", config);
  return 5;  // not supported
}
