// The micro-kernels of AVX2 and AVX-512 alike, over the registers that the including file (matmul_avx2.cpp,
// matmul_avx512.cpp) defines beforehand in an anonymous namespace:
//   Reg, kRegs                          a vector of fp32, how many of them make a row of a panel (16 columns)
//   zero, load, store, broadcast, add, fmadd
//   Weights<T>::load(const T*)          a row of a panel, widened, columns in the kernel's own order
//   Weights<T>::to_kernel, to_memory    from and to that order
//   transpose_panel(from, n_stride, k, to), narrow16(const float*, T*)
//   kMaxRows, fits(rows, panels)
//   kCompactMicro, kWidenUnit           of Kernels
//
// Blocking: a tile is Rows x (Panels * 16) elements, each with two sums, one of the even and one of the odd k of the
// current 32 (matmul.h), so Rows * Panels * kRegs * 2 registers; the totals lie in L1 and are added to every 32 k.
// A row of weights is loaded and widened once for all rows of the tile; the left operand is broadcast from memory.
// AVX-512 takes 6 x 32 (24 registers of sums), AVX2 3 x 16 (12 of 16); a single row takes two panels, for four
// or more independent chains. Few rows (decode) read weights where they lie, each panel being one sequential
// stream, with the memory kAhead further fetched meanwhile; many rows get their weights widened into an fp32
// buffer first (pack_*), so that the widening is paid once for all of them.
#include "kernels/matmul_isa.h"

namespace aloft::matmul_detail {
namespace {

template <class T, int Rows, int Panels>
void micro(const Tile& t) {
  const float* a = t.a;
  const T* b = static_cast<const T*>(t.b);
  const char* ahead = t.ahead;
  const int64_t a_row = t.a_row, k_stride = t.k_stride, panel_stride = t.panel_stride;
  Row sum[Rows][Panels];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < Panels; ++p) {
      sum[r][p] = t.fresh ? zero_row() : Weights<T>::to_kernel(load_row(t.sums + r * t.row + p * kPanel));
    }
  }
  for (int64_t k = t.k; k > 0; k -= kStep) {
    Row even[Rows][Panels], odd[Rows][Panels];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
      for (int p = 0; p < Panels; ++p) even[r][p] = odd[r][p] = zero_row();
    }
    const int64_t steps = k < kStep ? k : kStep;
    const auto one = [&](Row(&part)[Rows][Panels]) {
      Row w[Panels];
#pragma GCC unroll 2
      for (int p = 0; p < Panels; ++p) w[p] = Weights<T>::load(b + p * panel_stride);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const Reg x = broadcast(a + r * a_row);
#pragma GCC unroll 2
        for (int p = 0; p < Panels; ++p) {
#pragma GCC unroll 2
          for (int i = 0; i < kRegs; ++i) part[r][p].v[i] = fmadd(x, w[p].v[i], part[r][p].v[i]);
        }
      }
      ++a;
      b += k_stride;
    };
    for (int64_t i = 0; i + 2 <= steps; i += 2) {
#pragma GCC unroll 2
      for (int p = 0; p < Panels; ++p) _mm_prefetch(ahead + p * t.ahead_panel, _MM_HINT_T0);
      ahead += t.ahead_step;
      one(even);
      one(odd);
    }
    if (steps & 1) one(even);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
      for (int p = 0; p < Panels; ++p) {
#pragma GCC unroll 2
        for (int i = 0; i < kRegs; ++i) {
          Reg both = add(even[r][p].v[i], odd[r][p].v[i]);
          if (steps < kStep) both = add(both, zero());  // as if zeros followed: no negative zero
          sum[r][p].v[i] = add(sum[r][p].v[i], both);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < Panels; ++p) store_row(t.sums + r * t.row + p * kPanel, Weights<T>::to_memory(sum[r][p]));
  }
}

template <class T, int Rows>
Micro pick(int rows, int panels) {
  if constexpr (Rows > kMaxRows) {
    return nullptr;
  } else {
    if (rows != Rows) return pick<T, Rows + 1>(rows, panels);
    if (panels == 1) return micro<T, Rows, 1>;
    if constexpr (fits(Rows, 2)) return micro<T, Rows, 2>;
    return nullptr;
  }
}

Micro micro_for(Element type, int rows, int panels) {
  switch (type) {
    case Element::BF16:
      return pick<bf16, 1>(rows, panels);
    case Element::F16:
      return pick<f16, 1>(rows, panels);
    default:
      return pick<float, 1>(rows, panels);
  }
}

template <class T>
void pack_columns(const T* from, int64_t k_stride, int64_t k, float* to) {
  for (int64_t i = 0; i < k; ++i, from += k_stride, to += kPanel) {
    store_row(to, Weights<T>::to_memory(Weights<T>::load(from)));
  }
}

template <class T>
void pack_rows(const T* from, int64_t n_stride, int64_t k, float* to) {
  for (int64_t i = transpose_panel(from, n_stride, k, to); i < k; ++i) {
    for (int j = 0; j < kPanel; ++j) to[i * kPanel + j] = to_float(from[j * n_stride + i]);
  }
}

template <class T>
void widen(const T* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kPanel <= count; i += kPanel) store_row(to + i, Weights<T>::to_memory(Weights<T>::load(from + i)));
  for (; i < count; ++i) to[i] = to_float(from[i]);
}

template <class T>
void narrow(const float* from, int64_t rows, int64_t count, T* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r, from += kPair, to += to_stride) {
    int64_t i = 0;
    for (; i + kPanel <= count; i += kPanel) narrow16(from + i, to + i);
    for (; i < count; ++i) to[i] = from_float<T>(from[i]);
  }
}

#define ALOFT_BY_TYPE(function, pointer, ...)                         \
  switch (type) {                                                     \
    case Element::BF16:                                               \
      return function(static_cast<bf16 pointer>(from), __VA_ARGS__);  \
    case Element::F16:                                                \
      return function(static_cast<f16 pointer>(from), __VA_ARGS__);   \
    default:                                                          \
      return function(static_cast<float pointer>(from), __VA_ARGS__); \
  }

void pack_columns_any(Element type, const void* from, int64_t k_stride, int64_t k, float* to) {
  ALOFT_BY_TYPE(pack_columns, const*, k_stride, k, to)
}
void pack_rows_any(Element type, const void* from, int64_t n_stride, int64_t k, float* to) {
  ALOFT_BY_TYPE(pack_rows, const*, n_stride, k, to)
}
void widen_any(Element type, const void* from, int64_t count, float* to) { ALOFT_BY_TYPE(widen, const*, count, to) }
#undef ALOFT_BY_TYPE

void narrow_any(Element type, const float* from, int64_t rows, int64_t count, void* to, int64_t to_stride) {
  switch (type) {
    case Element::BF16:
      return narrow(from, rows, count, static_cast<bf16*>(to), to_stride);
    case Element::F16:
      return narrow(from, rows, count, static_cast<f16*>(to), to_stride);
    default:
      return narrow(from, rows, count, static_cast<float*>(to), to_stride);
  }
}

constexpr Kernels kKernels{kMaxRows,  micro_for,  pack_columns_any, pack_rows_any,
                           widen_any, narrow_any, kCompactMicro,    kWidenUnit};

}  // namespace
}  // namespace aloft::matmul_detail
