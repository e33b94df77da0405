// bf16 weights rewritten in their own memory, without loss, in three quarters of their bytes.
//
// The exponents of a trained matrix are few: 16 of the 256 cover all but some values in a million. A value then is its
// sign and mantissa (8 bits) and the number of its exponent in a table of 16 (4 bits); values with another exponent are
// listed apart. Reading weights is what a product of few rows takes its time for, and a register of 32 values is put
// together again by a table look-up and two logical instructions. (Compressing the exponents of bf16 weights without
// loss: Zhang et al., "70% Size, 100% Accuracy", 2025, there with Huffman codes for GPUs.)
//
// The memory is that of the matrix in FRACTAL_NZ [rows, cols], of which the form is private to this library as far as
// torch_npu is concerned. It begins with a mark that no weights begin with, so that it is known wherever it is read,
// and after it was copied as a whole; writing the matrix anew overwrites the mark. Readers: matmul() and nz_to_rows().
//
//   Header | units | with exceptions: where those of each unit begin, the exceptions
//
// A unit is 32 rows of a panel of 16 columns: 16 lines, a line being rows 2 i and 2 i + 1 with their values side by
// side by column, as a weight tile of AMX. Four groups of four lines, each 64 bytes of exponent numbers (a 16-bit word
// holds those of the same place in four lines, lowest bits first), then twice 64 bytes of signs and mantissas: a line
// under the mask 0x807f, and the next one, rotated left by 8 in 32 bits, in between.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/api.h"
#include "kernels/half.h"

namespace aloft::compact {

constexpr int64_t kRows = 32, kColumns = 16, kLines = 16, kValues = kRows * kColumns;
constexpr int64_t kGroups = 4, kGroupBytes = 192, kUnitBytes = kGroups * kGroupBytes;
constexpr uint32_t kSignAndMantissa = 0x807f807f;

struct alignas(64) Header {
  uint64_t mark[4];
  int64_t rows, cols;         // of the matrix
  int64_t exceptions;         // their number
  int64_t bytes;              // all of this form
  uint16_t exponents[2][16];  // the table, in the place the exponent has in a value; twice: five bits may be looked up
};

struct Exception {
  uint16_t place;  // in the unit: line * 32 + word
  uint16_t value;
};

// A matrix in this form.
struct Weights {
  const Header* header = nullptr;
  const unsigned char* units = nullptr;
  const uint32_t* first = nullptr;  // exceptions of unit u: first[u] .. first[u + 1]; null where there are none
  const Exception* exceptions = nullptr;
  int64_t steps = 0;  // units of a panel

  int64_t index(int64_t panel, int64_t step) const { return panel * steps + step; }
  const unsigned char* unit(int64_t index) const { return units + index * kUnitBytes; }
  bool has_exceptions(int64_t index) const { return first && first[index] != first[index + 1]; }
  // Puts the exceptions of a unit into its lines.
  void mend(int64_t index, bf16* lines) const {
    if (!first) return;
    for (uint32_t i = first[index]; i < first[index + 1]; ++i) lines[exceptions[i].place].bits = exceptions[i].value;
  }
};

// Is the memory of a FRACTAL_NZ matrix (512 bytes at least) in this form?
ALOFT_KERNEL_API bool is_compact(const void* panels);
// What is_compact(). Throws std::logic_error when it is not that of a [rows, cols] matrix.
ALOFT_KERNEL_API Weights view(const void* panels, int64_t rows, int64_t cols);

// Rewrites [rows, cols] in FRACTAL_NZ. False, and nothing changed: the sizes are not multiples of 32 and 16, there
// would be no gain, or this processor has no fast way to read it. Whole huge pages of the memory that are no longer
// needed go back to the system.
ALOFT_KERNEL_API bool make(void* panels, int64_t rows, int64_t cols);
// The matrix as plain FRACTAL_NZ, rows * cols values.
ALOFT_KERNEL_API void expand(const Weights& from, void* panels);

}  // namespace aloft::compact
