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
#include <stdexcept>

#include "acl/dtype.h"
#include "kernels/activation.h"
#include "kernels/cpu.h"
#include "kernels/parallel.h"
#include "kernels/quant_finish_impl.h"
#include "kernels/quant_isa.h"
#include "kernels/quant_many.h"
#include "kernels/quant_scratch.h"
#include "kernels/shares.h"
#include "kernels/upcoming.h"

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

const Finish& finish() {
  static const Finish portable = {combine_rows, store_rows, widen_any};
#if defined(__x86_64__)
  static const Finish& best = isa() >= Isa::Avx512 ? kFinishAvx512 : isa() >= Isa::Avx2 ? kFinishAvx2 : portable;
#else
  static const Finish& best = portable;
#endif
  return best;
}

namespace {

constexpr int64_t kShortRun = 512, kLongRun = 2048;  // values of k packed at a time, for few and for many rows
constexpr int64_t kFewRows = 4;                      // up to here packing is the work: AMX gains nothing
constexpr int64_t kBlockRows = 32;                   // more go through a stream of blocks, where there is one
constexpr int64_t kFinishedRows = 256;               // rows whose sums are finished together: they stay in the cache
constexpr int64_t kMaxRows = 512;                    // rows that share one packing of the weights
constexpr int64_t kMostLeft = int64_t{1} << 20;  // bytes of activations that stay in the second level beside the rest
constexpr int64_t kMostColumns = 64;             // of a block
constexpr int64_t kMostOfRow = 65536;            // sixteen times the sums of so many values fit
constexpr int64_t kTaskWork = 1 << 17;           // multiply-adds below which a task is not worth handing out

// For many rows, or null.
const QuantStream* stream_of(int64_t rows) {
#if defined(__x86_64__) && defined(ALOFT_WITH_AMX)
  if (isa() >= Isa::Amx && rows > kBlockRows) return &amx_stream();
#else
  (void)rows;
#endif
  return nullptr;
}

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
      if (want_sums && t.group_sums) t.group_sums(from, c.k, group, left.sums + r, c.m);
      for (int64_t g = 0; g < groups; ++g) {
        int32_t sum = want_sums && t.group_sums ? left.sums[g * c.m + r] : 0;
        if (want_sums && !t.group_sums) {
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

// A block of results. With a gate, `columns` of the first half and as many of the second.
struct Block {
  int64_t row0, rows, n0, columns, width;
  int panels;
  int parts;
  int64_t half;  // columns from the first part to the second
  int64_t all() const { return width * parts; }
  int64_t first(int part) const { return n0 + part * half; }
};

// The scales of a block's columns as floats.
class Scales {
 public:
  // groups: how many are asked for; none at all with 0.
  Scales(const QuantMatmul& c, const Block& b, int64_t groups) : call_(c), block_(b), none_(!c.scale || groups == 0) {
    if (none_ || c.scale_dtype == DType::F32) return;
    thread_local Scratch<float> converted;
    const int64_t each = c.scale_step ? b.columns : 1;
    float* to = converted.get(groups * b.parts * b.width);
    converted_ = to;
    for (int64_t g = 0; g < groups; ++g) {
      for (int p = 0; p < b.parts; ++p, to += b.width) {
        const int64_t at = c.scale_step ? g * c.n + b.first(p) : g;
        finish().widen(c.scale_dtype, static_cast<const int64_t*>(c.scale) + at, each, to);
      }
    }
  }
  const float* of(int64_t group, int part) const {
    if (converted_) return converted_ + (group * block_.parts + part) * block_.width;
    if (none_) return nullptr;
    return static_cast<const float*>(call_.scale) + (call_.scale_step ? group * call_.n + block_.first(part) : group);
  }

  int64_t step() const {  // between groups
    return converted_ ? block_.parts * block_.width : call_.scale_step ? call_.n : 1;
  }

 private:
  const QuantMatmul& call_;
  const Block& block_;
  const bool none_;
  const float* converted_ = nullptr;
};

// Rows [row, row + rows) of a block, from integer or float sums [rows, block.all()].
void store(const QuantMatmul& c, const Block& b, const Scales& scales, int64_t row, int64_t rows, const int32_t* acc,
           const float* sums) {
  const int64_t width = b.all(), item = static_cast<int64_t>(dtype_size(c.out_dtype));
  char* to = static_cast<char*>(c.out) + (row * c.out_stride + b.n0) * item;
  if (b.parts == 1) {
    return finish().store(c, row, rows, b.n0, b.columns, acc, sums, width, scales.of(0, 0),
                          {to, c.out_dtype, c.out_stride});
  }
  thread_local Scratch<float> pairs;
  constexpr int64_t kPair = 2 * kColumns;
  const bool one = rows == 1;  // its columns are activated together
  float* pair = pairs.get((one ? b.columns / kColumns : rows) * kPair);
  for (int64_t j = 0; j < b.columns; j += kColumns, pair += one ? kPair : 0) {
    for (int p = 0; p < 2; ++p) {
      const int64_t at = p * b.width + j;
      const float* scale = scales.of(0, p);
      finish().store(c, row, rows, b.first(p) + j, kColumns, acc + at, sums ? sums + at : nullptr, width,
                     scale ? scale + (c.scale_step ? j : 0) : nullptr, {pair + p * kColumns, DType::F32, kPair});
    }
    if (!one) gated_sums(Activation::Silu, c.out_dtype, pair, rows, to + j * item, c.out_stride);
  }
  const int64_t columns = b.columns / kColumns;
  if (one) gated_sums(Activation::Silu, c.out_dtype, pair - columns * kPair, columns, to, kColumns);
}

// One row of whole blocks, panel after panel.
bool suits_row(const QuantMatmul& c, const QuantTiles& t, bool grouped, int64_t group, int64_t columns, int64_t n) {
  const bool scales = !grouped || (!c.zero && c.scale && c.scale_step == 1 &&
                                   (c.scale_dtype == DType::F32 || c.scale_dtype == DType::I64));
  return c.m == 1 && t.row && c.k > 0 && group <= kMostOfRow && c.b.layout == QuantLayout::Panels && c.b.line == 32 &&
         n % columns == 0 && scales;
}

// next: the first column of the block that follows in this thread, negative where that is not known.
void run_row(const QuantMatmul& c, const QuantTiles& t, const Left& left, int64_t group, bool grouped, const Block& b,
             int64_t next) {
  alignas(64) int32_t acc[2 * kMostColumns];
  alignas(64) float sums[2 * kMostColumns];
  const int64_t panel = c.b.stride * c.b.line, item = c.scale_dtype == DType::F32 ? 4 : 8;
  const auto weights = [&](int64_t n0) { return c.b.data + n0 / b.width * panel; };
  const auto scale = [&](int64_t n0) { return grouped ? static_cast<const char*>(c.scale) + n0 * item : nullptr; };
  for (int p = 0; p < b.parts; ++p) {
    const int64_t n0 = b.first(p), then = p + 1 < b.parts ? b.first(p + 1) : next;
    const auto* ahead = then < 0 ? static_cast<const uint8_t*>(upcoming::follows()) : weights(then);
    void* to = grouped ? static_cast<void*>(sums + p * b.width) : acc + p * b.width;
    t.row({weights(n0), ahead ? ahead : weights(n0), c.b.bits, left.rows, c.k, group, left.sums, scale(n0),
           scale(then < 0 ? n0 : then), c.scale_dtype, c.n, to});
  }
  const Scales scales(c, b, grouped ? 0 : 1);
  store(c, b, scales, 0, 1, acc, grouped ? sums : nullptr);
}

void run_block(const QuantMatmul& c, const QuantTiles& t, const Left& left, int64_t group, bool grouped,
               const Block& b) {
  thread_local Scratch<uint8_t> packed;
  thread_local Scratch<int32_t> accumulators;
  thread_local Scratch<float> float_sums;
  const int64_t width = b.all();
  const int64_t longest = std::min(rounded_up(c.k, t.k_align), b.rows < 16 ? kShortRun : kLongRun);
  const int64_t run = grouped ? std::max<int64_t>(1, longest / group) * group : longest;
  const int64_t unit = grouped ? group : run;  // k values multiplied at a time
  const int64_t unit_bytes = rounded_up(unit, t.k_align) * kColumns;
  const int64_t panel_stride = unit_bytes * ((run + unit - 1) / unit);
  const int panels = b.panels * b.parts;
  uint8_t* weights = packed.get(panel_stride * panels);
  const int64_t groups = (c.k + group - 1) / group;
  const bool few = t.direct && c.k > 0 && b.rows <= kBlockRows;
  int32_t* acc = accumulators.get(b.rows * width * (few ? std::max<int64_t>(1, groups) : 1));
  float* sums = grouped ? float_sums.get(b.rows * width) : nullptr;
  const Scales scales(c, b, grouped ? groups : 1);
  const auto combine = [&](int64_t g, int64_t count) {  // their sums are in acc
    for (int p = 0; p < b.parts; ++p) {
      const GroupSums from = {acc + p * b.width,
                              b.rows * width,
                              scales.of(g, p),
                              scales.step(),
                              c.scale_step,
                              c.zero ? c.zero + g * c.n + b.first(p) : nullptr,
                              c.n,
                              left.sums + g * c.m + b.row0,
                              c.m,
                              count};
      finish().combine(from, sums + p * b.width, width, b.rows, b.columns, g == 0);
    }
  };
  const auto pack = [&](int64_t k, int64_t length, uint8_t* to) {
    for (int p = 0; p < b.parts; ++p) {
      t.pack(c.b, c.n, b.first(p), b.panels, k, length, to + p * b.panels * panel_stride, panel_stride);
    }
  };
  // A very few rows are bound by memory all the time: what follows the sums of a group comes at once, in between.
  bool done = few;
  const int64_t piece = b.rows <= kFewRows ? group : c.k;
  for (int64_t k = 0, g = 0; k < c.k && done; k += piece) {
    for (int p = 0; p < b.parts && done; ++p) {
      done = t.direct(c.b, c.n, b.first(p), b.panels, k, std::min(piece, c.k - k), group,
                      left.rows + b.row0 * left.stride + k, left.stride, b.rows, left.sums + g * c.m + b.row0, c.m,
                      acc + p * b.width, width, b.rows * width);
    }
    const int64_t count = piece < c.k ? 1 : groups;
    if (done && grouped) combine(g, count);
    g += count;
  }
  if (!done && !grouped && c.k > 0 && c.k <= run) {  // one packing: rows are finished while their sums are at hand
    pack(0, c.k, weights);
    for (int64_t r = 0; r < b.rows; r += kFinishedRows) {
      const int64_t rows = std::min(kFinishedRows, b.rows - r);
      t.multiply(left.rows + (b.row0 + r) * left.stride, left.stride, rows, weights, panel_stride, panels, c.k,
                 left.start + b.row0 + r, acc, width, true);
      store(c, b, scales, b.row0 + r, rows, acc, nullptr);
    }
    return;
  }
  for (int64_t k0 = 0; k0 < c.k && !done; k0 += run) {
    const int64_t end = std::min(c.k, k0 + run);
    int64_t at = 0;
    for (int64_t k = k0; k < end; k += unit, at += unit_bytes) {
      const int64_t length = std::min(unit, end - k), g = k / group;
      pack(k, length, weights + at);
      t.multiply(left.rows + b.row0 * left.stride + k, left.stride, b.rows, weights + at, panel_stride, panels, length,
                 left.start + g * c.m + b.row0, acc, width, grouped || k == 0);
      if (grouped) combine(g, 1);
    }
  }
  if (c.k == 0) std::memset(acc, 0, sizeof(int32_t) * static_cast<size_t>(b.rows * width));
  store(c, b, scales, b.row0, b.rows, acc, sums);
}

int64_t block_columns(const QuantWeight& w) {
  return w.bits == 4 && (w.layout == QuantLayout::Cols || w.layout == QuantLayout::Panels) ? 64 : 32;
}

// Says what is about to be read, where it lies in one piece. parts, halves: see upcoming::Reading.
void announce(const QuantMatmul& c, int parts, int halves) {
  const bool panels = c.b.layout == QuantLayout::Panels, rows = c.b.layout == QuantLayout::Rows;
  if (c.m > upcoming::kFewRows || !(panels || rows)) return upcoming::none();
  const int64_t line = panels ? c.b.line : c.b.stride, values = panels ? line * 8 / c.b.bits : 1;
  const int64_t block = (panels ? c.b.stride : 1) * line;
  upcoming::reading({c.b.data, (c.n + values - 1) / values * block, block, parts, halves});
}

void multiply(const QuantMatmul& c, bool gated) {
  if (c.m == 0 || c.n == 0) return;
  const QuantTiles& t = tiles(c.b.bits, c.m);
  // A zero point or a second group goes the way of the groups.
  const bool grouped = c.group > 0 && (c.zero || c.group < c.k);
  const int64_t group = grouped ? c.group : std::max<int64_t>(1, c.k);
  const int64_t groups = std::max<int64_t>(1, (c.k + group - 1) / group);
  const int64_t columns = block_columns(c.b), n = gated ? c.n / 2 : c.n, parts = gated ? 2 : 1;
  const int64_t column_blocks = (n + columns - 1) / columns;
  if (suits_row(c, t, grouped, group, columns, n)) {
    const int shares = shares_of(column_blocks, kTaskWork / std::max<int64_t>(1, columns * parts * c.k));
    announce(c, shares, static_cast<int>(parts));
    const Left left = prepare(c, t, group, groups);
    return parallel_shares(column_blocks, shares, [&](int64_t i, int64_t next) {
      const Block b = {
          0, 1, i * columns, columns, columns, static_cast<int>(columns / kColumns), static_cast<int>(parts), n};
      run_row(c, t, left, group, grouped, b, next * columns);
    });
  }
  announce(c, 0, 1);
  const Left left = prepare(c, t, group, groups);
  const QuantStream* stream = stream_of(c.m);
  const int64_t most =
      stream ? std::clamp<int64_t>(kMostLeft / std::max<int64_t>(1, c.k) / 32 * 32, 64, kMaxRows) : kMaxRows;
  int64_t row_blocks = (c.m + most - 1) / most;
  const int64_t wanted = 4 * num_threads();
  if (column_blocks * row_blocks < wanted && c.m >= 64) {
    row_blocks = std::min(c.m / 32, (wanted + column_blocks - 1) / column_blocks);
  }
  const int64_t height = rounded_up((c.m + row_blocks - 1) / row_blocks, c.m >= 16 ? stream ? 32 : 16 : 1);
  row_blocks = (c.m + height - 1) / height;
  const int64_t work = std::min(height, c.m) * columns * parts * c.k;
  const int64_t grain = std::max<int64_t>(1, kTaskWork / std::max<int64_t>(1, work));
  if (stream && c.k > 0) {
    const Many many = {c, t, *stream, left, group, groups, grouped, columns, static_cast<int>(parts), n};
    const bool normal = !c.row_scale || all_normal(c.row_scale, c.m, kNormalRow);
    return parallel_for(row_blocks * column_blocks, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end;) {
        const int64_t row0 = i / column_blocks * height, first = i % column_blocks;
        const int64_t last = std::min(column_blocks, first + end - i);
        multiply_many(many, normal, row0, std::min(height, c.m - row0), first, last);
        i += last - first;
      }
    });
  }
  parallel_for(row_blocks * column_blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Block b;
      b.row0 = i / column_blocks * height, b.rows = std::min(height, c.m - b.row0);
      b.n0 = i % column_blocks * columns, b.columns = std::min(columns, n - b.n0);
      b.panels = static_cast<int>((b.columns + kColumns - 1) / kColumns);
      b.width = columns, b.parts = static_cast<int>(parts), b.half = n;
      run_block(c, t, left, group, grouped, b);
    }
  });
}

}  // namespace
}  // namespace quant_detail

void quant_matmul(const QuantMatmul& c) { quant_detail::multiply(c, false); }

int64_t quant_gate_columns(const QuantWeight& weight) { return quant_detail::block_columns(weight); }

void quant_matmul_gated(const QuantMatmul& c) {
  if (c.n % (2 * quant_gate_columns(c.b))) throw std::invalid_argument("the halves of a gated product's columns");
  quant_detail::multiply(c, true);
}

void unpack_int4(const uint8_t* packed, int64_t count, int8_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    const int nibble = packed[i / 2] >> (i % 2 * 4) & 15;
    to[i] = static_cast<int8_t>(nibble >= 8 ? nibble - 16 : nibble);
  }
}

}  // namespace aloft
