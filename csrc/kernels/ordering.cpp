#include "kernels/ordering.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/keys.h"
#include "kernels/lines.h"
#include "kernels/parallel.h"
#include "kernels/radix.h"

namespace aloft {
namespace {

// Calls f with a null pointer of the C++ type of `dtype`.
template <class F>
void with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::F32:
      return f(static_cast<float*>(nullptr));
    case DType::F16:
      return f(static_cast<f16*>(nullptr));
    case DType::BF16:
      return f(static_cast<bf16*>(nullptr));
    case DType::I64:
      return f(static_cast<int64_t*>(nullptr));
    case DType::I32:
      return f(static_cast<int32_t*>(nullptr));
    case DType::I16:
      return f(static_cast<int16_t*>(nullptr));
    case DType::I8:
      return f(static_cast<int8_t*>(nullptr));
    default:
      return f(static_cast<uint8_t*>(nullptr));  // U8 and Bool
  }
}

constexpr int64_t kGrainElements = 1 << 14;

// Calls body(line, first) for every line; `first` is the offset of its first element in x.
template <class F>
void for_lines(const OrderingArgs& a, F&& body) {
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, a.n));
  parallel_for(a.outer * a.inner, grain, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      body(line, line / a.inner * a.n * a.inner + line % a.inner);
    }
  });
}

// Where the results of a line go: element j at offset(j).
struct Results {
  int64_t first, step;
  Results(const OrderingArgs& a, int64_t line, int64_t k)
      : first(line / a.inner * k * a.inner + line % a.inner), step(a.inner) {}
  int64_t offset(int64_t j) const { return first + j * step; }
};

template <class T>
int64_t first_extreme(const T* x, int64_t n, int64_t step, bool greatest) {
  using Key = decltype(sort_key(T()));
  constexpr bool kFloating = !std::is_integral<T>::value;
  if constexpr (kFloating) {
    if (step == 1) return line_kernels<T>().first_extreme(x, n, greatest);
  }
  // For the smallest, NaN comes first too: torch lets it win both ways.
  auto rank = [&](T v) -> Key {
    const Key key = sort_key(v);
    if (greatest) return key;
    const Key flipped = static_cast<Key>(~key);
    return kFloating && key == static_cast<Key>(~Key{0}) ? key : flipped;
  };
  int64_t best = 0;
  Key most = rank(x[0]);
  for (int64_t i = 1; i < n; ++i) {
    const Key key = rank(x[i * step]);
    if (key > most) most = key, best = i;
  }
  return best;
}

// An element while it is being ordered: its key and where it came from. Small keys share one word with the index.
template <class Key, bool kSmall = sizeof(Key) <= 4>
struct Item {
  uint64_t word;
  Item() = default;
  Item(Key key, uint32_t index) : word(static_cast<uint64_t>(key) << 32 | index) {}
  uint32_t index() const { return static_cast<uint32_t>(word); }
  Key key() const { return static_cast<Key>(word >> 32); }
  bool operator<(const Item& other) const { return word < other.word; }
};
template <class Key>
struct Item<Key, false> {
  Key full;
  uint32_t from;
  Item() = default;
  Item(Key key, uint32_t index) : full(key), from(index) {}
  uint32_t index() const { return from; }
  Key key() const { return full; }
  bool operator<(const Item& other) const { return full != other.full ? full < other.full : from < other.from; }
};

// Items so that ascending items mean the wanted order of values.
template <class T>
Item<decltype(sort_key(T()))> item(T value, int64_t index, bool descending) {
  using Key = decltype(sort_key(T()));
  const Key key = sort_key(value);
  return {descending ? static_cast<Key>(~key) : key, static_cast<uint32_t>(index)};
}

