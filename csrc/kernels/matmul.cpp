// The loop nest around the tiles. For one matrix product:
//   slab of rows (bounds the widened copy of the left operand to 16 MiB)
//     widen the left operand to fp32, [chunk of k][row][kRowStride]                        (parallel)
//     block of rows that stays in L2 x group of panels of 16 columns                       (parallel)
//       chunk of kChunk values of k
//         widen or transpose the group's weights into L1, unless they can be read in place
//         tile of rows: multiply-adds into the block's accumulators
//       alpha, beta, rounding, store
// k is never split between threads and chunks follow one another, so each element's chain is unbroken.
#include "kernels/matmul.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/cpu.h"
#include "kernels/matmul_isa.h"
#include "kernels/parallel.h"

namespace aloft {
namespace matmul_detail {
namespace {

constexpr int kMaxGroup = 8;                         // panels handled together
constexpr int64_t kSlabFloats = int64_t{4} << 20;    // widened left operand
constexpr int64_t kBlockBytes = int64_t{512} << 10;  // the part of it a task works on: half of a 1 MiB L2
constexpr int64_t kTaskWork = 24576;                 // multiply-adds below which a task is not worth handing out
constexpr int64_t kSmallProduct = int64_t{1} << 18;  // a batch of products up to this size is split by product

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

struct Product {
  int64_t m, n, k;
  Operand a, b, out, addend;
  float alpha, beta;
};

bool whole_panel(const Product& c, int64_t panel) { return (panel + 1) * kPanel <= c.n; }

// Weights of `count` panels for k0 <= k < k0 + length as fp32, to[panel][kChunk][16].
void pack(const Product& c, int64_t panel, int count, int64_t k0, int64_t length, float* to) {
  const Operand& b = c.b;
  const Kernels& isa = kernels();
  if (b.layout == WeightLayout::PanelsTransposed) {
    for (int64_t i = 0; i < length; i += kPanel) {
      for (int p = 0; p < count; ++p) {
        const int64_t offset = ((k0 + i) / kPanel * b.padded_rows + (panel + p) * kPanel) * kPanel;
        isa.pack_rows(b.type, at(b.data, b.type, offset), kPanel, std::min<int64_t>(kPanel, length - i),
                      to + p * kChunk * kPanel + i * kPanel);
      }
    }
    return;
  }
  for (int p = 0; p < count; ++p, ++panel, to += kChunk * kPanel) {
    if (b.layout == WeightLayout::Panels) {
      isa.pack_columns(b.type, at(b.data, b.type, (panel * b.padded_rows + k0) * kPanel), kPanel, length, to);
      continue;
    }
    const int64_t n0 = panel * kPanel;
    const void* from = at(b.data, b.type, k0 * b.row_stride + n0 * b.col_stride);
    if (whole_panel(c, panel) && b.col_stride == 1) {
      isa.pack_columns(b.type, from, b.row_stride, length, to);
    } else if (whole_panel(c, panel) && b.row_stride == 1) {
      isa.pack_rows(b.type, from, b.col_stride, length, to);
    } else {
      const int64_t columns = std::min<int64_t>(kPanel, c.n - n0);
      if (columns < kPanel) std::memset(to, 0, static_cast<size_t>(length) * kPanel * sizeof(float));
      for (int64_t j = 0; j < columns; ++j) {
        gather(b.type, at(from, b.type, j * b.col_stride), b.row_stride, length, to + j, kPanel);
      }
    }
  }
}

// What the tiles of one chunk fetch ahead: the next chunk's weights (the next group's after the last one), spread
// over the k steps of all tiles, so that memory is read while the multiply-adds run.
Ahead next_weights(const Product& c, int64_t panel, int64_t count, int64_t next_k, int64_t tiles) {
  const Operand& b = c.b;
  const int64_t bytes = static_cast<int64_t>(bytes_of(b.type));
  if (next_k >= c.k) panel += count, next_k = 0;
  if (b.layout == WeightLayout::Panels) {
    const void* next = at(b.data, b.type, (panel * b.padded_rows + next_k) * kPanel);
    return {static_cast<const char*>(next), kPanel * bytes / tiles, b.padded_rows * kPanel * bytes};
  }
  if (b.layout == WeightLayout::Strided && b.col_stride == 1 && tiles == 1) {
    const void* next = at(b.data, b.type, next_k * b.row_stride + panel * kPanel);
    return {static_cast<const char*>(next), b.row_stride * bytes, kPanel * bytes};
  }
  return {static_cast<const char*>(b.data), 0, 0};
}

// Rounds one row of accumulators and stores it.
void finish_row(const Product& c, int64_t row, int64_t n0, int64_t columns, float* sums) {
  const Kernels& isa = kernels();
  if (c.addend.data) {
    float other[kMaxGroup * kPanel];
    const Operand& d = c.addend;
    gather(d.type, at(d.data, d.type, row * d.row_stride + n0 * d.col_stride), d.col_stride, columns, other);
    for (int64_t j = 0; j < columns; ++j) sums[j] = c.alpha * sums[j] + c.beta * other[j];
  } else if (c.alpha != 1) {
    for (int64_t j = 0; j < columns; ++j) sums[j] *= c.alpha;
  }
  const Operand& out = c.out;
  void* to = const_cast<void*>(at(out.data, out.type, row * out.row_stride + n0 * out.col_stride));
  if (out.col_stride == 1) return isa.narrow(out.type, sums, columns, to);
  alignas(64) unsigned char rounded[kMaxGroup * kPanel * sizeof(float)];
  isa.narrow(out.type, sums, columns, rounded);
  const size_t bytes = bytes_of(out.type);
  for (int64_t j = 0; j < columns; ++j) {
    std::memcpy(static_cast<unsigned char*>(to) + j * out.col_stride * static_cast<int64_t>(bytes), rounded + j * bytes,
                bytes);
  }
}

// Panels the widest tile of `rows` takes, at most `count`.
int widest(Element type, int rows, int64_t count) {
  int panels = kMaxGroup;
  while (panels > count || !kernels().micro(type, rows, panels)) panels /= 2;
  return panels;
}

// Rows row0 .. row0 + rows of the product, columns of `count` panels. a: widened rows, the chunk of k0 = 0 first.
void block(const Product& c, const float* a, int64_t chunk_stride, int64_t row0, int64_t rows, int64_t panel,
           int count) {
  thread_local Scratch accumulators, packed;
  const Kernels& isa = kernels();
  const Operand& b = c.b;
  const int64_t width = count * kPanel, tiles = (rows + isa.max_rows - 1) / isa.max_rows;
  const int64_t shortest = rows / tiles, taller = rows % tiles;  // the first `taller` tiles have one row more
  const bool in_place =
      (b.layout == WeightLayout::Panels && (tiles <= 2 || b.type == Element::F32)) ||
      (b.layout == WeightLayout::Strided && b.col_stride == 1 && tiles <= 2 && whole_panel(c, panel + count - 1));
  float* sums = accumulators.get(rows * width);
  float* buffer = in_place ? nullptr : packed.get(kMaxGroup * kChunk * kPanel);
  // One tile of rows (decode): each panel is one long sequential read. More: all of them on the weights in L1.
  const int64_t p_step = tiles == 1 ? widest(in_place ? b.type : Element::F32, static_cast<int>(rows), count)
                                    : widest(Element::F32, static_cast<int>(shortest + (taller > 0)), 2);
  const bool panel_by_panel = in_place && tiles == 1;
  const int64_t outer = panel_by_panel ? p_step : count;
  for (int64_t first = 0; first < count; first += outer) {
    const int64_t last = std::min<int64_t>(count, first + outer);
    for (int64_t k0 = 0, chunk = 0; k0 < c.k; k0 += kChunk, ++chunk) {
      const int64_t length = std::min(kChunk, c.k - k0);
      const void* weights = buffer;
      Element type = Element::F32;
      int64_t panel_stride = kChunk * kPanel, k_stride = kPanel;
      if (in_place) {
        type = b.type;
        panel_stride = b.layout == WeightLayout::Panels ? b.padded_rows * kPanel : kPanel;
        k_stride = b.layout == WeightLayout::Panels ? kPanel : b.row_stride;
        weights = at(b.data, type, panel * panel_stride + k0 * k_stride);
      } else {
        pack(c, panel, count, k0, length, buffer);
      }
      const Ahead ahead = next_weights(c, panel, outer, k0 + length, tiles);
      for (int64_t p0 = first; p0 < last; p0 += p_step) {
        const int64_t p1 = std::min<int64_t>(last, p0 + p_step);
        for (int64_t tile = 0, row = 0; tile < tiles; ++tile) {
          const int height = static_cast<int>(shortest + (tile < taller));
          for (int64_t p = p0; p < p1;) {
            const int panels = widest(type, height, p1 - p);
            const Ahead fetched{ahead.from + p * ahead.panel + tile * length * ahead.step, ahead.step, ahead.panel};
            isa.micro(type, height, panels)(a + chunk * chunk_stride + row * kRowStride,
                                            at(weights, type, p * panel_stride), panel_stride, k_stride, length,
                                            sums + row * width + p * kPanel, width, k0 == 0, fetched);
            p += panels;
          }
          row += height;
        }
      }
    }
  }
  if (c.k == 0) std::fill(sums, sums + rows * width, 0.f);
  const int64_t n0 = panel * kPanel, columns = std::min(width, c.n - n0);
  for (int64_t r = 0; r < rows; ++r) finish_row(c, row0 + r, n0, columns, sums + r * width);
}

void widen_left(const Product& c, int64_t row0, int64_t rows, float* to) {
  const int64_t chunks = (c.k + kChunk - 1) / kChunk;
  const int64_t grain = std::max<int64_t>(1, kTaskWork / std::max<int64_t>(1, c.k));
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t k0 = chunk * kChunk, length = std::min(kChunk, c.k - k0);
      float* block = to + chunk * rows * kRowStride;
      const void* from = at(c.a.data, c.a.type, row0 * c.a.row_stride + k0 * c.a.col_stride);
      if (c.a.col_stride != 1 && c.a.row_stride == 1) {
        for (int64_t i = 0; i < length; ++i) {
          gather(c.a.type, at(from, c.a.type, i * c.a.col_stride + begin), 1, end - begin,
                 block + begin * kRowStride + i, kRowStride);
        }
      } else {
        for (int64_t r = begin; r < end; ++r) {
          gather(c.a.type, at(from, c.a.type, r * c.a.row_stride), c.a.col_stride, length, block + r * kRowStride);
        }
      }
    }
  });
}

