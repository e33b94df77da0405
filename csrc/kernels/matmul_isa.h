// What one instruction set provides to the loop nest in matmul.cpp.
//
// The right operand is consumed in panels of 16 columns and chunks of kChunk values of k; the left operand
// has been widened to fp32 rows of kRowStride floats, one such row for each chunk.
#pragma once
#include <cstdint>

#include "kernels/half.h"
#include "kernels/matmul.h"

namespace aloft::matmul_detail {

constexpr int64_t kChunk = 128;      // k values handled at a time: 32 columns in fp32 take 16 KiB of L1
constexpr int64_t kRowStride = 144;  // not a power of two: rows of one tile spread over the cache's sets
constexpr int kPanel = 16;

// Memory that will be wanted next, fetched while the tile computes: a step further for each k, for each panel.
struct Ahead {
  const char* from;
  int64_t step, panel;  // bytes
};

// accumulators[r * row + p * 16 + j] (+)= sum over k of a[r * kRowStride + k] * b[p * panel_stride + k * k_stride + j]
// for r < rows, p < panels, j < 16; `fresh` starts from zero. b is of the element type the kernel was asked for.
using Micro = void (*)(const float* a, const void* b, int64_t panel_stride, int64_t k_stride, int64_t k,
                       float* accumulators, int64_t row, bool fresh, Ahead ahead);

struct Kernels {
  int max_rows;  // rows of the tallest tile
  // Tile of `rows` x (panels * 16); null where it does not fit the registers. panels: 1, 2, 4, 8.
  Micro (*micro)(Element type, int rows, int panels);
  // to[k * 16 + j] = from[k * k_stride + j], j < 16.
  void (*pack_columns)(Element type, const void* from, int64_t k_stride, int64_t k, float* to);
  // to[k * 16 + j] = from[j * n_stride + k], j < 16 (k contiguous): a transposition.
  void (*pack_rows)(Element type, const void* from, int64_t n_stride, int64_t k, float* to);
  // to[i] = from[i], widened.
  void (*widen)(Element type, const void* from, int64_t count, float* to);
  // to[i] = from[i], rounded to nearest even.
  void (*narrow)(Element type, const float* from, int64_t count, void* to);
};

const Kernels& portable_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();

}  // namespace aloft::matmul_detail
