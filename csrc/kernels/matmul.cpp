// The loop nest around the tiles. For one matrix product:
//   slab of rows (bounds the widened copy of the left operand to 16 MiB)
//     widen the left operand to fp32, [chunk of k][row][kRowStride]                        (parallel)
//     block of rows that stays in L2 x pair of panels of 16 columns                        (parallel)
//       chunk of kChunk values of k (few rows: all of k at once)
//         widen or transpose the pair's weights into L1, unless they can be read in place
//         tile of rows: multiply-adds into the block's sums
//       alpha, beta, rounding, store
// bf16 rows from kAmxRows on take AMX tiles instead where there are any (matmul_amx.cpp), with the left operand as it
// lies. k is never split between threads and chunks follow one another, so each element's sum has one order.
#include "kernels/matmul.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "kernels/cpu.h"
#include "kernels/denormals.h"
#include "kernels/matmul_isa.h"
#include "kernels/parallel.h"
#include "kernels/upcoming.h"

namespace aloft {
namespace matmul_detail {

const Kernels& kernels() {
  static const Kernels& chosen = []() -> const Kernels& {
#if defined(__x86_64__)
    switch (isa()) {
      case Isa::Amx:
      case Isa::Avx512:
        return avx512_kernels();
      case Isa::Avx2:
        return avx2_kernels();
      default:
        break;
    }
#endif
    isa();
    return portable_kernels();
  }();
  return chosen;
}

namespace {

constexpr int64_t kSlabFloats = int64_t{4} << 20;       // widened left operand
constexpr int64_t kBlockBytes = int64_t{512} << 10;     // the part of it a task works on: half of a 1 MiB L2
constexpr int64_t kAmxBlockBytes = int64_t{800} << 10;  // the same for bf16 rows and a 2 MiB L2
constexpr int64_t kTaskWork = 24576;                    // multiply-adds below which a task is not worth handing out
constexpr int64_t kSmallProduct = int64_t{1} << 18;     // a batch of products up to this size is split by product
// Fewer rows stream faster through AVX-512 (benchmarks/kernels/README.md).
constexpr int64_t kAmxRows = 7, kAmxCompactRows = 2;

size_t bytes_of(Element type) { return type == Element::F32 ? 4 : 2; }

const void* at(const void* data, Element type, int64_t offset) {
  return static_cast<const unsigned char*>(data) + offset * static_cast<int64_t>(bytes_of(type));
}

// Grows on demand, kept by its thread.
class Scratch {
 public:
  ~Scratch() { std::free(data_); }
  float* get(int64_t floats) {
    if (floats > size_) {
      std::free(data_);
      size_ = 0;
      data_ = static_cast<float*>(std::aligned_alloc(64, (static_cast<size_t>(floats) * 4 + 63) / 64 * 64));
      if (!data_) throw std::bad_alloc();
      size_ = floats;
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  int64_t size_ = 0;
};

template <class T>
void gather(const void* from, int64_t stride, int64_t count, float* to, int64_t to_stride) {
  const T* p = static_cast<const T*>(from);
  for (int64_t i = 0; i < count; ++i) to[i * to_stride] = to_float(p[i * stride]);
}

void gather(Element type, const void* from, int64_t stride, int64_t count, float* to, int64_t to_stride = 1) {
  if (stride == 1 && to_stride == 1) return kernels().widen(type, from, count, to);
  switch (type) {
    case Element::BF16:
      return gather<bf16>(from, stride, count, to, to_stride);
    case Element::F16:
      return gather<f16>(from, stride, count, to, to_stride);
    default:
      return gather<float>(from, stride, count, to, to_stride);
  }
}

bool whole_panel(const Product& c, int64_t panel) { return (panel + 1) * kPanel <= c.n; }

// Weights of one panel for k0 <= k < k0 + length as fp32, to[kChunk][16].
void pack(const Product& c, int64_t panel, int64_t k0, int64_t length, float* to) {
  const Operand& b = c.b;
  const Kernels& isa = kernels();
  if (c.is_compact()) {
    for (int64_t i = 0; i < length; i += kStep, to += kStep * kPanel) {
      isa.widen_unit(c.compact, c.compact.index(panel, (k0 + i) / kStep), to);
    }
    return;
  }
  if (b.layout == WeightLayout::PanelsTransposed) {
    for (int64_t i = 0; i < length; i += kPanel) {
      const int64_t offset = ((k0 + i) / kPanel * b.padded_rows + panel * kPanel) * kPanel;
      isa.pack_rows(b.type, at(b.data, b.type, offset), kPanel, std::min<int64_t>(kPanel, length - i), to + i * kPanel);
    }
    return;
  }
  if (b.layout == WeightLayout::Panels) {
    return isa.pack_columns(b.type, at(b.data, b.type, (panel * b.padded_rows + k0) * kPanel), kPanel, length, to);
  }
  const int64_t n0 = panel * kPanel;
  const void* from = at(b.data, b.type, k0 * b.row_stride + n0 * b.col_stride);
  if (whole_panel(c, panel) && b.col_stride == 1) return isa.pack_columns(b.type, from, b.row_stride, length, to);
  if (whole_panel(c, panel) && b.row_stride == 1) return isa.pack_rows(b.type, from, b.col_stride, length, to);
  const int64_t columns = std::min<int64_t>(kPanel, c.n - n0);
  if (columns < kPanel) std::memset(to, 0, static_cast<size_t>(length) * kPanel * sizeof(float));
  for (int64_t j = 0; j < columns; ++j) {
    gather(b.type, at(from, b.type, j * b.col_stride), b.row_stride, length, to + j, kPanel);
  }
}

// What the tiles of one chunk fetch ahead: the next chunk's weights (the next pair's after the last one), spread
// over the k steps of all tiles, so that memory is read while the multiply-adds run.
void next_weights(const Product& c, int64_t panel, int64_t next_k, int64_t tiles, Tile* tile) {
  const Operand& b = c.b;
  const int64_t bytes = static_cast<int64_t>(bytes_of(b.type));
  if (next_k >= c.k) panel += 2, next_k = 0;
  const void* next = b.data;
  tile->ahead_step = tile->ahead_panel = 0;
  if (b.layout == WeightLayout::Panels && !c.is_compact()) {
    next = at(b.data, b.type, (panel * b.padded_rows + next_k) * kPanel);
    tile->ahead_step = 2 * kPanel * bytes / tiles;
    tile->ahead_panel = c.panel_step() * b.padded_rows * kPanel * bytes;
  }
  tile->ahead = static_cast<const char*>(next);
}

// Adds the addend; in the processor's own floating-point mode.
void add_addend(const Product& c, int64_t row, int64_t n0, int64_t columns, float* sums) {
  if (c.addend.data) {
    float other[kPair];
    const Operand& d = c.addend;
    gather(d.type, at(d.data, d.type, row * d.row_stride + n0 * d.col_stride), d.col_stride, columns, other);
    for (int64_t j = 0; j < columns; ++j) sums[j] = c.alpha * sums[j] + c.beta * other[j];
  } else {
    for (int64_t j = 0; j < columns; ++j) sums[j] *= c.alpha;
  }
}

}  // namespace

void finish(const Product& c, int64_t row0, int64_t rows, int64_t pair, float* sums) {
  const int64_t n0 = c.first_panel(pair) * kPanel, columns = std::min<int64_t>(kPair, c.n - n0);
  if (c.epilogue) {
    const int64_t n1 = n0 + c.panel_step() * kPanel;
    const auto exist = [&](int64_t from) {
      return static_cast<int>(std::max<int64_t>(0, std::min<int64_t>(kPanel, c.n - from)));
    };
    return c.epilogue(c.context, {sums, row0, rows, {n0, n1}, {exist(n0), exist(n1)}});
  }
  if (c.addend.data || c.alpha != 1) {
    for (int64_t r = 0; r < rows; ++r) add_addend(c, row0 + r, n0, columns, sums + r * kPair);
  }
  const Operand& out = c.out;
  void* to = const_cast<void*>(at(out.data, out.type, row0 * out.row_stride + n0 * out.col_stride));
  if (out.col_stride == 1) return kernels().narrow(out.type, sums, rows, columns, to, out.row_stride);
  const size_t bytes = bytes_of(out.type);
  for (int64_t r = 0; r < rows; ++r) {
    alignas(64) unsigned char rounded[kPair * sizeof(float)];
    kernels().narrow(out.type, sums + r * kPair, 1, columns, rounded, 0);
    unsigned char* row = static_cast<unsigned char*>(to) + r * out.row_stride * static_cast<int64_t>(bytes);
    for (int64_t j = 0; j < columns; ++j) {
      std::memcpy(row + j * out.col_stride * static_cast<int64_t>(bytes), rounded + static_cast<size_t>(j) * bytes,
                  bytes);
    }
  }
}

namespace {

// The left operand, widened: element (r, k) at data[(k / kChunk) * chunk + r * row + k % kChunk].
struct Left {
  const float* data;
  int64_t chunk, row;
};

float* packed_weights() {
  thread_local Scratch packed;
  return packed.get(2 * kChunk * kPanel);
}

// The sums of `rows` rows, one pair of panels. `a`: its first row.
void sum_block(const Product& c, Left a, int64_t rows, int64_t pair, float* sums) {
  const Kernels& isa = kernels();
  const Operand& b = c.b;
  const int64_t panel = c.first_panel(pair), tiles = (rows + isa.max_rows - 1) / isa.max_rows;
  const int count = c.panels_of(pair);
  if (c.is_compact() && tiles == 1 && a.chunk == kChunk) {
    const int64_t later = c.first_panel(std::min(pair + 1, c.pairs() - 1)), step = c.panel_step();
    return isa.compact_micro(static_cast<int>(rows), count)(
        {&c.compact, {panel, panel + step}, {later, std::min(later + step, c.panels() - 1)}, a.data, a.row, sums});
  }
  const int64_t shortest = rows / tiles, taller = rows % tiles;  // the first `taller` tiles have one row more
  const bool whole = whole_panel(c, panel + (count - 1) * c.panel_step());
  const bool in_place =
      (b.layout == WeightLayout::Panels && !c.is_compact() && (tiles <= 2 || b.type == Element::F32)) ||
      (b.layout == WeightLayout::Strided && b.col_stride == 1 && tiles <= 2 && whole);
  if (c.k == 0) std::fill(sums, sums + rows * kPair, 0.f);
  float* buffer = in_place ? nullptr : packed_weights();
  const bool at_once = in_place && tiles == 1 && a.chunk == kChunk;
  const int64_t end = at_once ? std::max(int64_t{0}, c.k - kAhead) / kStep * kStep : 0;  // then the next pair is near
  for (int64_t k0 = 0, length; k0 < c.k; k0 += length) {
    length = std::min(k0 < end ? end : at_once ? c.k : kChunk, c.k - k0);
    Tile tile;
    tile.k = length, tile.a_row = a.row, tile.row = kPair, tile.fresh = k0 == 0;
    Element type = Element::F32;
    const void* weights = buffer;
    if (in_place) {
      type = b.type;
      const bool panels = b.layout == WeightLayout::Panels;
      tile.k_stride = panels ? kPanel : b.row_stride;
      const int64_t each = panels ? b.padded_rows * kPanel : kPanel;
      tile.panel_stride = c.panel_step() * each;
      weights = at(b.data, type, panel * each + k0 * tile.k_stride);
    } else {
      tile.panel_stride = kChunk * kPanel, tile.k_stride = kPanel;
      for (int p = 0; p < count; ++p) pack(c, panel + p * c.panel_step(), k0, length, buffer + p * kChunk * kPanel);
    }
    if (k0 < end) {
      const int64_t line = tile.k_stride * static_cast<int64_t>(bytes_of(type));
      tile.ahead = static_cast<const char*>(weights) + kAhead * line;
      tile.ahead_step = 2 * line, tile.ahead_panel = tile.panel_stride * static_cast<int64_t>(bytes_of(type));
    } else {
      next_weights(c, panel, k0 + length, tiles, &tile);
    }
    const char* ahead = tile.ahead;
    for (int64_t i = 0, row = 0; i < tiles; ++i) {
      const int height = static_cast<int>(shortest + (i < taller));
      tile.a = a.data + k0 / kChunk * a.chunk + k0 % kChunk + row * a.row;
      const Micro both = count == 2 ? isa.micro(type, height, 2) : nullptr;
      tile.ahead = ahead + i * length / 2 * tile.ahead_step;
      for (int p = 0; p < (both ? 1 : count); ++p) {
        tile.b = at(weights, type, p * tile.panel_stride);
        tile.sums = sums + row * kPair + p * kPanel;
        (both ? both : isa.micro(type, height, 1))(tile);
        tile.ahead += tile.ahead_panel;
      }
      row += height;
    }
  }
}

float* many_sums(int64_t floats) {
  thread_local Scratch scratch;
  return scratch.get(floats);
}

void block(const Product& c, Left a, int64_t row0, int64_t rows, int64_t pair) {
  constexpr int64_t kOnStack = 6;
  alignas(64) float few[kOnStack * kPair];
  float* sums = rows <= kOnStack ? few : many_sums(rows * kPair);
  {
    const FlushDenormals flushed(c.b.type == Element::BF16 && !c.plain());
    sum_block(c, a, rows, pair, sums);
  }
  finish(c, row0, rows, pair, sums);
}

// Few rows times weights whose rows are long (row-major): pairs side by side take a step of k each in turn, so that
// memory is read along its rows.
void blocks_along_rows(const Product& c, Left a, int64_t row0, int64_t rows, int64_t begin, int64_t end) {
  constexpr int64_t kTogether = 16;
  const Kernels& isa = kernels();
  const int64_t line = c.b.row_stride * static_cast<int64_t>(bytes_of(c.b.type)), each = rows * kPair;
  float* sums = many_sums(each * kTogether);
  Tile tile;
  tile.a_row = a.row, tile.row = kPair, tile.k_stride = c.b.row_stride, tile.panel_stride = c.panel_step() * kPanel;
  tile.ahead_step = 2 * line, tile.ahead_panel = tile.panel_stride * static_cast<int64_t>(bytes_of(c.b.type));
  const Micro both = isa.micro(c.b.type, static_cast<int>(rows), 2);
  const Micro single = isa.micro(c.b.type, static_cast<int>(rows), 1);
  for (; begin < end; begin += kTogether) {
    const int64_t count = std::min(kTogether, end - begin);
    {
      const FlushDenormals flushed(c.b.type == Element::BF16 && !c.plain());
      for (int64_t k0 = 0; k0 < c.k; k0 += kStep) {
        tile.a = a.data + k0, tile.k = std::min(kStep, c.k - k0), tile.fresh = k0 == 0;
        for (int64_t i = 0; i < count; ++i) {
          tile.b = at(c.b.data, c.b.type, k0 * c.b.row_stride + c.first_panel(begin + i) * kPanel);
          tile.sums = sums + i * each;
          tile.ahead = static_cast<const char*>(tile.b) + kStep * line;
          if (both) {
            both(tile);
            continue;
          }
          single(tile);
          tile.b = at(tile.b, c.b.type, tile.panel_stride);
          tile.sums += kPanel;
          single(tile);
        }
      }
    }
    for (int64_t i = 0; i < count; ++i) finish(c, row0, rows, begin + i, sums + i * each);
  }
}

// Widens rows row0 .. row0 + rows of the left operand to `to`, in the layout of `as`.
void widen_left(const Product& c, int64_t row0, int64_t rows, Left as, float* to) {
  const int64_t grain = std::max<int64_t>(1, kTaskWork / std::max<int64_t>(1, c.k));
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t k0 = 0; k0 < c.k; k0 += kChunk) {
      const int64_t length = std::min(kChunk, c.k - k0);
      float* chunk = to + k0 / kChunk * as.chunk;
      const void* from = at(c.a.data, c.a.type, row0 * c.a.row_stride + k0 * c.a.col_stride);
      if (c.a.col_stride != 1 && c.a.row_stride == 1) {
        for (int64_t i = 0; i < length; ++i) {
          gather(c.a.type, at(from, c.a.type, i * c.a.col_stride + begin), 1, end - begin, chunk + begin * as.row + i,
                 as.row);
        }
      } else {
        for (int64_t r = begin; r < end; ++r) {
          gather(c.a.type, at(from, c.a.type, r * c.a.row_stride), c.a.col_stride, length, chunk + r * as.row);
        }
      }
    }
  });
}

// Calls body(first row, rows, first pair, end of pairs) in parallel, over blocks of about `height` rows (the same
// height all, a multiple of `unit`) and runs of pairs.
template <class F>
void over_blocks(const Product& c, int64_t rows, int64_t height, int64_t unit, F&& body) {
  const int64_t pairs = c.pairs();
  int64_t blocks = (rows + height - 1) / height;
  while (blocks * pairs < 2 * num_threads() && rows / blocks > 2 * unit) ++blocks;
  height = ((rows + blocks - 1) / blocks + unit - 1) / unit * unit;
  blocks = (rows + height - 1) / height;
  const int64_t grain = std::max<int64_t>(1, std::min<int64_t>(pairs, kTaskWork / (height * c.k * kPair + 1)));
  parallel_for(blocks * pairs, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t first = begin / pairs * height, pair = begin % pairs;
      const int64_t count = std::min(end - begin, pairs - pair);
      body(first, std::min(height, rows - first), pair, pair + count);
      begin += count;
    }
  });
}

