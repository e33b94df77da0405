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
  kFeatureUnsupported = 200006,
  kBadAlloc = 200000,
  kRtInvalidParam = 107000,
  kRtInvalidDevice = 107001,
  kRtContextNull = 107002,
  kRtStreamContext = 107003,
  kRtInvalidMemcpyKind = 107005,
  kRtFeatureUnsupported = 207000,
  kRtMemoryAllocation = 207001,
  kOpFailure = 500001,
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
