// What a unit of work does to memory, for the capture of a graph in strict mode: csrc/acl/poison.h.
#pragma once
#include <cstddef>
#include <cstdint>

namespace aloft {

enum class Use : uint8_t {
  Keeps,   // what the memory holds matters: it is read, or written in part
  Writes,  // all of it is written, whatever it held
};

// A strided array. Strides are in elements and not negative.
struct Touch {
  static constexpr int kMostDims = 8;

  Use use = Use::Keeps;
  void* data = nullptr;
  size_t item = 1;  // bytes of an element
  int ndim = 0;
  int64_t sizes[kMostDims] = {}, strides[kMostDims] = {};

  static Touch bytes(Use use, const void* data, size_t count) {
    Touch t;
    t.use = use, t.data = const_cast<void*>(data);
    t.ndim = 1, t.sizes[0] = static_cast<int64_t>(count), t.strides[0] = 1;
    return t;
  }
};

}  // namespace aloft
