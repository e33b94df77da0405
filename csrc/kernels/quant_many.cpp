// Many rows of int8 (more than 32) times int8 or int4 weights.
//
// Blocking: a thread has some rows (so few that they stay in L2 beside the rest, quant_matmul.cpp) and a run of units,
// the 32 or 64 columns that are packed together. Of a unit, pair of panels by pair of 16 columns, block by block of up
// to 32 rows, group by group, k goes through the tile unit in steps of 64: 32 x 32 sums stay in four tiles
// (quant_stream_amx.cpp), weights come from where they were packed, 1 KiB for each panel and step (a "slice"), rows
// from where they lie; where a pair's weights fit the first level rows do not push them out of it. Sums of a group are
// stored while the next block or group begins. The tile unit never waits: beside each step some rows of the block
// before are finished (scales, zero points, bias, rounding, SwiGLU), an equal share of the next unit is packed into the
// other of two buffers, and as much of the one after that is fetched into L2. Three units are known at a time, because
// the last results of one wait while the next is multiplied and the third packed. Only the first is packed as it is
// wanted. Sums of up to four groups wait and become floats together.
#include "kernels/quant_many.h"

#include <algorithm>
#include <cmath>

#include "acl/dtype.h"
#include "kernels/activation.h"
#include "kernels/quant_scratch.h"

namespace aloft::quant_detail {

bool all_normal(const float* values, int64_t count, float limit) {
  bool all = true;
  for (int64_t i = 0; i < count; ++i) all &= values[i] == 0 || std::fabs(values[i]) >= limit;
  return all;
}

namespace {

constexpr int64_t kStep = 64, kTileBytes = kStep * kColumns;
constexpr int64_t kRows = 32, kPair = 2 * kColumns, kBlock = kRows * kPair;
constexpr int kUnits = 3;                        // the one in use, the next one, and the one whose last results wait
constexpr int64_t kTogether = 4;                 // groups whose sums are made floats together
constexpr int64_t kStreamed = int64_t{1} << 20;  // values of a result that are too many for the caches
constexpr int64_t kFirstLevel = 40960;           // bytes of weights that may stay in the first level

// Rows of a block whose sums wait for what comes after them.
struct Waiting {
  int64_t row = 0, rows = 0, done = 0, group = 0, groups = 0, pair = 0;
  int unit = 0;
  const int32_t* acc = nullptr;  // [groups, 32, 32]
};

// Columns that are packed together, as pairs of panels.
struct Unit {
  int64_t n0 = 0, columns = 0, pairs = 0;
  uint8_t* packed = nullptr;
  float *scales = nullptr, *zeros = nullptr;  // [pairs][groups][32]
  bool normal = false;
};

class Nest {
 public:
  Nest(const Many& many, bool normal_rows, int64_t row0, int64_t rows)
      : m_(many), finish_(finish()), c_(many.call), normal_rows_(normal_rows), row0_(row0), rows_(rows) {
    thread_local Scratch<uint8_t> packed;
    thread_local Scratch<float> floats;
    thread_local Scratch<int32_t> sums;
    steps_ = (m_.group + kStep - 1) / kStep;
    const int64_t last = c_.k - (m_.groups - 1) * m_.group;
    slices_ = (m_.groups - 1) * steps_ + (last + kStep - 1) / kStep;
    panel_bytes_ = slices_ * kTileBytes;
    panels_ = static_cast<int>(m_.columns / kColumns);
    const int64_t bytes = panel_bytes_ * panels_ * m_.parts;
    const int64_t factors = m_.columns * m_.parts * m_.groups;
    uint8_t* weights = packed.get(2 * bytes);
    float* values = floats.get(2 * kUnits * factors + 2 * kRows * kPair);
    weights_[0] = weights, weights_[1] = weights + bytes;
    for (int i = 0; i < kUnits; ++i) {
      units_[i].scales = values + 2 * i * factors, units_[i].zeros = units_[i].scales + factors;
    }
    sums_ = values + 2 * kUnits * factors, pair_ = sums_ + kRows * kPair;
    acc_ = sums.get(2 * kTogether * kBlock);
    streamed_ = m_.parts == 1 && c_.out_dtype == DType::BF16 && c_.m * c_.out_stride >= kStreamed &&
                reinterpret_cast<uintptr_t>(c_.out) % 64 == 0 && c_.out_stride % kPair == 0;
  }

