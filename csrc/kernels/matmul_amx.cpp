// bf16 products through AMX tiles (kernels/tiles.h has their arithmetic, which is the order of matmul.h).
//
// Blocking: two row tiles of 16 x two panels of 16 columns, four tiles of sums (0-3), two of the left operand (4, 5;
// read from where it lies, 16 rows x 32 k), two of weights (6, 7): four products for four loads. A weight tile wants
// the two values of a k pair side by side, FRACTAL_NZ has whole rows of 16: two rows of a panel are one 64-byte
// register and one permutation. Up to 32 rows (decode) the pair of panels is streamed: step s + 1 is permuted into a
// ring in L1 while step s multiplies, the memory kAhead further is fetched meanwhile, and nothing is kept. More rows:
// all of k of a pair is permuted once (64 bytes for each k, in L2) for all rows of the block. The tile unit is kept
// busy with everything else going on beside it, a little in each step: the rounding and storing of the 32 rows before,
// the permutation of the next pair, the fetching of the one after.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "kernels/compact_avx512.h"
#include "kernels/lanes_avx512.h"
#include "kernels/matmul_isa.h"
#include "kernels/parallel.h"
#include "kernels/tiles.h"

namespace aloft::matmul_detail {
namespace {

constexpr int kTileRows = 16, kBlockRows = 2 * kTileRows;
constexpr int64_t kTileValues = kTileRows * kStep;  // 1 KiB
constexpr int64_t kRing = 4;                        // steps
constexpr int64_t kStreamed = int64_t{1} << 20;     // values of a result that are too many for the caches

// How a panel's values lie: element (k, j), j < 16.
struct Source {
  enum Kind { kRows, kColumns, kHalves, kScattered, kCompact } kind;
  const bf16* data;
  int64_t k_stride;  // kRows: row k of 16 values at k * k_stride. kHalves: k / 16 * k_stride + j * 16 + k % 16
  int64_t j_stride;  // kColumns: column j, k contiguous, at j * j_stride. kScattered: k * k_stride + j * j_stride
  int columns;       // of the 16 exist; the others are zero
  const compact::Weights* compact = nullptr;
  int64_t unit = 0;  // kCompact: the first of the panel
};

Source source_of(const Product& c, int64_t panel) {
  const Operand& b = c.b;
  const bf16* data = static_cast<const bf16*>(b.data);
  if (c.is_compact()) return {Source::kCompact, data, 0, 0, kPanel, &c.compact, c.compact.index(panel, 0)};
  if (b.layout == WeightLayout::Panels) {
    return {Source::kRows, data + panel * b.padded_rows * kPanel, kPanel, 1, kPanel};
  }
  if (b.layout == WeightLayout::PanelsTransposed) {
    return {Source::kHalves, data + panel * kPanel * kPanel, b.padded_rows * kPanel, kPanel, kPanel};
  }
  const int columns = static_cast<int>(std::min<int64_t>(kPanel, c.n - panel * kPanel));
  const auto kind = columns < kPanel    ? Source::kScattered
                    : b.col_stride == 1 ? Source::kRows
                    : b.row_stride == 1 ? Source::kColumns
                                        : Source::kScattered;
  return {kind, data + panel * kPanel * b.col_stride, b.row_stride, b.col_stride, columns};
}

inline __m512i two_rows(const bf16* first, const bf16* second) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(first));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second)),
                            1);
}

// Words 0 16 1 17 ...: two rows of a panel to their pairs.
inline __m512i interleave(__m512i rows) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, rows);
}

inline void fetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

// A step of two panels in FRACTAL_NZ. Lines of the two alternate, and so do those fetched for later.
inline void make_tiles(const bf16* first, const bf16* second, const bf16* later_first, const bf16* later_second,
                       bf16* to) {
#pragma GCC unroll 16
  for (int i = 0; i < kTileRows; ++i) {
    fetch(later_first + i * kStep);
    _mm512_store_si512(to + i * kStep, interleave(_mm512_loadu_si512(first + i * kStep)));
    fetch(later_second + i * kStep);
    _mm512_store_si512(to + kTileValues + i * kStep, interleave(_mm512_loadu_si512(second + i * kStep)));
  }
}

