#include "kernels/compact.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <vector>

#include "kernels/cpu.h"
#include "kernels/parallel.h"

namespace aloft::compact {
namespace {

constexpr uint64_t kMark[4] = {0x8c5a1d93e7f0426bu, 0x3fb6c8a10d2e9574u, 0xd16a7e0f94c3b825u, 0x6be29f03518da7c4u};
constexpr int64_t kSmallest = int64_t{1} << 14;  // values; nothing is gained on less
constexpr int64_t kSeldom = 512;                 // of so many values at most one may be an exception
constexpr int64_t kGrain = 32;                   // units of a task, 16 Ki values
constexpr int kExponents = 256, kKnown = 16;

static_assert(sizeof(Header) == 128, "followed by the units, 64 bytes aligned");

int exponent_of(bf16 v) { return v.bits >> 7 & 0xff; }

// Source rows of a unit of a panel in FRACTAL_NZ.
struct Matrix {
  const bf16* data;
  int64_t rows, cols;
  int64_t steps() const { return rows / kRows; }
  int64_t units() const { return steps() * (cols / kColumns); }
  const bf16* unit(int64_t index) const { return data + index * kValues; }  // panels are dense: rows % 16 == 0
  static int64_t line_value(int line, int word) { return (2 * line + (word & 1)) * kColumns + word / 2; }
};

using Counts = std::array<int64_t, kExponents>;

Counts counted(const Matrix& m) {
  Counts all{};
  std::mutex adding;
  parallel_for(m.units(), kGrain, [&](int64_t begin, int64_t end) {
    std::array<std::array<uint32_t, kExponents>, 4> counts{};  // neighbours are often alike: apart, they do not wait
    const bf16* from = m.unit(begin);
    for (int64_t i = 0; i < (end - begin) * kValues; i += 4) {
      for (size_t j = 0; j < 4; ++j) ++counts[j][static_cast<size_t>(exponent_of(from[i + static_cast<int64_t>(j)]))];
    }
    const std::lock_guard<std::mutex> lock(adding);
    for (const auto& part : counts) {
      for (size_t e = 0; e < part.size(); ++e) all[e] += part[e];
    }
  });
  return all;
}

// The lines of a unit as they are written; exceptions get the first exponent.
void write_unit(const bf16* from, const std::array<uint8_t, kExponents>& number, unsigned char* to) {
  for (int g = 0; g < kGroups; ++g, to += kGroupBytes) {
    uint16_t numbers[32] = {};
    uint32_t rest[2][16] = {};
    for (int i = 0; i < 4; ++i) {
      for (int word = 0; word < 32; ++word) {
        const bf16 v = from[Matrix::line_value(4 * g + i, word)];
        numbers[word] = static_cast<uint16_t>(numbers[word] | number[static_cast<size_t>(exponent_of(v))] << 4 * i);
        const uint32_t bits = (v.bits & uint32_t{0x807f}) << 16 * (word & 1);
        rest[i / 2][word / 2] |= i % 2 ? bits << 8 | bits >> 24 : bits;
      }
    }
    std::memcpy(to, numbers, sizeof(numbers));
    std::memcpy(to + 64, rest, sizeof(rest));
  }
}

void read_unit(const Weights& w, int64_t index, bf16* lines) {
  const unsigned char* from = w.unit(index);
  for (int g = 0; g < kGroups; ++g, from += kGroupBytes) {
    uint16_t numbers[32];
    uint32_t rest[2][16];
    std::memcpy(numbers, from, sizeof(numbers));
    std::memcpy(rest, from + 64, sizeof(rest));
    for (int i = 0; i < 4; ++i) {
      for (int word = 0; word < 32; ++word) {
        uint32_t bits = rest[i / 2][word / 2];
        if (i % 2) bits = bits >> 8 | bits << 24;
        bits = (bits & kSignAndMantissa) >> 16 * (word & 1);
        const uint16_t exponent = w.header->exponents[0][numbers[word] >> 4 * i & 15];
        lines[(4 * g + i) * 32 + word].bits = static_cast<uint16_t>((bits & 0xffff) | exponent);
      }
    }
  }
  w.mend(index, lines);
}

// Gives the system back what is behind `used` bytes, in whole huge pages, so that none is broken up. It reads as
// anything from then on, as unused memory may; memory that is shared or locked stays.
void release(void* memory, int64_t used, int64_t all) {
  constexpr uintptr_t kHuge = uintptr_t{2} << 20;
  const uintptr_t start = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = (start + static_cast<uintptr_t>(used) + kHuge - 1) / kHuge * kHuge;
  const uintptr_t end = (start + static_cast<uintptr_t>(all)) / kHuge * kHuge;
  if (begin < end) static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED));
}

}  // namespace