#if defined(ALOFT_WITH_AMX)
bool use_amx(const Product& c) {
  static const bool has = isa() >= Isa::Amx;
  return has && c.m >= (c.is_compact() ? kAmxCompactRows : kAmxRows) && c.k > 0 && c.b.type == Element::BF16;
}

void multiply_amx(const Product& c) {
  thread_local Scratch copied;
  const int64_t padded = (c.k + kStep - 1) / kStep * kStep;
  const int64_t in_l2 = std::max<int64_t>(kPair, kAmxBlockBytes / (padded * 2) / kPair * kPair);
  const bool as_it_lies = c.a.col_stride == 1 && padded == c.k;
  const int64_t slab = as_it_lies ? c.m : std::max(in_l2, kSlabFloats * 2 / padded / in_l2 * in_l2);
  for (int64_t row0 = 0; row0 < c.m; row0 += slab) {
    const int64_t rows = std::min(slab, c.m - row0);
    const bf16* a = static_cast<const bf16*>(at(c.a.data, c.a.type, row0 * c.a.row_stride));
    int64_t a_row = c.a.row_stride;
    if (!as_it_lies) {
      bf16* copy = reinterpret_cast<bf16*>(copied.get(rows * padded / 2));
      parallel_for(rows, std::max<int64_t>(1, kTaskWork / padded), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const bf16* from = a + r * a_row;
          bf16* to = copy + r * padded;
          for (int64_t k = 0; k < c.k; ++k) to[k] = from[k * c.a.col_stride];
          std::memset(to + c.k, 0, static_cast<size_t>(padded - c.k) * sizeof(bf16));
        }
      });
      a = copy, a_row = padded;
    }
    over_blocks(c, rows, in_l2, kPair, [&](int64_t first, int64_t count, int64_t pair, int64_t end) {
      amx_multiply(c, a + first * a_row, a_row, row0 + first, count, pair, end);
    });
  }
}
#endif

