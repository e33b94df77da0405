// Products of many rows on a tile unit: packing of the next weights and everything after the sums go on beside the
// products, a little in each step.
#pragma once
#include "kernels/quant_isa.h"

namespace aloft::quant_detail {

// The left operand: rows with zeros behind k.
struct Left {
  const int8_t* rows;
  int64_t stride;
  int32_t* sums;   // [groups][m]: sums of the group's values
  int32_t* start;  // [groups][m]: -flip * sums
};

struct Many {
  const QuantMatmul& call;
  const QuantTiles& tiles;  // flip 0, k_align 64
  const QuantStream& stream;
  const Left& left;
  int64_t group, groups;
  bool grouped;
  int64_t columns;  // of a unit, which is packed at a time: a multiple of 32 (16 with a gate)
  int parts;        // 2 with a gate: units have as many columns of the second half
  int64_t half;     // columns from the first part to the second
};

// Rows [row0, row0 + rows) of units [begin, end). normal_rows: no row_scale is close to a denormal.
void multiply_many(const Many& many, bool normal_rows, int64_t row0, int64_t rows, int64_t begin, int64_t end);

// Are all of them zero, or at least `limit` (and no NaN)?
bool all_normal(const float* values, int64_t count, float limit);
constexpr float kNormalRow = 0x1p-40f, kNormalScale = 0x1p-60f;

const Finish& finish();

}  // namespace aloft::quant_detail
