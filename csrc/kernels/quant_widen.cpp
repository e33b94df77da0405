// 16-bit activations times int8 or int4 weights, widened in registers.
//
// Blocking: the rows are widened to fp32 once, with zeros behind k, and the sums of their groups taken where there are
// zero points. Then blocks of up to 256 rows (fewer where the threads would go without) x 64 columns, in parallel; k is
// never split between threads. A block goes through k group by group, at most 512 values at a time: they are packed as
// for the integer products, panels of 16 columns, four values of k of a column side by side, int8 (32 KiB for the four
// panels, the first level), and all rows are multiplied by them in tiles of registers (quant_widen_avx512.cpp,
// quant_widen_avx2.cpp): one packing for 256 rows. A single row is bound by memory: it takes FRACTAL_NZ as it lies
// (`direct`), without packing. At a group's end the zero points and scales of that group make fp32 sums of it; at the
// end of k come bias and rounding. The 64 columns by 256 rows of both kinds of sums are 128 KiB, in L2.
#include "kernels/quant_widen.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu.h"
#include "kernels/parallel.h"
#include "kernels/quant_scratch.h"
#include "kernels/quant_widen_impl.h"

namespace aloft {
namespace quant_detail {
namespace {

constexpr int64_t kRun = 512;      // values of k packed at a time
constexpr int64_t kMaxRows = 256;  // rows that share one packing of the weights
constexpr int64_t kBlockColumns = 64;
constexpr int64_t kTaskWork = 1 << 16;  // multiply-adds below which a task is not worth handing out

void multiply_portable(const float* a, int64_t a_stride, int64_t rows, const uint8_t* b, int64_t panel_stride,
                       int panels, int64_t length, float* acc, int64_t acc_stride, bool fresh) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int p = 0; p < panels; ++p) {
      float sums[kColumns], *to = acc + r * acc_stride + p * kColumns;
      for (int j = 0; j < kColumns; ++j) sums[j] = fresh ? 0 : to[j];
      for (int64_t k = 0; k < length; ++k) {
        const int8_t* line = reinterpret_cast<const int8_t*>(b) + p * panel_stride + k / 4 * 64 + k % 4;
        const float x = a[r * a_stride + k];
        for (int j = 0; j < kColumns; ++j) sums[j] += x * static_cast<float>(line[j * 4]);
      }
      std::memcpy(to, sums, sizeof sums);
    }
  }
}

struct Path {
  WidenTiles tiles;
  WidenFinish finish;
  const QuantTiles* pack;
};

const Path& path() {
  static const Path chosen = [] {
#if defined(__x86_64__)
    const QuantTiles* pack = isa() >= Isa::Avx512 && has_vnni() ? &signed_pack512() : &avx2_tiles(8);
    if (isa() >= Isa::Avx512) return Path{widen_tiles_avx512(), kWidenFinishAvx2, pack};
    if (isa() >= Isa::Avx2) return Path{widen_tiles_avx2(), kWidenFinishAvx2, &avx2_tiles(8)};
#endif
    isa();
    return Path{{multiply_portable, nullptr}, ALOFT_WIDEN_FINISH, &portable_tiles()};
  }();
  return chosen;
}

struct Left {
  const float* rows;
  int64_t stride;
  const float* sums;  // [groups][m]
};

Left prepare(const WidenMatmul& c, int64_t group, int64_t groups) {
  thread_local Scratch<float> widened, sums;
  const int64_t stride = rounded_up(c.k, 16) + 16, item = c.a_dtype == DType::F32 ? 4 : 2;
  float *rows = widened.get(c.m * stride), *totals = sums.get(groups * c.m);
  parallel_for(c.m, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, c.k)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* to = rows + r * stride;
      path().finish.widen(c.a_dtype, static_cast<const char*>(c.a) + r * c.a_stride * item, c.k, to);
      std::fill(to + c.k, to + stride, 0.f);
      if (!c.zero) continue;
      for (int64_t g = 0; g < groups; ++g) {
        totals[g * c.m + r] = path().finish.row_sum(to + g * group, std::min(group, c.k - g * group));
      }
    }
  });
  return {rows, stride, totals};
}

