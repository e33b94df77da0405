// Public C types and codes of the ACL interface, declared by us from its documentation
// (no vendor header is included). Only what crosses the boundary stands here.
#pragma once
#include <cstddef>
#include <cstdint>

#define ALOFT_API extern "C" __attribute__((visibility("default")))

using aclError = int;
using aclrtStream = void*;
using aclrtEvent = void*;
using aclrtContext = void*;

namespace aloft {

// Return codes (documented values; the operator layer's 16xxxx/56xxxx ones are in csrc/opapi).
enum : aclError {
  kOk = 0,
  kInvalidParam = 100000,
  kUninitialized = 100001,
  kRepeatInitialize = 100002,
  kRepeatFinalize = 100037,
  kFeatureUnsupported = 200006,
  kBadAlloc = 200000,
  kRtInvalidParam = 107000,
  kRtInvalidDevice = 107001,
  kRtContextNull = 107002,
  kRtStreamContext = 107003,
  kRtInvalidMemcpyKind = 107005,
  kRtEventTimestamp = 107006,
  kRtInvalidHandle = 107017,
  kRtWaitTimeout = 107019,
  kRtCaptureDependency = 107024,
  kRtStreamUnjoined = 107025,
  kRtModelCaptured = 107026,
  kRtStreamCaptured = 107027,
  kRtEventCaptured = 107028,
  kRtStreamNotCaptured = 107029,
  kRtCaptureForbids = 107030,  // a call that a capture in progress does not allow
  kRtCaptureConflict = 107032,
  kRtTaskGroupStatus = 107033,
  kRtCaptureUnmatched = 107036,
  kRtModelRunning = 107037,
  kRtModelUpdateFailed = 107040,
  kRtCaptureBlocksAsync = 107041,  // an asynchronous call that would have had to wait
  kRtFeatureUnsupported = 207000,
  kRtMemoryAllocation = 207001,
  kRtNoEventResource = 207007,
  kRtNoStreamResource = 207008,
  kStorageOverLimit = 300000,
  kInternalError = 500000,
  kOpFailure = 500001,
  kRtInternalError = 507000,
  kRtKernelException = 507015,  // a kernel failed while it ran
  kRtStreamSyncTimeout = 507046,
  kRtEventSyncTimeout = 507047,
  kRtCaptureInvalidated = 507903,
};

// Element types as aclDataType numbers them.
enum class DType : int32_t {
  Undefined = -1,
  F32 = 0,
  F16 = 1,
  I8 = 2,
  I32 = 3,
  U8 = 4,
  I16 = 6,
  U16 = 7,
  U32 = 8,
  I64 = 9,
  U64 = 10,
  F64 = 11,
  Bool = 12,
  String = 13,
  C64 = 16,
  C128 = 17,
  BF16 = 27,
  I4 = 29,
  U1 = 30,
  C32 = 33,
  HiF8 = 34,
  F8E5M2 = 35,
  F8E4M3 = 36,
};

// Physical layouts as aclFormat numbers them.
enum class Format : int32_t {
  Undefined = -1,
  NCHW = 0,
  NHWC = 1,
  ND = 2,
  NC1HWC0 = 3,
  FractalZ = 4,
  HWCN = 16,
  NDHWC = 27,
  FractalNZ = 29,
  NCDHW = 30,
  NDC1HWC0 = 32,
  FractalZ3D = 33,
  NCL = 47,
};

}  // namespace aloft
