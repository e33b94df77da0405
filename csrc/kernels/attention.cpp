#include "kernels/attention.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/attention_tile.h"
#include "kernels/cpu.h"
#include "kernels/parallel.h"

namespace aloft {

const AttentionKernels& attention_kernels() {
#if defined(__x86_64__)
  if (isa() >= Isa::Avx512) return kAttentionAvx512;
  if (isa() == Isa::Avx2) return kAttentionAvx2;
#endif
  return kAttentionPortable;
}

namespace {

struct Merge {  // the first of `splits` tasks over the same rows, one head
  AttentionTask task;
  int64_t splits;
  size_t place;
};

// Keys the rows [row0, row0 + rows) may see, as [begin, end).
void visible_keys(const AttentionSequence& s, int64_t group, int64_t row0, int64_t rows, int64_t* begin, int64_t* end) {
  const int64_t first = row0 / group, last = (row0 + rows - 1) / group;
  *begin = std::min(std::max<int64_t>(0, first + s.low), s.kv_len);
  *end = std::min(s.kv_len, std::max(last + s.high, s.prefix - 1) + 1);
  if (*end < *begin) *end = *begin;
}

// How many key-value heads a task of few rows takes: all when there are enough tasks, since a token's heads lie
// side by side in memory. Has no influence on the results.
int64_t heads_of_task(const AttentionProblem& p, int64_t group) {
  int64_t units = 0;
  for (int64_t b = 0; b < p.count; ++b) {
    const AttentionSequence& s = p.sequences[b];
    if (s.q_len && s.q_len * group <= kDotRows) units += s.kv_len / kSplitKeys + 1;
  }
  const int64_t wanted = 2 * num_threads();
  return units ? std::max<int64_t>(1, p.kv_heads * units / std::max(units, wanted)) : 1;
}

}  // namespace

void attention_forward(const AttentionProblem& p) {
  const AttentionKernels& kernels = attention_kernels();
  const int64_t group = p.heads / p.kv_heads, row_size = attention_partial_row(p);
  const int64_t few_heads = heads_of_task(p, group);
  std::vector<AttentionTask> tasks;
  std::vector<size_t> places;  // of a task's partial result, plus one; 0: it has none
  std::vector<Merge> merges;
  size_t floats = 0;
  for (int64_t b = 0; b < p.count; ++b) {
    const AttentionSequence& s = p.sequences[b];
    const int64_t rows = s.q_len * group;
    // Blocks and cuts follow from this sequence alone, so that a row's bits do not depend on the batch.
    int64_t block = rows;
    if (rows > kBlockRows + kBlockRows / 3) block = std::max<int64_t>(1, kBlockRows / group) * group;
    const int64_t task_heads = rows <= kDotRows ? few_heads : 1;
    for (int64_t row0 = 0; row0 < rows; row0 += block) {
      AttentionTask t;
      t.sequence = b, t.row0 = row0, t.rows = std::min(block, rows - row0);
      int64_t begin, end;
      visible_keys(s, group, row0, t.rows, &begin, &end);
      begin = begin / kSplitKeys * kSplitKeys;
      const int64_t cuts = rows == block && end > begin ? (end - begin + kSplitKeys - 1) / kSplitKeys : 1;
      const int64_t head_size = t.rows * row_size;
      for (int64_t h = 0; h < p.kv_heads; h += task_heads) {
        t.kv_head = h, t.kv_heads = std::min(task_heads, p.kv_heads - h);
        for (int64_t c = 0; c < cuts; ++c) {
          t.key0 = begin + c * kSplitKeys;
          t.key1 = cuts > 1 ? std::min(end, t.key0 + kSplitKeys) : end;
          tasks.push_back(t);
          places.push_back(cuts > 1 ? floats + static_cast<size_t>((c * p.kv_heads + h) * head_size) + 1 : 0);
        }
      }
      if (cuts > 1) {
        t.kv_heads = 1;
        for (t.kv_head = 0; t.kv_head < p.kv_heads; ++t.kv_head)
          merges.push_back({t, cuts, floats + static_cast<size_t>(t.kv_head * head_size)});
        floats += static_cast<size_t>(cuts * p.kv_heads * head_size);
      }
    }
  }
  std::unique_ptr<float[]> partial(floats ? new float[floats] : nullptr);
  for (size_t i = 0; i < tasks.size(); ++i)
    if (places[i]) tasks[i].partial = partial.get() + places[i] - 1;
  // Causal blocks grow with the row: the long ones first, so that the threads end together.
  parallel_for(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) kernels.run(p, tasks[tasks.size() - 1 - static_cast<size_t>(i)]);
  });
  parallel_for(static_cast<int64_t>(merges.size()), 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Merge& m = merges[static_cast<size_t>(i)];
      m.task.partial = partial.get() + m.place;
      kernels.merge(p, m.task, m.splits, p.kv_heads * m.task.rows * row_size);
    }
  });
}

}  // namespace aloft
