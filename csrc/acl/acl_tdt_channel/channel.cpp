// Data channels (dump and summary operators push tensors to the host through them). There are none: creating one
// fails with a text, so the calls on a channel's contents are never reached with a valid handle.
#include "acl/abi.h"
#include "acl/launch.h"

static void refuse(const char* call) { aloftSetError("%s: the virtual NPU has no device-to-host data channels", call); }

ALOFT_API void* acltdtCreateChannelWithCapacity(uint32_t device, const char* name, size_t capacity) {
  refuse("acltdtCreateChannelWithCapacity");
  return nullptr;
}
ALOFT_API void* acltdtCreateDataset() {
  refuse("acltdtCreateDataset");
  return nullptr;
}
ALOFT_API void* acltdtGetDataItem(const void* dataset, size_t index) {
  refuse("acltdtGetDataItem");
  return nullptr;
}
ALOFT_API void* acltdtGetDataAddrFromItem(const void* item) {
  refuse("acltdtGetDataAddrFromItem");
  return nullptr;
}
ALOFT_API size_t acltdtGetDataSizeFromItem(const void* item) { return 0; }
ALOFT_API size_t acltdtGetDatasetSize(const void* dataset) { return 0; }
ALOFT_API size_t acltdtGetDimNumFromItem(const void* item) { return 0; }
ALOFT_API int acltdtGetDataTypeFromItem(const void* item) { return -1; }

#define ALOFT_REFUSED(NAME)            \
  ALOFT_API aclError NAME() {          \
    refuse(#NAME);                     \
    return aloft::kFeatureUnsupported; \
  }
ALOFT_REFUSED(acltdtDestroyChannel)
ALOFT_REFUSED(acltdtDestroyDataset)
ALOFT_REFUSED(acltdtGetDimsFromItem)
ALOFT_REFUSED(acltdtReceiveTensor)
