// The activation kernels, compiled once for each instruction set.
#pragma once
#include "kernels/activation.h"
#include "kernels/vec.h"

namespace aloft {
namespace {

template <Activation kKind>
ALOFT_INLINE f32x8 activation(f32x8 v, f32x8 alpha) {
  switch (kKind) {
    case Activation::Silu:
      return v * vsigmoid(v * alpha);
    case Activation::Gelu:
      return splat(0.5f) * v * (splat(1.0f) + verf(v * splat(0.70710678f)));
    case Activation::GeluTanh:  // (1 + tanh(u)) / 2 = sigmoid(2 u)
      return v * vsigmoid(splat(1.59576912f) * (v + splat(0.044715f) * v * v * v));
  }
  __builtin_unreachable();
}

template <class T, Activation kKind>
void activate_range(const void* x, void* y, int64_t begin, int64_t end, float alpha) {
  const T* f = static_cast<const T*>(x);
  T* t = static_cast<T*>(y);
  const f32x8 a = splat(alpha);
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) store(t + i, activation<kKind>(load(f + i), a));
  if (i < end) store_tail(t + i, activation<kKind>(load_tail(f + i, end - i), a), end - i);
}

// The first n <= 8 of every second element.
template <class T>
ALOFT_INLINE f32x8 load_pairs(const T* p, int64_t n) {
  T part[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) part[i] = p[2 * i];
  return load(part);
}

template <class T, Activation kKind>
void gated_rows(const GatedArgs& a, int64_t begin, int64_t end) {
  const f32x8 alpha = splat(a.alpha), high = splat(a.limit), low = splat(-a.limit), bias = splat(a.bias);
  auto unit = [&](f32x8 v, f32x8 g, f32x8* activated) [[gnu::always_inline]] {
    if (a.clipped) {
      v = select(v > high, high, v);  // keeps NaN
      g = select(g > high, high, g);
      g = select(g < low, low, g) + bias;
    }
    *activated = activation<kKind>(v, alpha);
    return *activated * g;
  };
  for (int64_t r = begin; r < end; ++r) {
    const T* act = static_cast<const T*>(a.act) + r * a.stride;
    const T* gate = static_cast<const T*>(a.gate) + r * a.stride;
    T* y = static_cast<T*>(a.y) + r * a.cols;
    T* activated = a.activated ? static_cast<T*>(a.activated) + r * a.cols : nullptr;
    f32x8 part;
    int64_t i = 0;
    if (a.step == 1) {
      for (; i + kLanes <= a.cols; i += kLanes) {
        store(y + i, unit(load(act + i), load(gate + i), &part));
        if (activated) store(activated + i, part);
      }
      if (i < a.cols) {
        const int64_t n = a.cols - i;
        store_tail(y + i, unit(load_tail(act + i, n), load_tail(gate + i, n), &part), n);
        if (activated) store_tail(activated + i, part, n);
      }
    } else {
      for (; i < a.cols; i += kLanes) {
        const int64_t n = a.cols - i < kLanes ? a.cols - i : kLanes;
        store_tail(y + i, unit(load_pairs(act + 2 * i, n), load_pairs(gate + 2 * i, n), &part), n);
        if (activated) store_tail(activated + i, part, n);
      }
    }
  }
}

template <class T, Activation kKind>
void gated_sum_rows(const float* sums, int64_t rows, T* y, int64_t y_stride) {
  const f32x8 alpha = splat(1.0f);
  for (int64_t r = 0; r < rows; ++r, sums += 32, y += y_stride) {
    for (int64_t i = 0; i < 16; i += kLanes) {
      const f32x8 v = rounded(y, load(sums + i)), g = rounded(y, load(sums + 16 + i));
      store(y + i, activation<kKind>(v, alpha) * g);
    }
  }
}
template <class T>
void gated_sum_rows(Activation kind, const float* sums, int64_t rows, void* y, int64_t y_stride) {
  switch (kind) {
    case Activation::Silu:
      return gated_sum_rows<T, Activation::Silu>(sums, rows, static_cast<T*>(y), y_stride);
    case Activation::Gelu:
      return gated_sum_rows<T, Activation::Gelu>(sums, rows, static_cast<T*>(y), y_stride);
    case Activation::GeluTanh:
      return gated_sum_rows<T, Activation::GeluTanh>(sums, rows, static_cast<T*>(y), y_stride);
  }
}

template <class T>
void swiglu_grad_rows(const SwigluGradArgs& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* dy = static_cast<const T*>(a.dy) + r * a.cols;
    const T *act = static_cast<const T*>(a.act) + r * a.stride, *gate = static_cast<const T*>(a.gate) + r * a.stride;
    T *dact = static_cast<T*>(a.dact) + r * a.stride, *dgate = static_cast<T*>(a.dgate) + r * a.stride;
    for (int64_t i = 0; i < a.cols; i += kLanes) {
      const int64_t n = a.cols - i < kLanes ? a.cols - i : kLanes;
      const f32x8 g = load_tail(dy + i, n), v = load_tail(act + i, n), b = load_tail(gate + i, n);
      const f32x8 s = vsigmoid(v);
      store_tail(dgate + i, g * v * s, n);
      store_tail(dact + i, g * b * s * (splat(1.0f) + v * (splat(1.0f) - s)), n);
    }
  }
}

}  // namespace

struct ActivationKernels {
  // [kind][dtype: F32, F16, BF16]
  void (*activate[3][3])(const void*, void*, int64_t, int64_t, float);
  void (*gated[3][3])(const GatedArgs&, int64_t, int64_t);
  void (*swiglu_grad[3])(const SwigluGradArgs&, int64_t, int64_t);
  void (*gated_sums[3])(Activation kind, const float* sums, int64_t rows, void* y, int64_t y_stride);
};
#define ALOFT_ACTIVATION_ROW(FUNCTION, KIND) \
  {FUNCTION<float, Activation::KIND>, FUNCTION<f16, Activation::KIND>, FUNCTION<bf16, Activation::KIND>}
#define ALOFT_ACTIVATION_TABLE(FUNCTION) \
  {ALOFT_ACTIVATION_ROW(FUNCTION, Silu), ALOFT_ACTIVATION_ROW(FUNCTION, Gelu), ALOFT_ACTIVATION_ROW(FUNCTION, GeluTanh)}
#define ALOFT_ACTIVATION_KERNELS                                                    \
  {                                                                                 \
    ALOFT_ACTIVATION_TABLE(activate_range), ALOFT_ACTIVATION_TABLE(gated_rows),     \
        {swiglu_grad_rows<float>, swiglu_grad_rows<f16>, swiglu_grad_rows<bf16>}, { \
      gated_sum_rows<float>, gated_sum_rows<f16>, gated_sum_rows<bf16>              \
    }                                                                               \
  }
extern const ActivationKernels kActivationKernelsAvx2;
ActivationKernels activation_kernels_avx512();

}  // namespace aloft
