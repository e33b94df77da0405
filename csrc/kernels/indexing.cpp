#include "kernels/indexing.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/half.h"
#include "kernels/parallel.h"
#include "kernels/strided.h"

namespace aloft {
namespace {

template <class I>
int64_t out_of_range(const I* index, int64_t count, int64_t size) {
  using U = std::make_unsigned_t<I>;
  std::atomic<int64_t> found{-1};
  parallel_for(count, 1 << 15, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (static_cast<uint64_t>(static_cast<U>(index[i])) < static_cast<uint64_t>(size) && index[i] >= 0) continue;
      int64_t before = found.load();
      while ((before < 0 || i < before) && !found.compare_exchange_weak(before, i)) {
      }
      return;
    }
  });
  return found;
}

template <class I>
void select(const SelectArgs& a) {
  const I* index = static_cast<const I*>(a.index);
  const int64_t row = a.inner * static_cast<int64_t>(a.item);
  const char* x = static_cast<const char*>(a.x);
  char* y = static_cast<char*>(a.y);
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / std::max<int64_t>(1, row));
  parallel_for(a.outer * a.count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t from = r / a.count * a.n + static_cast<int64_t>(index[r % a.count]);
      std::memcpy(y + r * row, x + from * row, static_cast<size_t>(row));
    }
  });
}

// Calls line(index, base, other) with element offsets for every line along `dim`; lines run in parallel.
template <class F>
void for_lines(const PlaceArgs& a, F&& line) {
  int64_t sizes[LoopNest::kDims], strides[3][LoopNest::kDims];
  int ndim = 0;
  for (int d = 0; d < a.ndim; ++d) {
    if (d == a.dim) continue;
    sizes[ndim] = a.sizes[d];
    strides[0][ndim] = a.index_strides[d], strides[1][ndim] = a.base_strides[d], strides[2][ndim] = a.other_strides[d];
    ++ndim;
  }
  const int64_t* each[] = {strides[0], strides[1], strides[2]};
  const LoopNest nest(sizes, ndim, each, 3);
  const int64_t length = a.ndim ? a.sizes[a.dim] : 1;
  if (nest.empty || !length) return;
  const int64_t inner = nest.inner(), work = std::max<int64_t>(1, length);
  parallel_for(nest.outer() * inner, std::max<int64_t>(1, (1 << 13) / work), [&](int64_t begin, int64_t end) {
    int64_t start[LoopNest::kArrays];
    for (int64_t l = begin; l < end; ++l) {
      const int64_t i = l % inner;
      if (i == 0 || l == begin) nest.offsets(l / inner, start);
      line(start[0] + i * nest.inner_stride(0), start[1] + i * nest.inner_stride(1),
           start[2] + i * nest.inner_stride(2));
    }
  });
}

struct Steps {
  int64_t length, index, base, other;
  explicit Steps(const PlaceArgs& a)
      : length(a.ndim ? a.sizes[a.dim] : 1),
        index(a.ndim ? a.index_strides[a.dim] : 0),
        base(a.ndim ? a.base_strides[a.dim] : 0),
        other(a.ndim ? a.other_strides[a.dim] : 0) {}
};

// body(base element, other element) for every element of the index tensor.
template <class T, class I, class F>
void walk(const PlaceArgs& a, F&& body) {
  const Steps step(a);
  const I* index = static_cast<const I*>(a.index);
  T *base = static_cast<T*>(a.base), *other = static_cast<T*>(a.other);
  for_lines(a, [&](int64_t index0, int64_t base0, int64_t other0) {
    for (int64_t j = 0; j < step.length; ++j) {
      body(base[base0 + static_cast<int64_t>(index[index0 + j * step.index]) * step.base],
           other[other0 + j * step.other]);
    }
  });
}

template <class T, class F>
void walk(const PlaceArgs& a, F&& body) {
  a.index_dtype == DType::I32 ? walk<T, int32_t>(a, body) : walk<T, int64_t>(a, body);
}

template <class F>
void with_item(size_t item, F&& f) {
  switch (item) {
    case 1:
      return f(static_cast<uint8_t*>(nullptr));
    case 2:
      return f(static_cast<uint16_t*>(nullptr));
    case 4:
      return f(static_cast<uint32_t*>(nullptr));
    default:
      return f(static_cast<uint64_t*>(nullptr));
  }
}

template <class T>
void add_to(T& base, T value) {
  if constexpr (std::is_integral<T>::value) {
    using U = std::make_unsigned_t<T>;
    base = static_cast<T>(static_cast<U>(base) + static_cast<U>(value));
  } else {
    base = from_float<T>(to_float(base) + to_float(value));
  }
}

}  // namespace

int64_t find_out_of_range(const void* index, DType index_dtype, int64_t count, int64_t size) {
  return index_dtype == DType::I32 ? out_of_range(static_cast<const int32_t*>(index), count, size)
                                   : out_of_range(static_cast<const int64_t*>(index), count, size);
}

void index_select(const SelectArgs& args) {
  args.index_dtype == DType::I32 ? select<int32_t>(args) : select<int64_t>(args);
}

void gather(const PlaceArgs& args, size_t item) {
  with_item(item, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    walk<T>(args, [](T& base, T& other) { other = base; });
  });
}

void scatter(const PlaceArgs& args, size_t item) {
  with_item(item, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    walk<T>(args, [](T& base, T& other) { base = other; });
  });
}

bool scatter_add_supports(DType dtype) {
  switch (dtype) {
    case DType::F32:
    case DType::F16:
    case DType::BF16:
    case DType::I64:
    case DType::I32:
    case DType::I16:
    case DType::I8:
    case DType::U8:
      return true;
    default:
      return false;
  }
}

void scatter_add(const PlaceArgs& args, DType dtype) {
  auto run = [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    walk<T>(args, [](T& base, T& other) { add_to(base, other); });
  };
  switch (dtype) {
    case DType::F32:
      return run(static_cast<float*>(nullptr));
    case DType::F16:
      return run(static_cast<f16*>(nullptr));
    case DType::BF16:
      return run(static_cast<bf16*>(nullptr));
    case DType::I64:
      return run(static_cast<int64_t*>(nullptr));
    case DType::I32:
      return run(static_cast<int32_t*>(nullptr));
    case DType::I16:
      return run(static_cast<int16_t*>(nullptr));
    case DType::I8:
      return run(static_cast<int8_t*>(nullptr));
    default:
      return run(static_cast<uint8_t*>(nullptr));
  }
}

}  // namespace aloft
