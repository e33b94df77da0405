// What one instruction set provides to the loop nest of quant_matmul.cpp.
//
// Weights are consumed packed: panels of 16 columns, [k / 4][16][4] bytes, so that one 64-byte line holds four
// values of k of 16 columns. Activations are int8 rows, zero beyond k.
#pragma once
#include <cstdint>

#include "kernels/quant_matmul.h"

namespace aloft::quant_detail {

constexpr int kColumns = 16;  // of a panel

// One row times a panel of FRACTAL_NZ with lines of 32 bytes.
struct RowBlock {
  const uint8_t *weights, *next;  // next: the panel that this thread reads behind this one
  int bits;
  const int8_t* a;  // [k], readable up to a multiple of 4: zeros
  int64_t k, group;
  const int32_t* sums;  // of a in each group
  // With scales, F32 or I64, scale_group elements from one group to the next, `to` receives the floats of `combine`
  // below, else the integer sums of the only group.
  const void *scale, *next_scale;
  DType scale_dtype;
  int64_t scale_group;
  void* to;
};

struct QuantTiles {
  // Added to every weight while packing, so that it becomes unsigned; the sums are made good by `start`.
  int flip;
  // Packed runs of k are padded to a multiple of this (with zeros where flip is 0; activations are zero there too,
  // or lie beyond the run: then the padding must be zero).
  int k_align;
  // Columns [n0, n0 + 16 * panels) of k0 <= k < k0 + length, n0 a multiple of 64 for int4 in panels or n contiguous,
  // else of 32. Columns beyond n are arbitrary.
  void (*pack)(const QuantWeight& w, int64_t n, int64_t n0, int panels, int64_t k0, int64_t length, uint8_t* to,
               int64_t panel_stride);
  // acc[r][p * 16 + j] = (fresh ? start[r] : acc) + sum over k < length of a[r][k] * b[k][p * 16 + j].
  void (*multiply)(const int8_t* a, int64_t a_stride, int64_t rows, const uint8_t* b, int64_t panel_stride, int panels,
                   int64_t length, const int32_t* start, int32_t* acc, int64_t acc_stride, bool fresh);
  // For a few rows, or null: one block of 32 columns (64 of int4 that lies along n) without packing, the sums of each
  // group of k0 <= k < k0 + length: acc[g * acc_group + r * acc_stride + j]; `sums` of the activations alike, sums[g *
  // sums_group + r]. acc has room for whole blocks. False: not for these weights or this many rows.
  bool (*direct)(const QuantWeight& w, int64_t n, int64_t n0, int panels, int64_t k0, int64_t length, int64_t group,
                 const int8_t* a, int64_t a_stride, int64_t rows, const int32_t* sums, int64_t sums_group, int32_t* acc,
                 int64_t acc_stride, int64_t acc_group) = nullptr;
  // See RowBlock; or null.
  void (*row)(const RowBlock&) = nullptr;
  // to[g * to_step] = sum of a in group g; or null.
  void (*group_sums)(const int8_t* a, int64_t k, int64_t group, int32_t* to, int64_t to_step) = nullptr;
};

// What goes on beside the products of a step of 64 values of k.
struct Beside {
  void* self;
  void (*run)(void* self, int64_t step);
};

// Sums of blocks of up to 32 rows x two panels, one after the other, through registers that keep them: the sums of a
// block are stored while the next one begins.
struct QuantStream {
  void (*begin)(int64_t rows);  // of every block until end(); both in the same thread
  void (*end)();
  // `steps` times 64 values of k; panels `first` and `second`. The sums of the block before go to `before` [32, 32]
  // (null: there was none) within the first step. once: lines of a are not wanted again soon.
  void (*block)(int64_t rows, const int8_t* a, int64_t a_stride, const uint8_t* first, const uint8_t* second,
                int64_t steps, int32_t* before, bool once, const Beside& beside);
  void (*flush)(int64_t rows, int32_t* before);
};

const QuantStream& amx_stream();
const QuantTiles& portable_tiles();
const QuantTiles& avx2_tiles(int bits);
const QuantTiles& vnni_tiles();  // AVX-512 with VNNI and VBMI
const QuantTiles& amx_tiles();
bool has_vnni();                     // what vnni_tiles and signed_pack512 need beyond Isa::Avx512
const QuantTiles& signed_pack512();  // flip 0, k_align 4; for `pack` only

// Where a block of results goes: its first element, elements between rows.
struct Target {
  void* data;
  DType dtype;
  int64_t stride;
  bool normal = false;    // no result is denormal: rounding may treat them as it likes
  bool streamed = false;  // lines of 64 bytes go past the caches, where that is supported
};

// Integer sums of some groups and what makes floats of them; the strides are those from one group to the next.
struct GroupSums {
  const int32_t* acc;  // [rows, width] each
  int64_t acc_group;
  const float* scale;
  int64_t scale_group;
  int64_t step;  // 0: one scale for all columns
  const float* zero;
  int64_t zero_group;
  const int32_t* a_sums;  // of the activations, [rows] each
  int64_t a_sums_group;
  int64_t groups;
};

// What follows the integer sums. `scale` is that of the block's first column.
struct Finish {
  // sums[r][j] (+)= (float(acc[r][j]) - zero[j] * a_sums[r]) * scale[j * step] for all groups in order, j < n; rows of
  // `width` values. first: there are no sums yet.
  void (*combine)(const GroupSums& from, float* sums, int64_t width, int64_t rows, int64_t n, bool first);
  // Columns [n0, n0 + n) of `rows` rows, from acc or (with groups) from sums, which have `width` values a row.
  void (*store)(const QuantMatmul& call, int64_t row0, int64_t rows, int64_t n0, int64_t n, const int32_t* acc,
                const float* sums, int64_t width, const float* scale, const Target& to);
  // n values of a 16-bit float type, or the floats in the low halves of int64.
  void (*widen)(DType type, const void* from, int64_t n, float* to);
};
extern const Finish kFinishAvx2, kFinishAvx512;

inline uint8_t weight_byte(const QuantWeight& w, int64_t line, int64_t position) {
  switch (w.layout) {
    case QuantLayout::Rows:
    case QuantLayout::Cols:
      return w.data[line * w.stride + position];
    default:
      return w.data[(position / w.line * w.stride + line) * w.line + position % w.line];
  }
}
// One weight, whatever the layout.
inline int weight_at(const QuantWeight& w, int64_t k, int64_t n) {
  const bool along_k = w.layout == QuantLayout::Rows || w.layout == QuantLayout::PanelsRows;
  const int64_t line = along_k ? n : k, index = along_k ? k : n;
  if (w.bits == 8) return static_cast<int8_t>(weight_byte(w, line, index));
  const int nibble = weight_byte(w, line, index / 2) >> (index % 2 * 4) & 15;
  return nibble >= 8 ? nibble - 16 : nibble;
}

}  // namespace aloft::quant_detail