// Weights in the compact form: as they are where this instruction set reads it, else expanded.
Product with_weights(Product c) {
  if (c.b.type != Element::BF16 || c.b.layout == WeightLayout::Strided || c.k == 0) return c;
  if (!compact::is_compact(c.b.data)) return c;
  const bool transposed = c.b.layout == WeightLayout::PanelsTransposed;
  const compact::Weights weights = transposed ? compact::view(c.b.data, c.n, c.k) : compact::view(c.b.data, c.k, c.n);
  if (!transposed && kernels().compact_micro) {
    c.compact = weights;
  } else {
    thread_local Scratch expanded;
    c.b.data = expanded.get((c.n * c.k + 1) / 2);
    compact::expand(weights, const_cast<void*>(c.b.data));
  }
  return c;
}

void multiply(const Product& original) {
  const Product c = with_weights(original);
  if (c.is_compact() && c.m <= upcoming::kFewRows) {
    upcoming::reading({c.b.data, c.compact.header->bytes});
  } else if (c.m <= upcoming::kFewRows && c.b.layout == WeightLayout::Panels) {
    upcoming::reading({c.b.data, c.panels() * c.b.padded_rows * kPanel * static_cast<int64_t>(bytes_of(c.b.type))});
  } else {
    upcoming::none();
  }
#if defined(ALOFT_WITH_AMX)
  if (use_amx(c)) return multiply_amx(c);
#endif
  thread_local Scratch widened;
  const int tallest = kernels().max_rows;
  const int64_t chunks = std::max<int64_t>(1, (c.k + kChunk - 1) / kChunk);
  const bool few = c.m <= tallest;  // whole rows, for tiles that take all of k at once
  const bool along_rows =
      few && c.k > 0 && c.b.layout == WeightLayout::Strided && c.b.col_stride == 1 && c.b.row_stride > kPair;
  const int64_t row_floats = chunks * (few ? kChunk : kRowStride) + (few ? kPanel : 0);
  const int64_t in_l2 = std::max<int64_t>(4, kBlockBytes / (row_floats * 4) / tallest) * tallest;
  const int64_t slab = std::max(in_l2, kSlabFloats / row_floats / in_l2 * in_l2);
  for (int64_t row0 = 0; row0 < c.m; row0 += slab) {
    const int64_t rows = std::min(slab, c.m - row0);
    float* data = widened.get(rows * row_floats);
    const Left a = few ? Left{data, kChunk, row_floats} : Left{data, rows * kRowStride, kRowStride};
    widen_left(c, row0, rows, a, data);
    over_blocks(c, rows, in_l2, tallest, [&](int64_t first, int64_t count, int64_t pair, int64_t end) {
      const FlushDenormals flushed(c.b.type == Element::BF16 && c.plain());  // once: rounding does not depend on it
      if (along_rows) {
        const int64_t whole = std::min(end, c.gated() ? c.pairs() : c.n / kPair);
        if (whole > pair) {
          blocks_along_rows(c, {a.data + first * a.row, a.chunk, a.row}, row0 + first, count, pair, whole);
          pair = whole;
        }
      }
      for (; pair < end; ++pair) block(c, {a.data + first * a.row, a.chunk, a.row}, row0 + first, count, pair);
    });
  }
}