// The weight tile of k0 .. k0 + 32, of which `count` exist (the others are zero), however it lies.
void make_tile(const Source& s, int64_t k0, int64_t count, bf16* to) {
  if (s.kind == Source::kCompact) {
    const int64_t unit = s.unit + k0 / kStep;
    compact::lines_of(s.compact->unit(unit), compact::table_of(*s.compact), s.compact->unit(unit + 1), to);
    return s.compact->mend(unit, to);
  }
  if (count == kStep && s.kind == Source::kRows) {
    for (int i = 0; i < kTileRows; ++i) {
      const bf16* from = s.data + (k0 + 2 * i) * s.k_stride;
      fetch(from + kStep * s.k_stride);
      fetch(from + (kStep + 1) * s.k_stride);
      _mm512_store_si512(to + i * kStep, interleave(two_rows(from, from + s.k_stride)));
    }
    return;
  }
  if (count == kStep && (s.kind == Source::kColumns || s.kind == Source::kHalves)) {
    __m512 v[kPanel];
    if (s.kind == Source::kColumns) {
#pragma GCC unroll 16
      for (int j = 0; j < kPanel; ++j) {
        const bf16* from = s.data + j * s.j_stride + k0;
        fetch(from + 4 * kStep);
        v[j] = _mm512_castsi512_ps(_mm512_loadu_si512(from));
      }
    } else {
      const bf16* from = s.data + k0 / kPanel * s.k_stride;
#pragma GCC unroll 16
      for (int j = 0; j < kPanel; ++j) {
        v[j] = _mm512_castsi512_ps(two_rows(from + j * kPanel, from + s.k_stride + j * kPanel));
      }
    }
    transpose16(v);
#pragma GCC unroll 16
    for (int i = 0; i < kTileRows; ++i) _mm512_store_si512(to + i * kStep, _mm512_castps_si512(v[i]));
    return;
  }
  for (int64_t k = 0; k < kStep; ++k) {
    for (int j = 0; j < kPanel; ++j) {
      bf16& value = to[k / 2 * kStep + 2 * j + (k & 1)];
      value = bf16{0};
      if (k >= count || j >= s.columns) continue;
      const int64_t at = k0 + k;
      value = s.kind == Source::kHalves    ? s.data[at / kPanel * s.k_stride + j * kPanel + at % kPanel]
              : s.kind == Source::kColumns ? s.data[j * s.j_stride + at]
                                           : s.data[at * s.k_stride + j * s.j_stride];
    }
  }
}

TileShapes shapes(int64_t rows) {  // up to kBlockRows
  const int first = static_cast<int>(std::min<int64_t>(rows, kTileRows)), second = static_cast<int>(rows) - first;
  TileShapes s;
  s.set(0, first).set(1, first).set(4, first).set(6, kTileRows).set(7, kTileRows);
  if (second) s.set(2, second).set(3, second).set(5, second);
  return s;
}

