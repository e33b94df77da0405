// Restricting the next token: top-k and top-p over rows of logits.
#pragma once
#include <cstdint>

#include "acl/abi.h"
#include "kernels/api.h"

namespace aloft {

struct TopKTopPArgs {
  int64_t rows = 0, vocabulary = 0;  // vocabulary < 2^31
  DType dtype = DType::F32;          // of logits, p and y: F32, F16 or BF16
  const void* logits = nullptr;      // [rows, vocabulary], dense
  const int32_t* k = nullptr;        // [rows]; null, or a value <= 0 or >= vocabulary: no top-k
  const void* p = nullptr;           // [rows]; null, or a value >= 1: no top-p
  void* y = nullptr;                 // logits with -inf in removed places; may be logits
};
// Top-k keeps every value equal to the k-th largest. Top-p then removes, from the smallest on (of equals the
// lower index first), the tokens whose cumulative probability stays <= 1 - p; the largest is never removed.
// Probabilities are summed in double, so a token at the very boundary may differ from an fp32 sum.
ALOFT_KERNEL_API void top_k_top_p(const TopKTopPArgs& args);
// The same for one row of fp32, in place. most: its maximum, NaN if it holds one.
void top_k_top_p_row(float* row, int64_t n, float most, int64_t k, float p);

}  // namespace aloft