Operand transposed(Operand x) {
  std::swap(x.row_stride, x.col_stride);
  return x;
}

// Batch dimensions of one product are dropped; those that only lengthen the rows of a (the weights being the
// same for all) become rows, so that the weights are read once.
void fold_batch(Matmul* c) {
  const auto drop = [c](int d) {
    for (int i = d + 1; i < c->batch_dims; ++i) {
      c->batch[i - 1] = c->batch[i];
      for (Operand* x : {&c->a, &c->b, &c->out, &c->addend}) x->batch_stride[i - 1] = x->batch_stride[i];
    }
    --c->batch_dims;
  };
  for (int d = c->batch_dims - 1; d >= 0; --d) {
    if (c->batch[d] == 1) drop(d);
  }
  while (c->batch_dims > 0) {
    const int d = c->batch_dims - 1;
    if (c->b.batch_stride[d] != 0) break;
    for (const Operand* x : {&c->a, &c->out, &c->addend}) {
      if (x->data && c->m != 1 && x->batch_stride[d] != c->m * x->row_stride) return;
    }
    for (Operand* x : {&c->a, &c->out, &c->addend}) {
      if (c->m == 1) x->row_stride = x->batch_stride[d];
    }
    c->m *= c->batch[d];
    --c->batch_dims;
  }
}

}  // namespace
}  // namespace matmul_detail