void run_block(const WidenMatmul& c, const Left& left, int64_t group, int64_t row0, int64_t rows, int64_t n0,
               int64_t columns) {
  thread_local Scratch<uint8_t> packed;
  thread_local Scratch<float> accumulators, totals;
  const int panels = static_cast<int>((columns + kColumns - 1) / kColumns);
  const int64_t width = panels * kColumns, panel_stride = kRun * kColumns;
  uint8_t* weights = packed.get(panel_stride * panels);
  float *acc = accumulators.get(rows * width), *sums = totals.get(rows * width);
  const Path& p = path();
  const bool direct =
      p.tiles.direct && rows == 1 && columns == kBlockColumns && c.b.layout == QuantLayout::Panels && c.b.line == 32;
  for (int64_t k0 = 0, g = 0; k0 < c.k; ++g) {
    const int64_t end = std::min(c.k, (g + 1) * group);
    if (direct && k0 < end) {
      p.tiles.direct(c.b, n0, k0, end - k0, left.rows + row0 * left.stride + k0, acc);
    }
    for (int64_t k = k0; k < end && !direct; k += kRun) {
      const int64_t length = std::min(kRun, end - k);
      p.pack->pack(c.b, c.n, n0, panels, k, length, weights, panel_stride);
      p.tiles.multiply(left.rows + row0 * left.stride + k, left.stride, rows, weights, panel_stride, panels, length,
                       acc, width, k == k0);
    }
    k0 = end;
    const int64_t at = c.scale_step ? g * c.n + n0 : g, each = c.scale_step ? columns : 1;
    const auto factors = [&](const void* all, float* buffer) -> const float* {
      if (!all || c.scale_dtype == DType::F32) return all ? static_cast<const float*>(all) + at : nullptr;
      p.finish.widen(c.scale_dtype, static_cast<const uint16_t*>(all) + at, each, buffer);
      return buffer;
    };
    float buffers[2][kBlockColumns];
    const float *scale = factors(c.scale, buffers[0]), *zero = factors(c.zero, buffers[1]);
    for (int64_t r = 0; r < rows; ++r) {
      p.finish.combine(acc + r * width, scale, zero, c.scale_step, zero ? left.sums[g * c.m + row0 + r] : 0.f,
                       sums + r * width, g == 0, columns);
    }
  }
  if (c.k == 0) std::fill(sums, sums + rows * width, 0.f);
  for (int64_t r = 0; r < rows; ++r) p.finish.store(c, row0 + r, n0, columns, sums + r * width);
}

}  // namespace
}  // namespace quant_detail

void widen_matmul(const WidenMatmul& c) {
  using namespace quant_detail;
  if (c.m == 0 || c.n == 0) return;
  const int64_t group = c.group > 0 && c.group < c.k ? c.group : std::max<int64_t>(1, c.k);
  const int64_t groups = std::max<int64_t>(1, (c.k + group - 1) / group);
  const Left left = prepare(c, group, groups);
  const int64_t columns = kBlockColumns, column_blocks = (c.n + columns - 1) / columns;
  int64_t row_blocks = (c.m + kMaxRows - 1) / kMaxRows;
  const int64_t wanted = 4 * num_threads();
  if (column_blocks * row_blocks < wanted && c.m >= 44) {
    row_blocks = std::min(c.m / 22, (wanted + column_blocks - 1) / column_blocks);
  }
  const int64_t height = (c.m + row_blocks - 1) / row_blocks;
  row_blocks = (c.m + height - 1) / height;
  const int64_t grain = std::max<int64_t>(1, kTaskWork / std::max<int64_t>(1, height * columns * c.k));
  parallel_for(row_blocks * column_blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row0 = i / column_blocks * height, n0 = i % column_blocks * columns;
      run_block(c, left, group, row0, std::min(height, c.m - row0), n0, std::min(columns, c.n - n0));
    }
  });
}

}  // namespace aloft