bool is_compact(const void* panels) { return panels && std::memcmp(panels, kMark, sizeof(kMark)) == 0; }

Weights view(const void* panels, int64_t rows, int64_t cols) {
  const Header* header = static_cast<const Header*>(panels);
  if (header->rows != rows || header->cols != cols) {
    throw std::logic_error("compact weights are read as a matrix of another shape than they were made from");
  }
  Weights w;
  w.header = header;
  w.units = static_cast<const unsigned char*>(panels) + sizeof(Header);
  w.steps = rows / kRows;
  if (header->exceptions) {
    const int64_t units = w.steps * (cols / kColumns);
    w.first = reinterpret_cast<const uint32_t*>(w.unit(units));
    w.exceptions = reinterpret_cast<const Exception*>(w.first + units + 1);
  }
  return w;
}

bool make(void* panels, int64_t rows, int64_t cols) {
  const Matrix m{static_cast<const bf16*>(panels), rows, cols};
  if (rows <= 0 || cols <= 0 || rows % kRows || cols % kColumns || rows * cols < kSmallest) return false;
  if (isa() < Isa::Avx512 || is_compact(panels)) return false;
  const Counts counts = counted(m);
  std::array<uint8_t, kExponents> order{}, number{};
  for (size_t e = 0; e < order.size(); ++e) order[e] = static_cast<uint8_t>(e);
  std::stable_sort(order.begin(), order.end(), [&](uint8_t x, uint8_t y) { return counts[x] > counts[y]; });
  Header header{};
  header.rows = rows, header.cols = cols;
  std::array<bool, kExponents> known{};
  for (size_t i = 0; i < kKnown; ++i) {
    known[order[i]] = true;
    number[order[i]] = static_cast<uint8_t>(i);
    header.exponents[0][i] = header.exponents[1][i] = static_cast<uint16_t>(order[i] << 7);
  }
  for (size_t i = kKnown; i < order.size(); ++i) header.exceptions += counts[order[i]];
  if (header.exceptions > rows * cols / kSeldom) return false;

  const int64_t units = m.units();
  header.bytes = static_cast<int64_t>(sizeof(Header)) + units * kUnitBytes;
  if (header.exceptions) {
    header.bytes += (units + 1) * 4 + header.exceptions * static_cast<int64_t>(sizeof(Exception));
  }
  const std::unique_ptr<unsigned char, void (*)(void*)> made(
      static_cast<unsigned char*>(std::malloc(static_cast<size_t>(header.bytes))), std::free);
  if (!made) throw std::bad_alloc();
  unsigned char* to = made.get() + sizeof(Header);
  std::vector<uint32_t> found(header.exceptions ? static_cast<size_t>(units) : 0);
  parallel_for(units, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      write_unit(m.unit(u), number, to + u * kUnitBytes);
      if (found.empty()) continue;
      const bf16* from = m.unit(u);
      found[static_cast<size_t>(u)] = static_cast<uint32_t>(
          std::count_if(from, from + kValues, [&](bf16 v) { return !known[static_cast<size_t>(exponent_of(v))]; }));
    }
  });
  if (header.exceptions) {
    uint32_t* first = reinterpret_cast<uint32_t*>(to + units * kUnitBytes);
    Exception* exception = reinterpret_cast<Exception*>(first + units + 1);
    uint32_t at = 0;
    for (int64_t u = 0; u < units; ++u) {
      first[u] = at;
      if (!found[static_cast<size_t>(u)]) continue;
      const bf16* from = m.unit(u);
      for (int line = 0; line < kLines; ++line) {
        for (int word = 0; word < 32; ++word) {
          const bf16 v = from[Matrix::line_value(line, word)];
          if (!known[static_cast<size_t>(exponent_of(v))]) {
            exception[at++] = {static_cast<uint16_t>(line * 32 + word), v.bits};
          }
        }
      }
    }
    first[units] = at;
  }
  std::memcpy(header.mark, kMark, sizeof(kMark));
  std::memcpy(made.get(), &header, sizeof(header));
  std::memcpy(panels, made.get(), static_cast<size_t>(header.bytes));
  release(panels, header.bytes, rows * cols * static_cast<int64_t>(sizeof(bf16)));
  return true;
}

void expand(const Weights& from, void* panels) {
  const int64_t units = from.steps * (from.header->cols / kColumns);
  parallel_for(units, kGrain, [&](int64_t begin, int64_t end) {
    bf16 lines[kValues];
    for (int64_t u = begin; u < end; ++u) {
      read_unit(from, u, lines);
      bf16* to = static_cast<bf16*>(panels) + u * kValues;
      for (int line = 0; line < kLines; ++line) {
        for (int word = 0; word < 32; ++word) to[Matrix::line_value(line, word)] = lines[line * 32 + word];
      }
    }
  });
}

}  // namespace aloft::compact