// The k least items of a line, ascending, into `kept`. The best so far are kept; candidates that beat the worst of
// them are inserted (small k) or collected and thinned out when there are twice as many as needed.
template <class T, class I>
void least_items(const T* x, int64_t n, int64_t step, int64_t k, bool descending, std::vector<I>* kept) {
  auto at = [&](int64_t i) { return item(x[i * step], i, descending); };
  // The next place from i on that may hold something better than `worst`.
  auto next = [&](int64_t i, const I& worst) {
    if constexpr (!std::is_integral<T>::value) {
      const float bound = to_float(x[static_cast<int64_t>(worst.index()) * step]);
      if (step == 1 && bound == bound) return line_kernels<T>().skip_worse(x, i, n, bound, descending);
    }
    return i;
  };
  constexpr int64_t kBlock = 8;
  kept->clear();
  if (k <= 32) {
    kept->resize(static_cast<size_t>(k));
    I* best = kept->data();
    for (int64_t i = 0; i < k; ++i) best[i] = at(i);
    std::sort(best, best + k);
    for (int64_t i = k; i < n;) {
      i = next(i, best[k - 1]);
      for (const int64_t end = std::min(i + kBlock, n); i < end; ++i) {
        const I candidate = at(i);
        if (!(candidate < best[k - 1])) continue;
        int64_t place = k - 1;
        for (; place > 0 && candidate < best[place - 1]; --place) best[place] = best[place - 1];
        best[place] = candidate;
      }
    }
    return;
  }
  if (k >= n / 4) {
    kept->resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) (*kept)[static_cast<size_t>(i)] = at(i);
    if (k < n) std::nth_element(kept->begin(), kept->begin() + k, kept->end());
  } else {
    const int64_t room = std::min(n, 2 * k + 512);
    auto thin = [&] {
      std::nth_element(kept->begin(), kept->begin() + (k - 1), kept->end());
      kept->resize(static_cast<size_t>(k));
      return (*kept)[static_cast<size_t>(k - 1)];
    };
    for (int64_t i = 0; i < room; ++i) kept->push_back(at(i));
    I worst = thin();
    for (int64_t i = room; i < n;) {
      i = next(i, worst);
      for (const int64_t end = std::min(i + kBlock, n); i < end; ++i) {
        const I candidate = at(i);
        if (candidate < worst) kept->push_back(candidate);
      }
      if (static_cast<int64_t>(kept->size()) >= room) worst = thin();
    }
    thin();
  }
  kept->resize(static_cast<size_t>(k));
  std::sort(kept->begin(), kept->end());
}

}  // namespace

bool ordering_supports(DType dtype) {
  switch (dtype) {
    case DType::F32:
    case DType::F16:
    case DType::BF16:
    case DType::I64:
    case DType::I32:
    case DType::I16:
    case DType::I8:
    case DType::U8:
    case DType::Bool:
      return true;
    default:
      return false;
  }
}

void arg_extreme(const OrderingArgs& args, bool greatest) {
  with_type(args.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* x = static_cast<const T*>(args.x);
    for_lines(args, [&](int64_t line, int64_t first) {
      const int64_t best = first_extreme<T>(x + first, args.n, args.inner, greatest);
      const int64_t at = Results(args, line, 1).offset(0);
      if (args.values) static_cast<T*>(args.values)[at] = x[first + best * args.inner];
      if (args.indices) args.indices[at] = best;
    });
  });
}

void top_k(const OrderingArgs& args, int64_t k, bool largest) {
  if (!k) return;
  with_type(args.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using I = Item<decltype(sort_key(T()))>;
    const T* x = static_cast<const T*>(args.x);
    for_lines(args, [&](int64_t line, int64_t first) {
      static thread_local std::vector<I> kept;
      least_items<T, I>(x + first, args.n, args.inner, k, largest, &kept);
      const Results to(args, line, k);
      for (int64_t j = 0; j < k; ++j) {
        const int64_t from = kept[static_cast<size_t>(j)].index();
        if (args.values) static_cast<T*>(args.values)[to.offset(j)] = x[first + from * args.inner];
        if (args.indices) args.indices[to.offset(j)] = from;
      }
    });
  });
}

void sort_lines(const OrderingArgs& args, bool descending) {
  with_type(args.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using I = Item<decltype(sort_key(T()))>;
    const T* x = static_cast<const T*>(args.x);
    for_lines(args, [&](int64_t line, int64_t first) {
      static thread_local std::vector<I> items, other;
      const size_t n = static_cast<size_t>(args.n);
      items.resize(n);
      for (size_t i = 0; i < n; ++i) {
        items[i] = item(x[first + static_cast<int64_t>(i) * args.inner], static_cast<int64_t>(i), descending);
      }
      if (n < 256) {
        std::sort(items.begin(), items.end());
      } else {
        other.resize(n);
        radix_sort<sizeof(T)>(&items, &other, [](const I& each) { return each.key(); });
      }
      const Results to(args, line, args.n);
      for (size_t j = 0; j < n; ++j) {
        const int64_t from = items[j].index();
        if (args.values)
          static_cast<T*>(args.values)[to.offset(static_cast<int64_t>(j))] = x[first + from * args.inner];
        if (args.indices) args.indices[to.offset(static_cast<int64_t>(j))] = from;
      }
    });
  });
}

}  // namespace aloft
