#include "kernels/strided.h"

#include <algorithm>
#include <cstring>

#include "kernels/parallel.h"

namespace aloft {
namespace {

constexpr int64_t kGrainBytes = 1 << 18;  // work a thread should get at least

template <class T>
void copy_row(const char* from, int64_t from_stride, char* to, int64_t to_stride, int64_t n) {
  const T* f = reinterpret_cast<const T*>(from);
  T* t = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) t[i * to_stride] = f[i * from_stride];
}

struct Word16 {
  uint64_t low, high;
};

void copy_items(const char* from, int64_t from_stride, char* to, int64_t to_stride, int64_t n, size_t item) {
  if (from_stride == 1 && to_stride == 1) {
    std::memmove(to, from, static_cast<size_t>(n) * item);
    return;
  }
  switch (item) {
    case 1:
      return copy_row<uint8_t>(from, from_stride, to, to_stride, n);
    case 2:
      return copy_row<uint16_t>(from, from_stride, to, to_stride, n);
    case 4:
      return copy_row<uint32_t>(from, from_stride, to, to_stride, n);
    case 8:
      return copy_row<uint64_t>(from, from_stride, to, to_stride, n);
    case 16:
      return copy_row<Word16>(from, from_stride, to, to_stride, n);
    default: {
      const int64_t size = static_cast<int64_t>(item);
      for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * to_stride * size, from + i * from_stride * size, item);
    }
  }
}

}  // namespace

LoopNest::LoopNest(const int64_t* all_sizes, int all, const int64_t* const* all_strides, int array_count)
    : arrays(array_count) {
  for (int d = 0; d < all; ++d) {
    if (all_sizes[d] == 0) empty = true;
    if (all_sizes[d] == 1) continue;
    bool merge = ndim > 0;
    for (int a = 0; merge && a < arrays; ++a) {
      merge = strides[a][ndim - 1] == all_strides[a][d] * all_sizes[d];
    }
    if (merge) {
      sizes[ndim - 1] *= all_sizes[d];
    } else {
      sizes[ndim++] = all_sizes[d];
    }
    for (int a = 0; a < arrays; ++a) strides[a][ndim - 1] = all_strides[a][d];
  }
  if (empty) {
    ndim = 1;
    sizes[0] = 0;
  }
}

int64_t LoopNest::outer() const {
  if (empty) return 0;
  int64_t n = 1;
  for (int d = 0; d + 1 < ndim; ++d) n *= sizes[d];
  return n;
}

void LoopNest::offsets(int64_t index, int64_t* out) const {
  for (int a = 0; a < arrays; ++a) out[a] = 0;
  for (int d = ndim - 2; d >= 0; --d) {
    const int64_t i = index % sizes[d];
    index /= sizes[d];
    for (int a = 0; a < arrays; ++a) out[a] += i * strides[a][d];
  }
}

void strided_copy(const void* from, const int64_t* from_strides, void* to, const int64_t* to_strides,
                  const int64_t* sizes, int ndim, size_t item) {
  const int64_t* strides[] = {from_strides, to_strides};
  const LoopNest nest(sizes, ndim, strides, 2);
  const int64_t outer = nest.outer(), inner = nest.inner(), size = static_cast<int64_t>(item);
  if (!outer || !inner) return;
  const char* f = static_cast<const char*>(from);
  char* t = static_cast<char*>(to);
  const int64_t f_inner = nest.inner_stride(0), t_inner = nest.inner_stride(1);
  if (outer == 1) {  // split the one row; overlapping ranges must stay in one piece
    const bool overlap = f < t + inner * size && t < f + inner * size;
    parallel_for(inner, overlap ? inner : std::max<int64_t>(1, kGrainBytes / size), [&](int64_t begin, int64_t end) {
      copy_items(f + begin * f_inner * size, f_inner, t + begin * t_inner * size, t_inner, end - begin, item);
    });
    return;
  }
  // The innermost loop should walk the destination densely: swap the two inner dimensions of a transposition.
  if (nest.ndim == 2 && t_inner != 1 && nest.strides[1][0] == 1) {
    parallel_for(inner, std::max<int64_t>(1, kGrainBytes / (outer * size)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        copy_items(f + i * f_inner * size, nest.strides[0][0], t + i * t_inner * size, 1, outer, item);
      }
    });
    return;
  }
  parallel_for(outer, std::max<int64_t>(1, kGrainBytes / (inner * size)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t offset[2];
      nest.offsets(row, offset);
      copy_items(f + offset[0] * size, f_inner, t + offset[1] * size, t_inner, inner, item);
    }
  });
}

void strided_fill(void* to, const int64_t* to_strides, const int64_t* sizes, int ndim, const void* value, size_t item) {
  const int64_t* strides[] = {to_strides};
  const LoopNest nest(sizes, ndim, strides, 1);
  const int64_t outer = nest.outer(), inner = nest.inner(), size = static_cast<int64_t>(item);
  if (!outer || !inner) return;
  char* t = static_cast<char*>(to);
  const int64_t step = nest.inner_stride(0);
  const unsigned char* bytes = static_cast<const unsigned char*>(value);
  const bool same_bytes = std::all_of(bytes, bytes + item, [&](unsigned char b) { return b == bytes[0]; });
  auto fill_row = [&](char* row, int64_t n) {
    if (step == 1 && same_bytes) {
      std::memset(row, bytes[0], static_cast<size_t>(n * size));
    } else {
      copy_items(static_cast<const char*>(value), 0, row, step, n, item);
    }
  };
  if (outer == 1) {
    parallel_for(inner, std::max<int64_t>(1, kGrainBytes / size),
                 [&](int64_t begin, int64_t end) { fill_row(t + begin * step * size, end - begin); });
    return;
  }
  parallel_for(outer, std::max<int64_t>(1, kGrainBytes / (inner * size)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t offset;
      nest.offsets(row, &offset);
      fill_row(t + offset * size, inner);
    }
  });
}

}  // namespace aloft
