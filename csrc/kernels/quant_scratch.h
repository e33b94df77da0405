// Memory that grows on demand and stays with its thread.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <new>

namespace aloft::quant_detail {

template <class T>
class Scratch {
 public:
  ~Scratch() { std::free(data_); }
  T* get(int64_t count) {
    if (count > size_) {
      std::free(data_);
      size_ = 0;
      data_ = static_cast<T*>(std::aligned_alloc(64, (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64));
      if (!data_) throw std::bad_alloc();
      size_ = count;
    }
    return data_;
  }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};

inline int64_t rounded_up(int64_t v, int64_t step) { return (v + step - 1) / step * step; }

}  // namespace aloft::quant_detail
