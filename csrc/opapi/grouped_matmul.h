// What the grouped products share: rows of x by expert.
#pragma once
#include <vector>

#include "opapi/quant_weight.h"

namespace aloft {

struct Group {
  int64_t weight = 0, begin = 0, rows = 0;
};

// Reads group_list (int64): type 0 row ends, 1 counts, 2 pairs (weight, count). Inside the work.
std::vector<Group> read_groups(const Tensor& list, int64_t type, int64_t weights, int64_t rows);
void check_groups(const Tensor& list, int64_t type, int64_t weights);

// The memory of matrix `index` of a batch of weights.
const uint8_t* weight_matrix(const WeightView& w, int64_t index);

}  // namespace aloft
