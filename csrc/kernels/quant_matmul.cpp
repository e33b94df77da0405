// The loop nest around the tiles. For one product:
//   activations with zeros behind k (unless they can be read in place), sums of their groups             (parallel)
//   block of rows x block of columns                                                                     (parallel)
//     run of up to kRun values of k
//       pack the weights of the block
//       for each group in it: all rows times the packed weights; at a group's end: sums += acc * scale
//     scale, bias, rounding, store
// k is never split between threads.
#include "kernels/quant_matmul.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/parallel.h"
#include "kernels/quant_finish_impl.h"
#include "kernels/quant_isa.h"
#include "kernels/quant_scratch.h"

namespace aloft {
namespace quant_detail {

bool has_vnni() {
#if defined(__x86_64__)
  static const bool found = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
  return found;
#else
  return false;
#endif
}

namespace {

constexpr int64_t kShortRun = 512, kLongRun = 2048;  // values of k packed at a time, for few and for many rows
constexpr int64_t kFewRows = 4;                      // up to here packing is the work: AMX gains nothing
constexpr int64_t kFinishedRows = 256;               // rows whose sums are finished together: they stay in the cache
constexpr int64_t kMaxRows = 512;                    // rows that share one packing of the weights
constexpr int64_t kTaskWork = 1 << 17;               // multiply-adds below which a task is not worth handing out

const QuantTiles& tiles(int bits, int64_t rows) {
#if defined(__x86_64__)
#if defined(ALOFT_WITH_AMX)
  if (isa() >= Isa::Amx && rows > kFewRows) return amx_tiles();
#endif
  if (isa() >= Isa::Avx512 && has_vnni()) return vnni_tiles();
  if (isa() >= Isa::Avx2) return avx2_tiles(bits);
#endif
  isa();
  return portable_tiles();
}

const Finish& finish() {
  static const Finish portable = {combine_row, store_rows};
#if defined(__x86_64__)
  static const Finish& best = isa() >= Isa::Avx512 ? kFinishAvx512 : isa() >= Isa::Avx2 ? kFinishAvx2 : portable;
#else
  static const Finish& best = portable;
#endif
  return best;
}

struct Left {
  const int8_t* rows;
  int64_t stride;
  int32_t* sums;   // [groups][m]: sums of the group's values
  int32_t* start;  // [groups][m]: -flip * sums
};

// Reads beyond k stay in the row: zeros, or the next group's values against zeros of the weights.
Left prepare(const QuantMatmul& c, const QuantTiles& t, int64_t group, int64_t groups) {
  thread_local Scratch<int8_t> copies;
  thread_local Scratch<int32_t> sums;
  Left left;
  const bool in_place = c.k % 64 == 0 && (groups == 1 || group % t.k_align == 0);
  left.stride = in_place ? c.a_stride : rounded_up(c.k, 64) + 64;
  int8_t* copy = in_place ? nullptr : copies.get(c.m * left.stride);
  left.rows = in_place ? c.a : copy;
  const bool want_sums = t.flip || c.zero;
  left.sums = sums.get(2 * groups * c.m);
  left.start = left.sums + groups * c.m;
  if (in_place && !want_sums) {
    std::memset(left.sums, 0, sizeof(int32_t) * static_cast<size_t>(2 * groups * c.m));
    return left;
  }
  parallel_for(c.m, std::max<int64_t>(1, 65536 / std::max<int64_t>(1, c.k)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int8_t* from = c.a + r * c.a_stride;
      if (copy) {
        int8_t* to = copy + r * left.stride;
        std::memcpy(to, from, static_cast<size_t>(c.k));
        std::memset(to + c.k, 0, static_cast<size_t>(left.stride - c.k));
      }
      for (int64_t g = 0; g < groups; ++g) {
        int32_t sum = 0;
        if (want_sums) {
          const int64_t last = std::min(c.k, (g + 1) * group);
          for (int64_t k = g * group; k < last; ++k) sum += from[k];
        }
        left.sums[g * c.m + r] = sum;
        left.start[g * c.m + r] = -t.flip * sum;
      }
    }
  });
  return left;
}

struct Block {
  int64_t row0, rows, n0, columns, width;
  int panels;
};

struct Span {
  const uint8_t* from = nullptr;
  int64_t bytes = 0;
};

// The weights of the block of columns behind this one, where they lie in one piece.
Span next_weights(const QuantMatmul& c, const Block& b) {
  const int64_t n0 = b.n0 + b.width, columns = std::min(b.width, c.n - n0);
  if (columns <= 0) return {};
  const int64_t per = 8 / c.b.bits;
  if (c.b.layout == QuantLayout::Rows) return {c.b.data + n0 * c.b.stride, columns * c.b.stride};
  if (c.b.layout != QuantLayout::Panels || n0 / per % c.b.line) return {};
  return {c.b.data + n0 / per / c.b.line * c.b.stride * c.b.line, c.k * c.b.line};
}

void run_block(const QuantMatmul& c, const QuantTiles& t, const Left& left, int64_t group, bool grouped,
               const Block& b) {
  thread_local Scratch<uint8_t> packed;
  thread_local Scratch<int32_t> accumulators;
  thread_local Scratch<float> float_sums;
  const int64_t width = b.width;
  const int64_t longest = std::min(rounded_up(c.k, t.k_align), b.rows < 16 ? kShortRun : kLongRun);
  const int64_t run = grouped ? std::max<int64_t>(1, longest / group) * group : longest;
  const int64_t unit = grouped ? group : run;  // k values multiplied at a time
  const int64_t unit_bytes = rounded_up(unit, t.k_align) * kColumns;
  const int64_t panel_stride = unit_bytes * ((run + unit - 1) / unit);
  uint8_t* weights = packed.get(panel_stride * b.panels);
  int32_t* acc = accumulators.get(b.rows * width);
  float* sums = grouped ? float_sums.get(b.rows * width) : nullptr;
  const auto combine = [&](int64_t g) {
    const float* scale = c.scale + (c.scale_step ? g * c.n + b.n0 : g);
    const float* zero = c.zero ? c.zero + g * c.n + b.n0 : nullptr;
    for (int64_t r = 0; r < b.rows; ++r) {
      finish().combine(acc + r * width, scale, c.scale_step, zero, static_cast<float>(left.sums[g * c.m + b.row0 + r]),
                       sums + r * width, g == 0, b.columns);
    }
  };
  bool done = false;
  if (t.direct && c.k > 0) {
    for (int64_t k = 0, g = 0; k < c.k; k += group, ++g) {
      done = t.direct(c.b, c.n, b.n0, b.panels, k, std::min(group, c.k - k), left.rows + b.row0 * left.stride + k,
                      left.stride, b.rows, left.sums + g * c.m + b.row0, acc, width);
      if (!done) break;
      if (grouped) combine(g);
    }
  }
  if (!done && !grouped && c.k > 0 && c.k <= run) {  // one packing: rows are finished while their sums are at hand
    t.pack(c.b, c.n, b.n0, b.panels, 0, c.k, weights, panel_stride);
    const Span ahead = next_weights(c, b);
    const int64_t share = ahead.bytes * kFinishedRows / b.rows / 64 * 64 + 64;
    for (int64_t r = 0; r < b.rows; r += kFinishedRows) {
      const int64_t rows = std::min(kFinishedRows, b.rows - r), at = r / kFinishedRows * share;
      for (int64_t i = at; i < std::min(ahead.bytes, at + share); i += 64) __builtin_prefetch(ahead.from + i, 0, 2);
      t.multiply(left.rows + (b.row0 + r) * left.stride, left.stride, rows, weights, panel_stride, b.panels, c.k,
                 left.start + b.row0 + r, acc, width, true);
      finish().store(c, b.row0 + r, rows, b.n0, b.columns, acc, nullptr, width);
    }
    return;
  }
  for (int64_t k0 = 0; k0 < c.k && !done; k0 += run) {
    const int64_t end = std::min(c.k, k0 + run);
    int64_t at = 0;
    for (int64_t k = k0; k < end; k += unit, at += unit_bytes) {
      const int64_t length = std::min(unit, end - k), g = k / group;
      t.pack(c.b, c.n, b.n0, b.panels, k, length, weights + at, panel_stride);
      t.multiply(left.rows + b.row0 * left.stride + k, left.stride, b.rows, weights + at, panel_stride, b.panels,
                 length, left.start + g * c.m + b.row0, acc, width, grouped || k == 0);
      if (grouped) combine(g);
    }
  }
  if (c.k == 0) std::memset(acc, 0, sizeof(int32_t) * static_cast<size_t>(b.rows * width));
  finish().store(c, b.row0, b.rows, b.n0, b.columns, acc, sums, width);
}

}  // namespace
}  // namespace quant_detail