// One block of rows x one pair of panels. weights(s): makes sure of step s, returns its tiles (panel 1 after panel 0).
template <int RowTiles, int Panels, class Next>
inline void multiply_block(const bf16* a, int64_t a_row, int64_t steps, float* sums, Next&& weights) {
  _tile_zero(0);
  if constexpr (Panels == 2) _tile_zero(1);
  if constexpr (RowTiles == 2) _tile_zero(2);
  if constexpr (RowTiles == 2 && Panels == 2) _tile_zero(3);
  const size_t stride = static_cast<size_t>(a_row) * sizeof(bf16);
  for (int64_t s = 0; s < steps; ++s, a += kStep) {
    const bf16* b = weights(s);
    before_tile_load();
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a, stride);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (RowTiles == 2) {
      _tile_loadd(5, a + kTileRows * a_row, stride);
      _tile_dpbf16ps(2, 5, 6);
    }
    if constexpr (Panels == 2) {
      _tile_loadd(7, b + kTileValues, 64);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (RowTiles == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }
  constexpr size_t row = kPair * sizeof(float);
  _tile_stored(0, sums, row);
  if constexpr (Panels == 2) _tile_stored(1, sums + kPanel, row);
  if constexpr (RowTiles == 2) _tile_stored(2, sums + kTileRows * kPair, row);
  if constexpr (RowTiles == 2 && Panels == 2) _tile_stored(3, sums + kTileRows * kPair + kPanel, row);
}

template <class Next>
inline void multiply_block(int64_t rows, int panels, const bf16* a, int64_t a_row, int64_t steps, float* sums,
                           Next&& weights) {
  if (rows > kTileRows) {
    if (panels == 2) return multiply_block<2, 2>(a, a_row, steps, sums, weights);
    return multiply_block<2, 1>(a, a_row, steps, sums, weights);
  }
  if (panels == 2) return multiply_block<1, 2>(a, a_row, steps, sums, weights);
  return multiply_block<1, 1>(a, a_row, steps, sums, weights);
}

// Permuted weights: a ring of steps, or all steps of two pairs.
bf16* weight_scratch(int64_t steps) {
  struct Free {
    void operator()(bf16* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<bf16, Free> data;
  thread_local int64_t size = 0;
  if (steps > size) {
    const size_t bytes = static_cast<size_t>(steps * 2 * kTileValues) * sizeof(bf16);
    data.reset(static_cast<bf16*>(std::aligned_alloc(64, bytes)));
    size = data ? steps : 0;
    if (!data) throw std::bad_alloc();
  }
  return data.get();
}

// The panels of a pair.
struct Sources {
  Source panel[2] = {};
  int count = 0;
  Sources() = default;
  Sources(const Product& c, int64_t pair) : count(c.panels_of(pair)) {
    for (int p = 0; p < count; ++p) panel[p] = source_of(c, c.first_panel(pair) + p * c.panel_step());
  }
};

// finish() for sums of tiles, which hold no denormals: one instruction rounds. Results that do not stay in the caches
// anyway are written past them, which saves reading the lines first.
void finish_sums(const Product& c, int64_t row0, int64_t rows, int64_t pair, float* sums) {
  const int64_t n0 = c.first_panel(pair) * kPanel, stride = c.out.row_stride;
  if (!c.plain() || c.out.type != Element::BF16 || c.out.col_stride != 1 || c.n - n0 < kPair) {
    return finish(c, row0, rows, pair, sums);
  }
  bf16* to = static_cast<bf16*>(const_cast<void*>(c.out.data)) + row0 * stride + n0;
  const auto rounded = [&](int64_t r) {
    const float* from = sums + r * kPair;
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(_mm512_load_ps(from + kPanel), _mm512_load_ps(from)));
  };
  if (c.m * stride >= kStreamed && reinterpret_cast<uintptr_t>(to) % 64 == 0 && stride % kPair == 0) {
    for (int64_t r = 0; r < rows; ++r) _mm512_stream_si512(reinterpret_cast<__m512i*>(to + r * stride), rounded(r));
  } else {
    for (int64_t r = 0; r < rows; ++r) _mm512_storeu_si512(to + r * stride, rounded(r));
  }
}

// Up to kBlockRows rows: the weights are streamed.
void multiply_few(const Product& c, const bf16* a, int64_t a_row, int64_t row0, int64_t rows, int64_t begin,
                  int64_t end) {
  const int64_t steps = (c.k + kStep - 1) / kStep;
  bf16* ring = weight_scratch(kRing);
  alignas(64) float sums[kBlockRows * kPair];
  Tiles tiles(shapes(rows));
  int64_t made = 0;  // steps, of all pairs
  const auto place = [&](int64_t step) { return ring + (step & (kRing - 1)) * 2 * kTileValues; };
  const bool panels_of_two = c.b.layout == WeightLayout::Panels;
  constexpr int64_t kStepsAhead = 2;
  // `after`: what is made once `of` ends.
  const auto make = [&](const Sources& of, const Sources& after, int64_t s) {
    const int64_t k0 = s * kStep, count = std::min(kStep, c.k - k0);
    if (panels_of_two && count == kStep && of.count == 2) {
      const bool ends = s + kStepsAhead >= steps;
      const Sources& later = ends ? after : of;
      const int64_t at = (s + kStepsAhead - (ends ? steps : 0)) * kTileValues;
      make_tiles(of.panel[0].data + s * kTileValues, of.panel[1].data + s * kTileValues, later.panel[0].data + at,
                 later.panel[1].data + at, place(made));
    } else {
      for (int p = 0; p < of.count; ++p) make_tile(of.panel[p], k0, count, place(made) + p * kTileValues);
    }
    ++made;
  };
  Sources source(c, begin);
  make(source, source, 0);
  for (int64_t pair = begin; pair < end; ++pair) {
    const int64_t first = made - 1;  // step 0 of this pair
    const bool more = pair + 1 < end;
    // Fetched ahead of the end of this pair. After the last one: what this thread does next if all take runs in turn.
    const int64_t later = more ? pair + 1 : end + (end - begin) * (num_threads() - 1);
    const Sources next = later < c.pairs() ? Sources(c, later) : source;
    multiply_block(rows, source.count, a, a_row, steps, sums, [&](int64_t s) {
      if (s + 1 < steps) {
        make(source, next, s + 1);
      } else if (more) {
        make(next, next, 0);
      }
      return place(first + s);
    });
    finish_sums(c, row0, rows, pair, sums);
    source = next;
  }
}

// Up to kBlockRows rows and compact weights: as above, a unit of each panel a step.
class CompactRing {
 public:
  explicit CompactRing(const Product& c) : w_(c.compact), table_(compact::table_of(w_)), ring_(weight_scratch(kRing)) {}
  struct Pair {
    int64_t unit[2];  // the first of each panel
  };

  // Step s of `of` for panel p; `next` comes after the last.
  void make(const Pair& of, const Pair& next, int64_t s, int p) {
    const int64_t index = of.unit[p] + s, ahead = s + kUnitsAhead;
    const int64_t later = ahead < w_.steps ? index + kUnitsAhead : next.unit[p] + ahead - w_.steps;
    bf16* to = place(made_) + p * kTileValues;
    compact::lines_of(w_.unit(index), table_, w_.unit(later), to);
    w_.mend(index, to);
  }
  void made() { ++made_; }

  // One block of rows x one pair, whose step 0 was made; makes step 0 of the next if there is one. beside(s): what else
  // is done in a step.
  template <int RowTiles, int Panels, class Beside>
  void multiply(const Pair& of, const Pair& next, bool more, const bf16* a, int64_t a_row, float* sums,
                Beside&& beside) {
    _tile_zero(0);
    if constexpr (Panels == 2) _tile_zero(1);
    if constexpr (RowTiles == 2) _tile_zero(2);
    if constexpr (RowTiles == 2 && Panels == 2) _tile_zero(3);
    const size_t stride = static_cast<size_t>(a_row) * sizeof(bf16);
    for (int64_t s = 0; s < w_.steps; ++s, a += kStep) {
      // A step is made while the one before multiplies: tiles are loaded from L1, not from the store buffer.
      const bf16* b = place(made_ - 1);
      const bool ends = s + 1 == w_.steps, goes_on = !ends || more;
      const Pair &from = ends ? next : of, &then = next;
      const int64_t step = ends ? 0 : s + 1;
      if (goes_on) make(from, then, step, 0);
      before_tile_load();
      _tile_loadd(4, a, stride);
      if constexpr (RowTiles == 2) _tile_loadd(5, a + kTileRows * a_row, stride);
      _tile_loadd(6, b, 64);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (RowTiles == 2) _tile_dpbf16ps(2, 5, 6);
      if constexpr (Panels == 2) {
        if (goes_on) make(from, then, step, 1);
        before_tile_load();
        _tile_loadd(7, b + kTileValues, 64);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (RowTiles == 2) _tile_dpbf16ps(3, 5, 7);
      }
      if (goes_on) made();
      beside(s);
    }
    constexpr size_t row = kPair * sizeof(float);
    _tile_stored(0, sums, row);
    if constexpr (Panels == 2) _tile_stored(1, sums + kPanel, row);
    if constexpr (RowTiles == 2) _tile_stored(2, sums + kTileRows * kPair, row);
    if constexpr (RowTiles == 2 && Panels == 2) _tile_stored(3, sums + kTileRows * kPair + kPanel, row);
  }

 private:
  static constexpr int64_t kUnitsAhead = 2;
  bf16* place(int64_t step) const { return ring_ + (step & (kRing - 1)) * 2 * kTileValues; }

  const compact::Weights& w_;
  const __m512i table_;
  bf16* const ring_;
  int64_t made_ = 0;
};

void multiply_few_compact(const Product& c, const bf16* a, int64_t a_row, int64_t row0, int64_t rows, int64_t begin,
                          int64_t end) {
  alignas(64) float sums[2][kBlockRows * kPair];
  Tiles tiles(shapes(rows));
  CompactRing ring(c);
  int64_t done = rows;  // of the pair before
  const auto finish_until = [&](int64_t pair, int64_t row) {
    if (row <= done) return;
    finish_sums(c, row0 + done, row - done, pair, sums[(pair - begin) % 2] + done * kPair);
    done = row;
  };
  const auto pair_at = [&](int64_t pair) {  // a last panel that stands alone is its own neighbour
    const int64_t panel = c.first_panel(pair), other = panel + (c.panels_of(pair) == 2 ? c.panel_step() : 0);
    return CompactRing::Pair{{c.compact.index(panel, 0), c.compact.index(other, 0)}};
  };
  CompactRing::Pair of = pair_at(begin);
  for (int p = 0; p < 2; ++p) ring.make(of, of, 0, p);
  ring.made();
  for (int64_t pair = begin; pair < end; ++pair) {
    // After the last one: what this thread does next if all take runs in turn.
    const bool more = pair + 1 < end;
    const int64_t after = more ? pair + 1 : end + (end - begin) * (num_threads() - 1);
    const CompactRing::Pair next = after < c.pairs() ? pair_at(after) : of;
    // Sums are read a few steps after the tiles were stored, when they have left the store buffer.
    const auto beside = [&](int64_t s) { finish_until(pair - 1, (s + 1) * rows / c.compact.steps / 2 * 2); };
    float* to = sums[(pair - begin) % 2];
    const bool two = c.panels_of(pair) == 2;
    if (rows > kTileRows) {
      two ? ring.multiply<2, 2>(of, next, more, a, a_row, to, beside)
          : ring.multiply<2, 1>(of, next, more, a, a_row, to, beside);
    } else {
      two ? ring.multiply<1, 2>(of, next, more, a, a_row, to, beside)
          : ring.multiply<1, 1>(of, next, more, a, a_row, to, beside);
    }
    finish_until(pair - 1, rows);
    done = 0, of = next;
  }
  finish_until(end - 1, rows);
}

// Makes the tiles of one pair a little at a time.
class Maker {
 public:
  Maker(const Product& c, int64_t pair, int64_t after, bf16* to)
      : source_(c, pair), to_(to), k_(c.k), lines_((c.k + kStep - 1) / kStep * kTileRows) {
    by_line_ = c.b.layout == WeightLayout::Panels && !c.is_compact() && source_.count == 2 && c.k % kStep == 0;
    if (by_line_) later_ = Sources(c, after);
  }
  int64_t lines() const { return lines_; }  // of a panel
  void make(int64_t until) {
    until = std::min(until, lines_);
    if (by_line_) {
      for (; at_ < until; ++at_) {
        const bool ends = at_ + kLinesAhead >= lines_;
        const int64_t ahead = at_ + kLinesAhead - (ends ? lines_ : 0);
        const Source* later = ends ? later_.panel : source_.panel;
        bf16* to = to_ + (at_ / kTileRows * 2 * kTileRows + at_ % kTileRows) * kStep;
        fetch(later[0].data + ahead * kStep);
        _mm512_store_si512(to, interleave(_mm512_loadu_si512(source_.panel[0].data + at_ * kStep)));
        fetch(later[1].data + ahead * kStep);
        _mm512_store_si512(to + kTileValues, interleave(_mm512_loadu_si512(source_.panel[1].data + at_ * kStep)));
      }
    } else {
      for (; at_ + kTileRows <= until; at_ += kTileRows) {
        const int64_t k0 = at_ * 2;
        bf16* to = to_ + at_ * 2 * kStep;
        for (int p = 0; p < source_.count; ++p) {
          make_tile(source_.panel[p], k0, std::min(kStep, k_ - k0), to + p * kTileValues);
        }
      }
    }
  }

 private:
  static constexpr int64_t kLinesAhead = 48;
  Sources source_, later_;
  bf16* to_;
  int64_t k_, lines_, at_ = 0;
  bool by_line_;
};

// More rows: two pairs of permuted weights, one in use, one in the making.
void multiply_many(const Product& c, const bf16* a, int64_t a_row, int64_t row0, int64_t rows, int64_t begin,
                   int64_t end) {
  const int64_t steps = (c.k + kStep - 1) / kStep, blocks = (rows + kBlockRows - 1) / kBlockRows;
  bf16* const packed = weight_scratch(2 * steps);
  alignas(64) float sums[2][kBlockRows * kPair];
  struct {
    int64_t row, rows = 0, done = 0, pair;
    float* sums;
  } waiting;  // a block with finished sums, and how many of its rows are stored
  const auto finish_until = [&](int64_t row) {
    if (row <= waiting.done) return;
    finish_sums(c, waiting.row + waiting.done, row - waiting.done, waiting.pair, waiting.sums + waiting.done * kPair);
    waiting.done = row;
  };
  int64_t shaped = kBlockRows, turn = 0;
  Tiles tiles(shapes(shaped));
  Maker first(c, begin, std::min(begin + 1, end - 1), packed);
  first.make(kTileRows);
  for (int64_t pair = begin; pair < end; ++pair) {
    const int panels = c.panels_of(pair);
    const bf16* weights = packed + (pair - begin) % 2 * steps * 2 * kTileValues;
    const bool more = pair + 1 < end;
    Maker next(c, more ? pair + 1 : pair, std::min(pair + 2, end - 1),
               packed + (pair + 1 - begin) % 2 * steps * 2 * kTileValues);
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t row = block * kBlockRows, height = std::min<int64_t>(kBlockRows, rows - row);
      if (height != shaped) tiles.configure(shapes(height)), shaped = height;
      float* to = sums[turn++ % 2];
      multiply_block(height, panels, a + row * a_row, a_row, steps, to, [&](int64_t s) {
        // Beside the products of a step: a few rows of the block before, some of the next weights.
        finish_until(waiting.rows * s / steps / 4 * 4);
        if (pair == begin && block == 0) first.make((s + 2) * kTileRows);
        if (more) next.make((block * steps + s + 1) * next.lines() / (blocks * steps));
        return weights + s * 2 * kTileValues;
      });
      finish_until(waiting.rows);
      waiting = {row0 + row, height, 0, pair, to};
    }
  }
  finish_until(waiting.rows);
}

}  // namespace

void amx_multiply(const Product& c, const bf16* a, int64_t a_row, int64_t row0, int64_t rows, int64_t begin,
                  int64_t end) {
  const auto multiply = rows > kBlockRows ? multiply_many : c.is_compact() ? multiply_few_compact : multiply_few;
  multiply(c, a, a_row, row0, rows, begin, end);
  _mm_sfence();  // what finish_sums() wrote past the caches, before other threads are told that it is there
}

}  // namespace aloft::matmul_detail
