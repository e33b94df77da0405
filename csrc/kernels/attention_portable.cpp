// Attention for processors without an x86 vector variant, and the yardstick of the others.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention_tile.h"
#include "kernels/half.h"

namespace aloft {
namespace {

constexpr int W = 8;
constexpr int kMaxDot = 3, kGemmRows = 6;
struct V {
  float v[W];
};

template <class F>
inline V each(F f) {
  V r;
  for (int i = 0; i < W; ++i) r.v[i] = f(i);
  return r;
}
template <class T>
inline V load(const T* p) {
  return each([&](int i) { return to_float(p[i]); });
}
inline void store(float* p, V a) { memcpy(p, a.v, sizeof(a.v)); }
inline V set1(float x) {
  return each([&](int) { return x; });
}
inline V add(V a, V b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
inline V sub(V a, V b) {
  return each([&](int i) { return a.v[i] - b.v[i]; });
}
inline V mul(V a, V b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
inline V div(V a, V b) {
  return each([&](int i) { return a.v[i] / b.v[i]; });
}
inline V fma(V a, V b, V c) {
  return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline V maximum(V a, V b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline V round_to_int(V a) {
  return each([&](int i) { return nearbyintf(a.v[i]); });
}
inline V pow2(V n) {
  return each([&](int i) {
    const float clamped = n.v[i] < -126.f ? -126.f : (n.v[i] > 128.f ? 128.f : n.v[i]);
    const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(clamped) + 127) << 23;
    float f;
    memcpy(&f, &bits, 4);
    return f;
  });
}
inline V pick_ge(V a, V b, V x, V y) {
  return each([&](int i) { return a.v[i] >= b.v[i] ? x.v[i] : y.v[i]; });
}
inline float sum(V a) { return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7])); }
inline float largest(V a) {
  float m = a.v[0];
  for (int i = 1; i < W; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}
inline void sum4(V a, V b, V c, V d, float* to) {
  to[0] = sum(a);
  to[1] = sum(b);
  to[2] = sum(c);
  to[3] = sum(d);
}

#include "kernels/attention_rows.inl"
#include "kernels/attention_tile.inl"

}  // namespace

const AttentionKernels kAttentionPortable = {W, kBlockRows, run, merge, gemm, exp_array};

}  // namespace aloft