void matmul(const Matmul& original) {
  using namespace matmul_detail;
  Matmul call = original;
  if (call.beta == 0) call.addend.data = nullptr;
  int64_t products = 1;
  for (int d = 0; d < call.batch_dims; ++d) products *= call.batch[d];
  if (products == 0 || call.m == 0 || call.n == 0) return;
  fold_batch(&call);
  products = 1;
  for (int d = 0; d < call.batch_dims; ++d) products *= call.batch[d];
  Product one{call.m,      call.n,     call.k,    call.a,  call.b,  call.out,
              call.addend, call.alpha, call.beta, nullptr, nullptr, Halves::Adjacent};
  // A matrix times a few columns: the other way round, the matrix is streamed and the columns are the rows.
  if (one.n < kPanel && one.m > one.n && one.b.layout == WeightLayout::Strided) {
    std::swap(one.m, one.n);
    const Operand a = one.a;
    one.a = transposed(one.b);
    one.b = transposed(a);
    one.out = transposed(one.out);
    one.addend = transposed(one.addend);
  }
  const bool split_products =
      products >= 2 && (products >= 4 * num_threads() || call.m * call.n * call.k <= kSmallProduct);
  const int64_t work = call.m * call.n * std::max<int64_t>(1, call.k);
  const int64_t grain = split_products ? std::max<int64_t>(1, kTaskWork / work) : products;
  const auto move = [&](const void* data, const Operand& x, int64_t index) -> const void* {
    if (!data) return nullptr;
    int64_t offset = 0;
    for (int d = call.batch_dims - 1; d >= 0; --d) {
      offset += index % call.batch[d] * x.batch_stride[d];
      index /= call.batch[d];
    }
    return at(data, x.type, offset);
  };
  parallel_for(products, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Product c = one;
      c.a.data = move(one.a.data, one.a, i);
      c.b.data = move(one.b.data, one.b, i);
      c.out.data = move(one.out.data, one.out, i);
      c.addend.data = move(one.addend.data, one.addend, i);
      multiply(c);
    }
  });
}

void matmul(const Matmul& call, Halves halves, Epilogue epilogue, const void* context) {
  using namespace matmul_detail;
  static_assert(kSumColumns == kPair, "what finish() hands over");
  if (call.batch_dims != 0 || (halves == Halves::Gated && call.n % kPair != 0)) {
    throw std::invalid_argument("a product with an epilogue has no batch, a gated one a multiple of 32 columns");
  }
  if (call.m == 0 || call.n == 0) return;
  multiply({call.m, call.n, call.k, call.a, call.b, {}, {}, 1, 0, epilogue, context, halves});
}

}  // namespace aloft
