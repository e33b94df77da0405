#include "kernels/scan.h"

#include <algorithm>
#include <type_traits>

#include "kernels/half.h"
#include "kernels/parallel.h"

namespace aloft {
namespace {

template <class F>
bool with_type(DType dtype, F&& f) {
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
    case DType::U8:
    case DType::Bool:
      return f(static_cast<uint8_t*>(nullptr));
    default:
      return false;
  }
}

template <class Y>
using Sum = std::conditional_t<std::is_integral<Y>::value, uint64_t,
                               std::conditional_t<std::is_same<Y, float>::value, double, float>>;

// The value of x as y's type holds it, in the type the sum is kept in.
template <class Y, class X>
Sum<Y> widened(X x) {
  if constexpr (std::is_integral<X>::value) {
    if constexpr (std::is_integral<Y>::value) return static_cast<uint64_t>(static_cast<Y>(x));
    if constexpr (!std::is_integral<Y>::value) return to_float(from_float<Y>(static_cast<float>(x)));
  } else {
    if constexpr (std::is_integral<Y>::value) return static_cast<uint64_t>(static_cast<Y>(to_float(x)));
    if constexpr (!std::is_integral<Y>::value) return to_float(from_float<Y>(to_float(x)));
  }
}

template <class Y>
Y narrowed(Sum<Y> sum) {
  if constexpr (std::is_integral<Y>::value) {
    return static_cast<Y>(sum);
  } else {
    return from_float<Y>(static_cast<float>(sum));
  }
}

constexpr int64_t kWidth = 64;  // neighbouring lines summed together

template <class X, class Y>
void sum_block(const X* x, Y* y, int64_t n, int64_t step, int64_t width) {
  if (width == 1) {
    Sum<Y> sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      sum += widened<Y>(x[i * step]);
      y[i * step] = narrowed<Y>(sum);
    }
    return;
  }
  Sum<Y> sum[kWidth] = {};
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t l = 0; l < width; ++l) {
      sum[l] += widened<Y>(x[i * step + l]);
      y[i * step + l] = narrowed<Y>(sum[l]);
    }
  }
}

}  // namespace

bool cumsum_supports(DType x, DType y) {
  return y != DType::Bool && with_type(x, [&](auto*) { return with_type(y, [](auto*) { return true; }); });
}

void cumsum(const CumsumArgs& args) {
  const int64_t blocks = (args.inner + kWidth - 1) / kWidth;
  const int64_t block_elements = std::max<int64_t>(1, args.n * std::min(args.inner, kWidth));
  with_type(args.x_dtype, [&](auto* x_type) {
    using X = std::remove_pointer_t<decltype(x_type)>;
    return with_type(args.y_dtype, [&](auto* y_type) {
      using Y = std::remove_pointer_t<decltype(y_type)>;
      parallel_for(args.outer * blocks, std::max<int64_t>(1, (1 << 14) / block_elements),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t b = begin; b < end; ++b) {
                       const int64_t column = b % blocks * kWidth;
                       const int64_t first = b / blocks * args.n * args.inner + column;
                       sum_block(static_cast<const X*>(args.x) + first, static_cast<Y*>(args.y) + first, args.n,
                                 args.inner, std::min(kWidth, args.inner - column));
                     }
                   });
      return true;
    });
  });
}

}  // namespace aloft
