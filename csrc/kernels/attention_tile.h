// What one instruction-set variant of the attention kernel offers. Internal to csrc/kernels.
#pragma once
#include "kernels/attention.h"

namespace aloft {

constexpr int64_t kKeyTile = 64;     // keys handled at once; every cut of a key range is a multiple of it
constexpr int64_t kSplitKeys = 256;  // keys a task of a short query handles, at most
constexpr int64_t kDotRows = 8;      // up to this many rows (query tokens x heads of a group): dot products
constexpr int64_t kBlockRows = 96;   // above: blocks of about this many rows, as matrix products

// Rows [row0, row0 + rows) of some key-value heads of one sequence against keys [key0, key1).
// Row r of a head is query token r / group, head kv_head * group + r % group.
struct AttentionTask {
  int64_t sequence = 0, kv_head = 0, kv_heads = 1, row0 = 0, rows = 0, key0 = 0, key1 = 0;
  // Null: the task finishes its rows; else, head by head, rows x (d_v padded + 2): values, max, sum.
  float* partial = nullptr;
  bool recent = false;               // of the second problem of the call
  int64_t recent0 = 0, recent1 = 0;  // not empty: these keys of the second problem are for the same task
};

struct AttentionKernels {
  int64_t lanes;
  int64_t block_rows;  // wanted in a block of 16-bit operands (see kBlockRows); has no influence on results
  // `next`: what the thread will do afterwards, to be fetched in good time; may be null.
  void (*run)(const AttentionProblem& problem, const AttentionTask& task, const AttentionTask* next);
  // Finishes the rows of one head: `splits` partial results, each `step` floats after the one before.
  void (*merge)(const AttentionProblem& problem, const AttentionTask& task, int64_t splits, int64_t step);
  // C[m, n] (+)= A . B with A(i, k) = a[i * row_a + k * col_a], B and C row-major, n a multiple of lanes.
  void (*gemm)(int64_t m, int64_t n, int64_t k, const float* a, int64_t row_a, int64_t col_a, const float* b,
               int64_t ldb, float* c, int64_t ldc, bool accumulate);
  void (*exp)(int64_t n, const float* x, float* y);
};

extern const AttentionKernels kAttentionPortable;
extern const AttentionKernels kAttentionAvx2;
extern const AttentionKernels kAttentionAvx512;
extern const AttentionKernels kAttentionAmx;
const AttentionKernels& attention_kernels();

static inline int64_t attention_pad(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
// Room of one row of a partial result, in floats.
static inline int64_t attention_partial_row(const AttentionProblem& p) { return attention_pad(p.d_v, 16) + 2; }

}  // namespace aloft
