// Blocking: tiles of up to 5 rows x one panel of 16 columns, two registers of sums a row, ten in all. A line of 64
// bytes holds four values of k of 16 columns, a value in each byte of a lane: two registers are read for four k, and
// each byte in turn becomes a float by a shift up, an arithmetic shift down and a conversion, once for the five rows,
// whose values are broadcast from memory. k from front to back in one chain of fused multiply-adds for every element,
// as quant_widen.h has it: no second chain that would hide latency, ten independent ones do. Panel by panel, all rows
// of the block each: the panel's 8 KiB stay in the first level.
#include <immintrin.h>

#include "kernels/quant_widen_impl.h"

namespace aloft::quant_detail {
namespace {

// Byte i of every 32-bit lane, as a signed number.
template <int kByte>
inline __m256 byte_of(__m256i line) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(kByte == 3 ? line : _mm256_slli_epi32(line, 24 - 8 * kByte), 24));
}

template <int Rows, int kByte>
inline void step(const float* a, int64_t a_stride, __m256i low, __m256i high, __m256 (*sum)[2]) {
  const __m256 w0 = byte_of<kByte>(low), w1 = byte_of<kByte>(high);
  for (int r = 0; r < Rows; ++r) {
    const __m256 x = _mm256_broadcast_ss(a + r * a_stride + kByte);
    sum[r][0] = _mm256_fmadd_ps(x, w0, sum[r][0]);
    sum[r][1] = _mm256_fmadd_ps(x, w1, sum[r][1]);
  }
}

template <int Rows>
void micro(const float* a, int64_t a_stride, const uint8_t* b, int64_t length, float* acc, int64_t acc_stride,
           bool fresh) {
  __m256 sum[Rows][2];
  for (int r = 0; r < Rows; ++r) {
    for (int h = 0; h < 2; ++h) {
      sum[r][h] = fresh ? _mm256_setzero_ps() : _mm256_loadu_ps(acc + r * acc_stride + 8 * h);
    }
  }
  for (int64_t k = 0; k < length; k += 4, a += 4, b += 64) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + 32));
    step<Rows, 0>(a, a_stride, low, high, sum);
    step<Rows, 1>(a, a_stride, low, high, sum);
    step<Rows, 2>(a, a_stride, low, high, sum);
    step<Rows, 3>(a, a_stride, low, high, sum);
  }
  for (int r = 0; r < Rows; ++r) {
    for (int h = 0; h < 2; ++h) _mm256_storeu_ps(acc + r * acc_stride + 8 * h, sum[r][h]);
  }
}

void multiply(const float* a, int64_t a_stride, int64_t rows, const uint8_t* b, int64_t panel_stride, int panels,
              int64_t length, float* acc, int64_t acc_stride, bool fresh) {
  constexpr decltype(&micro<1>) kMicros[] = {nullptr, micro<1>, micro<2>, micro<3>, micro<4>, micro<5>};
  for (int p = 0; p < panels; ++p) {
    for (int64_t r = 0; r < rows; r += 5) {
      kMicros[rows - r < 5 ? rows - r : 5](a + r * a_stride, a_stride, b + p * panel_stride, length,
                                           acc + r * acc_stride + p * kColumns, acc_stride, fresh);
    }
  }
}

}  // namespace

WidenTiles widen_tiles_avx2() { return {multiply}; }
const WidenFinish kWidenFinishAvx2 = ALOFT_WIDEN_FINISH;

}  // namespace aloft::quant_detail
