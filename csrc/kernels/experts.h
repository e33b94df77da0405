// Mixtures of experts around their products: choice of experts, order of rows by expert, weighted sums back.
#pragma once
#include <cstdint>

#include "acl/abi.h"
#include "kernels/api.h"

namespace aloft {

// Per row: scores s = softmax(x) or sigmoid(x), choices c = s + bias, the k largest c of the kept groups, weights s of
// them, times `factor`. fp32 inside, sums from the first expert to the last. Equal choices: the lower index. NaN counts
// as the smallest value, so ids are distinct and valid whatever x holds.
struct GatingArgs {
  int64_t rows = 0, experts = 0, k = 0;
  DType dtype = DType::F32;  // of x and weights: F32, F16 or BF16
  const void* x = nullptr;   // [rows, experts]
  bool sigmoid = false;
  bool winners_only = false;  // softmax over the k chosen ones instead of all
  bool divide = false;        // weights / (their sum + epsilon), before factor
  const float* bias = nullptr;
  // More than one group: the `kept` groups of the largest value (their largest choice, or the sum of the two largest).
  int64_t groups = 1, kept = 1;
  bool two_largest = false;
  float factor = 1, epsilon = 0;
  const uint8_t* finished = nullptr;  // [rows]; true: ids are `experts`
  void* weights = nullptr;            // [rows, k]
  int32_t* ids = nullptr;             // [rows, k]
  int32_t* columns = nullptr;         // [rows, k] of j * rows + r, or null
  float* scores = nullptr;            // [rows, experts], or null
};
ALOFT_KERNEL_API void choose_experts(const GatingArgs& args);

// Pairs (token, choice) with flat index f = token * k + choice, ordered by expert, stable.
struct RoutingArgs {
  int64_t tokens = 0, k = 0, experts = 0;
  int64_t low = 0, high = 0;     // experts of this rank
  const int32_t* ids = nullptr;  // [tokens, k], each in [0, experts)
  int64_t* counts = nullptr;     // [high - low]
  int32_t* place = nullptr;      // [tokens * k]: position of a pair, -1 of other ranks' pairs
  int32_t* pair = nullptr;       // [tokens * k]: the pair at a position, up to the returned number
};
// The number of pairs of this rank; -1 - f for an id out of range at f.
ALOFT_KERNEL_API int64_t order_by_expert(const RoutingArgs& args);

// to[i] = from[pair[i] / k] for i < rows, rows of `bytes` bytes.
ALOFT_KERNEL_API void gather_tokens(const void* from, int64_t bytes, const int32_t* pair, int64_t k, int64_t rows,
                                    void* to);

// y[t] = sum over j of rows[place[t * k + j]] * weight[t * k + j], fp32 from the first choice to the last, rounded
// once. Places outside [0, row_count) add nothing.
struct CombineArgs {
  int64_t tokens = 0, k = 1, cols = 0, row_count = 0;
  DType dtype = DType::F32;  // of rows and y
  const void* rows = nullptr;
  const int32_t* place = nullptr;
  const float* weight = nullptr;  // null: ones
  void* y = nullptr;
};
ALOFT_KERNEL_API void combine_rows(const CombineArgs& args);

}  // namespace aloft
