// Bytes of one element; 0 where an element has no bytes of its own (strings, packed types) or the type is unknown.
#pragma once
#include <cstddef>

#include "acl/abi.h"

namespace aloft {

constexpr size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::I8:
    case DType::U8:
    case DType::Bool:
    case DType::HiF8:
    case DType::F8E5M2:
    case DType::F8E4M3:
      return 1;
    case DType::F16:
    case DType::BF16:
    case DType::I16:
    case DType::U16:
      return 2;
    case DType::F32:
    case DType::I32:
    case DType::U32:
    case DType::C32:
      return 4;
    case DType::I64:
    case DType::U64:
    case DType::F64:
    case DType::C64:
      return 8;
    case DType::C128:
      return 16;
    default:
      return 0;
  }
}

}  // namespace aloft
