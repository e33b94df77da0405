// Tiles of 4 rows x 16 columns in plain C++; the reference for the vector files.
#include <algorithm>
#include <cmath>

#include "kernels/matmul_isa.h"

namespace aloft::matmul_detail {
namespace {

// Without a fused operation, double: the product is exact there, and so is its sum with an fp32 value up to bits that
// cannot change the rounding to fp32 when the factors have 16 bits. (fp32 factors: rounded twice in rare cases.)
inline float multiply_add(float x, float y, float sum) {
#ifdef __FP_FAST_FMAF
  return __builtin_fmaf(x, y, sum);
#else
  return static_cast<float>(static_cast<double>(x) * y + sum);
#endif
}

template <class T, int Rows>
void micro(const Tile& t) {
  const T* b = static_cast<const T*>(t.b);
  for (int r = 0; r < Rows && t.fresh; ++r) std::fill_n(t.sums + r * t.row, kPanel, 0.f);
  for (int64_t k0 = 0; k0 < t.k; k0 += kStep) {
    const int64_t steps = std::min(kStep, t.k - k0);
    float parts[2][Rows][kPanel] = {};  // even k, odd k
    for (int64_t i = 0; i < steps; ++i) {
      float wide[kPanel];
      for (int j = 0; j < kPanel; ++j) wide[j] = to_float(b[(k0 + i) * t.k_stride + j]);
      auto& part = parts[i & 1];
      for (int r = 0; r < Rows; ++r) {
        const float x = t.a[r * t.a_row + k0 + i];
        for (int j = 0; j < kPanel; ++j) part[r][j] = multiply_add(x, wide[j], part[r][j]);
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int j = 0; j < kPanel; ++j) {
        float both = parts[0][r][j] + parts[1][r][j];
        if (steps < kStep) both += 0.f;  // as if zeros followed: no negative zero
        t.sums[r * t.row + j] += both;
      }
    }
  }
}

template <class T>
Micro pick(int rows) {
  switch (rows) {
    case 1:
      return micro<T, 1>;
    case 2:
      return micro<T, 2>;
    case 3:
      return micro<T, 3>;
    default:
      return micro<T, 4>;
  }
}

Micro micro_for(Element type, int rows, int panels) {
  if (panels > 1 || rows > 4) return nullptr;
  switch (type) {
    case Element::BF16:
      return pick<bf16>(rows);
    case Element::F16:
      return pick<f16>(rows);
    default:
      return pick<float>(rows);
  }
}

template <class F>
void with_type(Element type, F&& f) {
  switch (type) {
    case Element::BF16:
      return f(bf16{});
    case Element::F16:
      return f(f16{});
    default:
      return f(float{});
  }
}

void pack_columns(Element type, const void* from, int64_t k_stride, int64_t k, float* to) {
  with_type(type, [&](auto tag) {
    const auto* p = static_cast<const decltype(tag)*>(from);
    for (int64_t i = 0; i < k; ++i) {
      for (int j = 0; j < kPanel; ++j) to[i * kPanel + j] = to_float(p[i * k_stride + j]);
    }
  });
}

void pack_rows(Element type, const void* from, int64_t n_stride, int64_t k, float* to) {
  with_type(type, [&](auto tag) {
    const auto* p = static_cast<const decltype(tag)*>(from);
    for (int j = 0; j < kPanel; ++j) {
      for (int64_t i = 0; i < k; ++i) to[i * kPanel + j] = to_float(p[j * n_stride + i]);
    }
  });
}

void widen(Element type, const void* from, int64_t count, float* to) {
  with_type(type, [&](auto tag) {
    const auto* p = static_cast<const decltype(tag)*>(from);
    for (int64_t i = 0; i < count; ++i) to[i] = to_float(p[i]);
  });
}

void narrow(Element type, const float* from, int64_t rows, int64_t count, void* to, int64_t to_stride) {
  with_type(type, [&](auto tag) {
    auto* p = static_cast<decltype(tag)*>(to);
    for (int64_t r = 0; r < rows; ++r, from += kPair, p += to_stride) {
      for (int64_t i = 0; i < count; ++i) p[i] = from_float<decltype(tag)>(from[i]);
    }
  });
}

}  // namespace

const Kernels& portable_kernels() {
  static const Kernels kernels{4, micro_for, pack_columns, pack_rows, widen, narrow, nullptr, nullptr};
  return kernels;
}

}  // namespace aloft::matmul_detail