void multiply(const Product& c) {
  thread_local Scratch widened;
  const int tallest = kernels().max_rows;
  const int64_t chunks = (c.k + kChunk - 1) / kChunk, row_floats = std::max<int64_t>(1, chunks) * kRowStride;
  const int64_t panels = (c.n + kPanel - 1) / kPanel;
  const int64_t in_l2 = std::max<int64_t>(4, kBlockBytes / (row_floats * 4) / tallest) * tallest;
  const int64_t slab = std::max(in_l2, kSlabFloats / row_floats / in_l2 * in_l2);
  for (int64_t row0 = 0; row0 < c.m; row0 += slab) {
    const int64_t rows = std::min(slab, c.m - row0);
    float* a = widened.get(rows * row_floats);
    widen_left(c, row0, rows, a);
    const int64_t blocks = (rows + in_l2 - 1) / in_l2, height = (rows + blocks - 1) / blocks;
    // Weights that are transposed on the way (k contiguous) go through a buffer that must stay in L1.
    const bool along_k = c.b.layout == WeightLayout::PanelsTransposed ||
                         (c.b.layout == WeightLayout::Strided && c.b.row_stride == 1 && c.b.col_stride != 1);
    const int group = along_k ? 2 : height <= 2 ? 8 : height <= 8 ? 4 : 2;
    const int64_t grain = std::max<int64_t>(1, std::min<int64_t>(panels, kTaskWork / (height * c.k * kPanel + 1)));
    parallel_for(blocks * panels, grain, [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t first = begin / panels * height, panel = begin % panels;
        const int count = static_cast<int>(std::min<int64_t>({group, end - begin, panels - panel}));
        block(c, a + first * kRowStride, rows * kRowStride, row0 + first, std::min(height, rows - first), panel, count);
        begin += count;
      }
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
  Product one{call.m, call.n, call.k, call.a, call.b, call.out, call.addend, call.alpha, call.beta};
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

}  // namespace aloft
