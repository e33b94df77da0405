// Attention for AVX-512 (F, BW, VL, DQ).
#include "kernels/attention_avx512.h"

namespace aloft {
namespace {

constexpr int kMaxDot = 4, kGemmRows = 12;

#include "kernels/attention_rows.inl"
#include "kernels/attention_tile.inl"

}  // namespace

const AttentionKernels kAttentionAvx512 = {W, kBlockRows, run, merge, gemm, exp_array};

}  // namespace aloft