  void run(int64_t begin, int64_t end) {
    const int64_t blocks = (rows_ + kRows - 1) / kRows, height = (rows_ + blocks - 1) / blocks;
    const bool once = 2 * panel_bytes_ <= kFirstLevel;
    m_.stream.begin(height);
    enter(begin, 0);
    const int64_t all_slices = slices_ * m_.parts;
    int64_t made = 0, turn = 0;
    for (int64_t u = begin; u < end; ++u) {
      const int now = static_cast<int>((u - begin) % kUnits), later = (now + 1) % kUnits;
      const bool more = u + 1 < end;
      if (more) enter(u + 1, later);
      Unit &unit = units_[now], &next = units_[later];
      const int64_t all = unit.pairs * blocks * slices_;  // steps
      int64_t ready = 0, due = 0;                         // slices of the next unit; a share of one
      Ahead ahead(*this, u + 2 < end ? u + 2 : -1, all);
      for (int64_t pair = 0; pair < unit.pairs; ++pair) {
        const uint8_t *first = panel(unit, pair, 0), *second = panel(unit, pair, 1);
        for (int64_t block = 0; block < blocks; ++block) {
          const int64_t row = row0_ + std::min(block * height, rows_ - height);
          for (int64_t g = 0, slice = 0; g < m_.groups; g += kTogether) {
            const int64_t count = std::min(kTogether, m_.groups - g);
            const int64_t all_steps = std::min(count * steps_, slices_ - slice);
            const int64_t each = rounded_up((height + all_steps - 1) / all_steps, 8);  // rows finished in a step
            int32_t* acc = acc_ + turn++ % 2 * kTogether * kBlock;
            auto beside = [&](int64_t step) {
              finish_until(std::min(waiting_.rows, waiting_.done + each));
              if (more) {
                for (due += all_slices; due >= all; due -= all) make(next, ready++);
              }
              ahead.fetch();
              if (made < all_slices) {
                for (; made < std::min(all_slices, (slice + step + 2) * m_.parts);) make(unit, made++);
              }
            };
            using Body = decltype(beside);
            for (int64_t i = 0; i < count; ++i) {
              const int64_t steps = std::min(steps_, slices_ - slice);
              if (u == begin) {  // the first unit is packed as it is wanted
                for (; made < std::min(all_slices, (slice + 1) * m_.parts);) make(unit, made++);
              }
              m_.stream.block(height, m_.left.rows + row * m_.left.stride + (g + i) * m_.group, m_.left.stride,
                              first + slice * kTileBytes, second + slice * kTileBytes, steps, inside_, once,
                              {&beside, [](void* self, int64_t step) { (*static_cast<Body*>(self))(step); }});
              inside_ = acc + i * kBlock;
              slice += steps;
            }
            finish_until(waiting_.rows);
            waiting_ = {row, height, 0, g, count, pair, now, acc};
          }
        }
      }
    }
    if (inside_) m_.stream.flush(height, inside_);
    finish_until(waiting_.rows);
    m_.stream.end();
  }

 private:
  int64_t column(const Unit& u, int64_t pair, int panel) const {
    return m_.parts == 2 ? u.n0 + pair * kColumns + panel * m_.half : u.n0 + pair * kPair + panel * kColumns;
  }
  // Where a panel that does not exist is asked for: another one, whose sums nobody reads.
  const uint8_t* panel(const Unit& u, int64_t pair, int index) const {
    const int64_t at = m_.parts == 2                                              ? index * panels_ + pair
                       : 2 * pair + index < (u.columns + kColumns - 1) / kColumns ? 2 * pair + index
                                                                                  : 2 * pair;
    return u.packed + at * panel_bytes_;
  }

  // What there is to know of a unit; its weights are packed by make().
  void enter(int64_t index, int slot) {
    Unit& u = units_[slot];
    u.packed = weights_[index % 2];
    const int64_t columns = m_.parts == 2 ? m_.half : c_.n;
    u.n0 = index * m_.columns, u.columns = std::min(m_.columns, columns - u.n0);
    u.pairs = m_.parts == 2 ? u.columns / kColumns : (u.columns + kPair - 1) / kPair;
    u.normal = c_.out_dtype == DType::BF16 && normal_rows_ && !c_.bias && !c_.zero;
    const auto factors = [&](const void* all, DType type, float* to) {
      for (int64_t pair = 0; pair < u.pairs; ++pair) {
        for (int64_t g = 0; g < m_.groups; ++g) {
          for (int i = 0; i < 2; ++i, to += kColumns) {
            const int64_t n = column(u, pair, i), count = std::max<int64_t>(0, std::min<int64_t>(kColumns, c_.n - n));
            if (!c_.scale_step) {
              finish_.widen(type, static_cast<const char*>(all) + g * static_cast<int64_t>(dtype_size(type)), 1, to);
              std::fill(to + 1, to + kColumns, to[0]);
            } else if (count) {
              finish_.widen(type,
                            static_cast<const char*>(all) + (g * c_.n + n) * static_cast<int64_t>(dtype_size(type)),
                            count, to);
            }
            if (c_.scale_step) std::fill(to + count, to + kColumns, 0.f);
          }
        }
      }
    };
    if (c_.scale) {
      factors(c_.scale, c_.scale_dtype, u.scales);
      u.normal = u.normal && all_normal(u.scales, u.pairs * m_.groups * kPair, kNormalScale);
    }
    if (!c_.scale && m_.grouped) std::fill(u.scales, u.scales + u.pairs * m_.groups * kPair, 1.f);
    if (c_.zero) factors(c_.zero, DType::F32, u.zeros);
  }
  // Packs 64 values of k of one part.
  void make(Unit& u, int64_t index) {
    const int64_t slice = index / m_.parts, part = index % m_.parts, g = slice / steps_;
    const int64_t k = g * m_.group + slice % steps_ * kStep;
    const int64_t length = std::min({kStep, c_.k - k, (g + 1) * m_.group - k});
    const int panels = static_cast<int>((u.columns + kColumns - 1) / kColumns);
    m_.tiles.pack(c_.b, c_.n, u.n0 + part * m_.half, panels, k, length,
                  u.packed + part * panels_ * panel_bytes_ + slice * kTileBytes, panel_bytes_);
  }

