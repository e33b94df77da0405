#include "kernels/convert.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <type_traits>

#include "acl/dtype.h"
#include "kernels/convert_impl.h"
#include "kernels/cpu.h"
#include "kernels/half.h"
#include "kernels/parallel.h"
#include "kernels/strided.h"

namespace aloft {
namespace {

struct Flag {  // a bool in memory; any non-zero byte is true
  uint8_t value;
};

template <class T>
struct IsComplex : std::false_type {};
template <class T>
struct IsComplex<std::complex<T>> : std::true_type {};
template <class T>
constexpr bool is_half = std::is_same<T, bf16>::value || std::is_same<T, f16>::value;

// The value as a number C++ knows.
template <class T>
auto widened(T v) {
  if constexpr (is_half<T>) {
    return to_float(v);
  } else if constexpr (std::is_same<T, Flag>::value) {
    return static_cast<uint8_t>(v.value != 0);
  } else {
    return v;
  }
}

template <class To, class From>
To cast(From raw) {
  const auto v = widened(raw);
  using V = decltype(v);
  using Plain = std::remove_const_t<V>;
  if constexpr (std::is_same<To, Flag>::value) {
    return Flag{static_cast<uint8_t>(v != Plain(0))};
  } else if constexpr (IsComplex<Plain>::value) {
    if constexpr (IsComplex<To>::value) {
      return To(static_cast<typename To::value_type>(v.real()), static_cast<typename To::value_type>(v.imag()));
    } else {
      return cast<To>(v.real());
    }
  } else if constexpr (IsComplex<To>::value) {
    return To(static_cast<typename To::value_type>(v));
  } else if constexpr (is_half<To>) {
    return from_float<To>(static_cast<float>(v));
  } else if constexpr (std::is_floating_point<Plain>::value && std::is_integral<To>::value) {
    if (v != v) return 0;
    // 2^63 and the like are exact in floating point, the largest integers below them are not
    constexpr double low = static_cast<double>(std::numeric_limits<To>::min());
    constexpr double high = static_cast<double>(std::numeric_limits<To>::max());
    if (static_cast<double>(v) <= low) return std::numeric_limits<To>::min();
    if (static_cast<double>(v) >= high) return std::numeric_limits<To>::max();
    return static_cast<To>(v);
  } else {
    return static_cast<To>(v);
  }
}

using Row = void (*)(const void* from, int64_t from_stride, void* to, int64_t to_stride, int64_t n);

template <class From, class To>
void row(const void* from, int64_t from_stride, void* to, int64_t to_stride, int64_t n) {
  const From* f = static_cast<const From*>(from);
  To* t = static_cast<To*>(to);
  if (from_stride == 1 && to_stride == 1) {
    for (int64_t i = 0; i < n; ++i) t[i] = cast<To>(f[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) t[i * to_stride] = cast<To>(f[i * from_stride]);
}

template <class From>
Row row_from(DType to) {
  switch (to) {
    case DType::F32:
      return row<From, float>;
    case DType::F16:
      return row<From, f16>;
    case DType::BF16:
      return row<From, bf16>;
    case DType::F64:
      return row<From, double>;
    case DType::I8:
      return row<From, int8_t>;
    case DType::U8:
      return row<From, uint8_t>;
    case DType::I16:
      return row<From, int16_t>;
    case DType::U16:
      return row<From, uint16_t>;
    case DType::I32:
      return row<From, int32_t>;
    case DType::U32:
      return row<From, uint32_t>;
    case DType::I64:
      return row<From, int64_t>;
    case DType::U64:
      return row<From, uint64_t>;
    case DType::Bool:
      return row<From, Flag>;
    case DType::C64:
      return row<From, std::complex<float>>;
    case DType::C128:
      return row<From, std::complex<double>>;
    default:
      return nullptr;
  }
}

Row find_row(DType from, DType to) {
  switch (from) {
    case DType::F32:
      return row_from<float>(to);
    case DType::F16:
      return row_from<f16>(to);
    case DType::BF16:
      return row_from<bf16>(to);
    case DType::F64:
      return row_from<double>(to);
    case DType::I8:
      return row_from<int8_t>(to);
    case DType::U8:
      return row_from<uint8_t>(to);
    case DType::I16:
      return row_from<int16_t>(to);
    case DType::U16:
      return row_from<uint16_t>(to);
    case DType::I32:
      return row_from<int32_t>(to);
    case DType::U32:
      return row_from<uint32_t>(to);
    case DType::I64:
      return row_from<int64_t>(to);
    case DType::U64:
      return row_from<uint64_t>(to);
    case DType::Bool:
      return row_from<Flag>(to);
    case DType::C64:
      return row_from<std::complex<float>>(to);
    case DType::C128:
      return row_from<std::complex<double>>(to);
    default:
      return nullptr;
  }
}

DenseConversion find_dense(DType from, DType to) {
  static const ConvertKernels portable = ALOFT_CONVERT_KERNELS;
  const ConvertKernels* k = &portable;
#if defined(__x86_64__)
  if (isa() != Isa::Portable) k = &kConvertKernelsAvx2;
#endif
  if (from == DType::BF16) return to == DType::F32 ? k->bf16_to_f32 : to == DType::F16 ? k->bf16_to_f16 : nullptr;
  if (from == DType::F16) return to == DType::F32 ? k->f16_to_f32 : to == DType::BF16 ? k->f16_to_bf16 : nullptr;
  if (from == DType::F32) return to == DType::BF16 ? k->f32_to_bf16 : to == DType::F16 ? k->f32_to_f16 : nullptr;
  return nullptr;
}

}  // namespace

bool convertible(DType dtype) { return find_row(dtype, DType::F32) != nullptr; }

void convert(const void* from, DType from_dtype, void* to, DType to_dtype, int64_t n) {
  if (const DenseConversion dense = find_dense(from_dtype, to_dtype)) {
    dense(from, to, n);
  } else {
    find_row(from_dtype, to_dtype)(from, 1, to, 1, n);
  }
}

void convert_strided(const void* from, DType from_dtype, const int64_t* from_strides, void* to, DType to_dtype,
                     const int64_t* to_strides, const int64_t* sizes, int ndim) {
  const int64_t* strides[] = {from_strides, to_strides};
  const LoopNest nest(sizes, ndim, strides, 2);
  const int64_t outer = nest.outer(), inner = nest.inner();
  if (!outer || !inner) return;
  const int64_t f_step = nest.inner_stride(0), t_step = nest.inner_stride(1);
  const int64_t f_item = static_cast<int64_t>(dtype_size(from_dtype)),
                t_item = static_cast<int64_t>(dtype_size(to_dtype));
  const char* f = static_cast<const char*>(from);
  char* t = static_cast<char*>(to);
  const bool unit = f_step == 1 && t_step == 1;
  const DenseConversion dense = unit ? find_dense(from_dtype, to_dtype) : nullptr;
  const Row any = find_row(from_dtype, to_dtype);
  auto run = [&](int64_t f_at, int64_t t_at, int64_t n) {
    if (dense) {
      dense(f + f_at * f_item, t + t_at * t_item, n);
    } else {
      any(f + f_at * f_item, f_step, t + t_at * t_item, t_step, n);
    }
  };
  constexpr int64_t kGrain = 1 << 16;
  if (outer == 1) {
    parallel_for(inner, kGrain, [&](int64_t begin, int64_t end) { run(begin * f_step, begin * t_step, end - begin); });
    return;
  }
  parallel_for(outer, std::max<int64_t>(1, kGrain / inner), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      int64_t at[2];
      nest.offsets(r, at);
      run(at[0], at[1], inner);
    }
  });
}

}  // namespace aloft
