// Random sampling: the token on which a number in [0, 1) falls in the running sum of a row's probabilities, first among
// pieces of the vocabulary, then in one of them. Sums are kept in double and rounded to fp32 at each place.
#pragma once
#include <cstdint>

#include "acl/abi.h"
#include "kernels/api.h"

namespace aloft {

// What of a row's probabilities `number` times their sum falls on, given the sums of `pieces` equal parts.
ALOFT_KERNEL_API int64_t draw_from(const float* probabilities, int64_t n, const float* sums, int64_t pieces,
                                   float number);
// Sums of `pieces` equal parts of a row of n, each in double, rounded once.
ALOFT_KERNEL_API void piece_sums(const float* probabilities, int64_t n, int64_t pieces, float* sums);

constexpr float kGreedyBelow = 1e-5f;  // of the temperature

struct SampleArgs {
  int64_t rows = 0, vocabulary = 0, pieces = 1;  // pieces divides the vocabulary, which is < 2^31
  DType dtype = DType::F32;                      // of logits: F32, F16 or BF16
  const void* logits = nullptr;                  // [rows, vocabulary], dense
  const float* temperature = nullptr;            // [rows]; below kGreedyBelow: the arg-max, a NaN before all
  const int32_t* k = nullptr;                    // [rows]; null, <= 0 or >= vocabulary: no top-k
  const float* p = nullptr;                      // [rows]; null or >= 1: no top-p
  const float* numbers = nullptr;                // [rows], in [0, 1)
  int32_t* tokens = nullptr;                     // [rows]
};
// What division by the temperature, top_k_top_p, softmax, piece_sums and draw_from give one after the other.
ALOFT_KERNEL_API void sample(const SampleArgs& args);

}  // namespace aloft