  // Fetches the weights of a unit, a few lines at a time, where they lie in one piece.
  class Ahead {
   public:
    Ahead(const Nest& nest, int64_t index, int64_t calls) {
      const QuantMatmul& c = nest.c_;
      const int64_t per = 8 / c.b.bits, bytes = nest.m_.columns / per;
      if (index < 0 || c.b.layout != QuantLayout::Panels || bytes % c.b.line) return;
      from_ = c.b.data + index * bytes * c.b.stride;
      second_ = nest.m_.parts == 2 ? from_ + nest.m_.half / per * c.b.stride : nullptr;
      bytes_ = bytes * c.k;
      each_ = ((bytes_ * nest.m_.parts + kTwoLines - 1) / kTwoLines + calls - 1) / calls * kTwoLines;
    }
    void fetch() {
      if (at_ >= bytes_) {
        if (!second_) return;
        from_ = second_, second_ = nullptr, at_ = 0;
      }
      for (const int64_t until = at_ + each_; at_ < until; at_ += kTwoLines) __builtin_prefetch(from_ + at_, 0, 2);
    }

   private:
    static constexpr int64_t kTwoLines = 128;  // of the cache: the second comes with the first
    const uint8_t *from_ = nullptr, *second_ = nullptr;
    int64_t bytes_ = 0, at_ = 0, each_ = 0;
  };

  // What follows the sums of the rows that wait, up to `row`.
  void finish_until(int64_t row) {
    Waiting& w = waiting_;
    if (row <= w.done) return;
    const int64_t first = w.done, rows = row - first, at = first * kPair;
    w.done = row;
    const Unit& u = units_[w.unit];
    const int64_t factors = (w.pair * m_.groups + w.group) * kPair;
    if (m_.grouped) {
      const GroupSums from = {w.acc + at,
                              kBlock,
                              u.scales + factors,
                              kPair,
                              1,
                              c_.zero ? u.zeros + factors : nullptr,
                              kPair,
                              m_.left.sums + w.group * c_.m + w.row + first,
                              c_.m,
                              w.groups};
      finish_.combine(from, sums_ + at, kPair, rows, kPair, w.group == 0);
      if (w.group + w.groups < m_.groups) return;
    }
    const int64_t item = static_cast<int64_t>(dtype_size(c_.out_dtype)), n = column(u, w.pair, 0),
                  target = w.row + first;
    char* to = static_cast<char*>(c_.out) + (target * c_.out_stride + n) * item;
    const int32_t* acc = w.acc + at;
    const float *sums = m_.grouped ? sums_ + at : nullptr, *scale = c_.scale ? u.scales + factors : nullptr;
    if (m_.parts == 1) {
      return finish_.store(c_, target, rows, n, std::min<int64_t>(kPair, c_.n - n), acc, sums, kPair, scale,
                           {to, c_.out_dtype, c_.out_stride, u.normal, streamed_});
    }
    for (int i = 0; i < 2; ++i) {
      const int64_t j = i * kColumns;
      finish_.store(c_, target, rows, column(u, w.pair, i), kColumns, acc + j, sums ? sums + j : nullptr, kPair,
                    scale ? scale + j : nullptr, {pair_ + j, DType::F32, kPair});
    }
    gated_sums(Activation::Silu, c_.out_dtype, pair_, rows, to, c_.out_stride);
  }

  const Many& m_;
  const Finish& finish_;
  const QuantMatmul& c_;
  const bool normal_rows_;
  const int64_t row0_, rows_;
  int64_t steps_, slices_, panel_bytes_;
  int panels_;
  bool streamed_;
  Unit units_[kUnits];
  uint8_t* weights_[2];
  float *sums_, *pair_;
  int32_t* acc_;
  int32_t* inside_ = nullptr;  // where the sums go that the registers hold
  Waiting waiting_;
};

}  // namespace

void multiply_many(const Many& many, bool normal_rows, int64_t row0, int64_t rows, int64_t begin, int64_t end) {
  Nest(many, normal_rows, row0, rows).run(begin, end);
}

}  // namespace aloft::quant_detail
