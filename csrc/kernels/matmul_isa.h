// What one instruction set provides to the loop nest in matmul.cpp, and the product both of them work on.
//
// The right operand is consumed in pairs of panels of 16 columns; k in steps of kStep (the accumulation order of
// matmul.h), a chunk of kChunk values at a time where the left operand has many rows.
#pragma once
#include <cstdint>

#include "kernels/compact.h"
#include "kernels/half.h"
#include "kernels/matmul.h"

namespace aloft::matmul_detail {

constexpr int64_t kStep = 32;
constexpr int64_t kChunk = 128;      // k values handled at a time: a pair of panels in fp32 takes 16 KiB of L1
constexpr int64_t kRowStride = 144;  // not a power of two: rows of one tile spread over the cache's sets
constexpr int kPanel = 16, kPair = 2 * kPanel;
constexpr int64_t kAhead = 96;  // k values: how far in front weights are fetched, in each of the two panels

struct Product {
  int64_t m, n, k;
  Operand a, b, out, addend;
  float alpha, beta;
  Epilogue epilogue = nullptr;
  const void* context = nullptr;
  Halves halves = Halves::Adjacent;
  compact::Weights compact = {};  // the right operand, where it is in this form (AVX-512 only)

  bool is_compact() const { return compact.header != nullptr; }
  bool plain() const { return !epilogue && !addend.data && alpha == 1; }  // the sums are rounded and stored
  bool gated() const { return halves == Halves::Gated; }
  int64_t panels() const { return (n + kPanel - 1) / kPanel; }
  int64_t pairs() const { return (panels() + 1) / 2; }
  int64_t first_panel(int64_t pair) const { return gated() ? pair : 2 * pair; }
  int panels_of(int64_t pair) const { return gated() || 2 * pair + 1 < panels() ? 2 : 1; }
  int64_t panel_step() const { return gated() ? panels() / 2 : 1; }  // from the first panel of a pair to the second
};

// sums[r][0 .. 32) are finished sums of rows row0 .. row0 + rows for the columns of `pair`, kPair floats a row:
// the epilogue, or else alpha, addend, rounding, store. The sums are overwritten.
void finish(const Product& c, int64_t row0, int64_t rows, int64_t pair, float* sums);

// sums[r * row + p * 16 + j] (+)= sum over k of a[r * a_row + k] * b[p * panel_stride + k * k_stride + j]
// for r < rows, p < panels, j < 16; `fresh` starts from zero. k is a multiple of kStep but at the product's end.
// `ahead`: memory that will be wanted next, fetched while the tile computes, a step further for every two k.
struct Tile {
  const float* a;
  int64_t a_row;
  const void* b;  // of the element type the kernel was asked for; strides in elements
  int64_t panel_stride, k_stride;
  int64_t k;
  float* sums;
  int64_t row;
  bool fresh;
  const char* ahead;
  int64_t ahead_step, ahead_panel;  // bytes
};
using Micro = void (*)(const Tile& tile);

// The same for compact weights and all of k: panels[0 .. count) of the matrix; `later`: those that come next.
struct CompactTile {
  const compact::Weights* weights;
  int64_t panel[2], later[2];
  const float* a;
  int64_t a_row;
  float* sums;  // rows of kPair
};
using CompactMicro = void (*)(const CompactTile& tile);

struct Kernels {
  int max_rows;  // rows of the tallest tile
  // Tile of `rows` x (panels * 16), panels 1 or 2; null where it does not fit the registers.
  Micro (*micro)(Element type, int rows, int panels);
  // to[k * 16 + j] = from[k * k_stride + j], j < 16.
  void (*pack_columns)(Element type, const void* from, int64_t k_stride, int64_t k, float* to);
  // to[k * 16 + j] = from[j * n_stride + k], j < 16 (k contiguous): a transposition.
  void (*pack_rows)(Element type, const void* from, int64_t n_stride, int64_t k, float* to);
  // to[i] = from[i], widened.
  void (*widen)(Element type, const void* from, int64_t count, float* to);
  // to[r * to_stride + i] = from[r * kPair + i], rounded to nearest even, for i < count <= kPair, r < rows.
  void (*narrow)(Element type, const float* from, int64_t rows, int64_t count, void* to, int64_t to_stride);
  // Compact weights, null where they are expanded instead: tiles of up to max_rows rows x 1 or 2 panels; a unit as
  // fp32, to[k * 16 + j], k < 32.
  CompactMicro (*compact_micro)(int rows, int panels);
  void (*widen_unit)(const compact::Weights& from, int64_t index, float* to);
};

const Kernels& kernels();  // those of isa()
const Kernels& portable_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();

// bf16 products through AMX tiles: rows row0 .. row0 + rows, pairs begin .. end. a: the first of these rows, each of
// k rounded up to kStep values (zero-filled), a_row apart.
void amx_multiply(const Product& c, const bf16* a, int64_t a_row, int64_t row0, int64_t rows, int64_t begin,
                  int64_t end);

}  // namespace aloft::matmul_detail