void quant_matmul(const QuantMatmul& c) {
  using namespace quant_detail;
  if (c.m == 0 || c.n == 0) return;
  const QuantTiles& t = tiles(c.b.bits, c.m);
  // A zero point or a second group goes the way of the groups.
  const bool grouped = c.group > 0 && (c.zero || c.group < c.k);
  const int64_t group = grouped ? c.group : std::max<int64_t>(1, c.k);
  const int64_t groups = std::max<int64_t>(1, (c.k + group - 1) / group);
  const Left left = prepare(c, t, group, groups);
  const bool wide = c.b.bits == 4 && (c.b.layout == QuantLayout::Cols || c.b.layout == QuantLayout::Panels);
  const int64_t columns = wide ? 64 : 32;
  const int64_t column_blocks = (c.n + columns - 1) / columns;
  int64_t row_blocks = (c.m + kMaxRows - 1) / kMaxRows;
  const int64_t wanted = 4 * num_threads();
  if (column_blocks * row_blocks < wanted && c.m >= 64) {
    row_blocks = std::min(c.m / 32, (wanted + column_blocks - 1) / column_blocks);
  }
  const int64_t height = rounded_up((c.m + row_blocks - 1) / row_blocks, c.m >= 16 ? 16 : 1);
  row_blocks = (c.m + height - 1) / height;
  const int64_t grain = std::max<int64_t>(1, kTaskWork / std::max<int64_t>(1, std::min(height, c.m) * columns * c.k));
  parallel_for(row_blocks * column_blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Block b;
      b.row0 = i / column_blocks * height, b.rows = std::min(height, c.m - b.row0);
      b.n0 = i % column_blocks * columns, b.columns = std::min(columns, c.n - b.n0);
      b.panels = static_cast<int>((b.columns + kColumns - 1) / kColumns);
      b.width = columns;
      run_block(c, t, left, group, grouped, b);
    }
  });
}

void unpack_int4(const uint8_t* packed, int64_t count, int8_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    const int nibble = packed[i / 2] >> (i % 2 * 4) & 15;
    to[i] = static_cast<int8_t>(nibble >= 8 ? nibble - 16 : nibble);
  }
}

}  // namespace aloft
