#include "kernels/attention.h"

#include <algorithm>
#include <vector>

#include "kernels/attention_tile.h"
#include "kernels/cpu.h"
#include "kernels/parallel.h"

namespace aloft {

const AttentionKernels& attention_kernels() {
#if defined(__x86_64__)
#if defined(ALOFT_WITH_AMX)
  if (isa() >= Isa::Amx) return kAttentionAmx;
#endif
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

// A call cut into tasks. Kept by the thread: a decode step makes one call a layer.
struct Plan {
  std::vector<AttentionTask> tasks;
  std::vector<size_t> places;  // of a task's partial result, plus one; 0: it has none
  std::vector<Merge> merges;
  std::vector<float> partial;
  int64_t bytes = 0;  // of keys and values, as often as they are passed over
};

// Below this a second thread is not worth waking: about three microseconds of reading.
constexpr int64_t kWorthSharing = 40 << 10;
constexpr int64_t kWorthFetching = 1 << 20;  // of keys and values in a range of tasks
constexpr size_t kKeptFloats = size_t{1} << 20;

// Keys the rows [row0, row0 + rows) may see, as [begin, end).
void visible_keys(const AttentionSequence& s, int64_t group, int64_t row0, int64_t rows, int64_t* begin, int64_t* end) {
  const int64_t first = row0 / group, last = (row0 + rows - 1) / group;
  *begin = std::min(std::max<int64_t>(0, first + s.low), s.kv_len);
  *end = std::min(s.kv_len, std::max(last + s.high, s.prefix - 1) + 1);
  if (*end < *begin) *end = *begin;
}

int64_t key_bytes(const AttentionProblem& p) {
  const bool wide = p.kv == AttentionKv::F32 || (p.kv == AttentionKv::Same && p.type == AttentionType::F32);
  const bool narrow = p.kv == AttentionKv::Int8 || p.kv == AttentionKv::Fp8;
  return (p.d + p.d_rope + p.d_v) * (wide ? 4 : (narrow ? 1 : 2));
}

// How many key-value heads a task of few rows takes: all when there are enough tasks, since a token's heads lie
// side by side in memory, or when there is so little to do that one thread does it. Has no influence on the results.
int64_t heads_of_task(const AttentionProblem& p, int64_t group) {
  int64_t units = 0, keys = 0;
  for (int64_t b = 0; b < p.count; ++b) {
    const AttentionSequence& s = p.sequences[b];
    if (!s.q_len || s.q_len * group > kDotRows) continue;
    keys += s.kv_len;
    units += s.kv_len / kSplitKeys + 1;
  }
  if (!units || keys * p.kv_heads * key_bytes(p) < kWorthSharing) return p.kv_heads;
  const int64_t wanted = 2 * num_threads();
  return std::max<int64_t>(1, p.kv_heads * units / std::max(units, wanted));
}

// Rows of a block: large blocks read keys and values less often, small ones keep the threads busy.
int64_t rows_of_block(const AttentionProblem& p, const AttentionKernels& kernels, int64_t group, int64_t rows) {
  const bool tiles = p.type == AttentionType::BF16 && (p.kv == AttentionKv::Same || p.kv == AttentionKv::Fp8);
  if (!tiles || p.drop_mask || kernels.block_rows == kBlockRows) {
    if (rows <= kBlockRows + kBlockRows / 3) return rows;
    return std::max<int64_t>(1, kBlockRows / group) * group;
  }
  const int64_t wanted = 3 * num_threads();
  int64_t block = kernels.block_rows;
  while (block > 32 && (rows + block - 1) / block * p.kv_heads * p.count < wanted) block /= 2;
  return block;
}

// Cuts of a sequence's keys [begin, end): equal parts of whole tiles, by the length alone, so that a row's bits depend
// neither on the rest of the call nor on the number of threads.
int64_t keys_of_part(int64_t keys) {
  const int64_t parts = (keys + kSplitKeys - 1) / kSplitKeys;
  return attention_pad((keys + parts - 1) / parts, kKeyTile);
}

// The part of a problem's keys that some rows may see, and into how many tasks it is cut.
struct Part {
  int64_t begin = 0, end = 0, step = 0, cuts = 0;
  Part() = default;
  Part(const AttentionSequence& s, int64_t group, int64_t row0, int64_t rows, bool cut) {
    visible_keys(s, group, row0, rows, &begin, &end);
    begin = begin / kKeyTile * kKeyTile;
    if (end <= begin) return;
    step = cut ? keys_of_part(end - begin) : end - begin;
    cuts = (end - begin + step - 1) / step;
  }
};

void make_plan(const AttentionProblem& p, const AttentionProblem* recent, const AttentionKernels& kernels, Plan* plan) {
  const int64_t group = p.heads / p.kv_heads, row_size = attention_partial_row(p);
  const int64_t few_heads = heads_of_task(p, group);
  plan->tasks.clear(), plan->places.clear(), plan->merges.clear();
  plan->bytes = 0;
  size_t floats = 0;
  for (int64_t b = 0; b < p.count; ++b) {
    const AttentionSequence& s = p.sequences[b];
    const int64_t rows = s.q_len * group;
    if (rows == 0) continue;
    const bool few = rows <= kDotRows;
    const int64_t block = few ? rows : rows_of_block(p, kernels, group, rows), task_heads = few ? few_heads : 1;
    const bool cut = rows <= kBlockRows;  // the same for every block of the sequence, however large those are
    for (int64_t row0 = 0; row0 < rows; row0 += block) {
      AttentionTask t;
      t.sequence = b, t.row0 = row0, t.rows = std::min(block, rows - row0);
      const AttentionProblem* of[2] = {&p, recent};
      Part parts[2];
      for (int i = 0; i < 2 && of[i]; ++i) {
        parts[i] = Part(of[i]->sequences[b], group, cut ? 0 : row0, cut ? rows : t.rows, cut);
        plan->bytes += (parts[i].end - parts[i].begin) * p.kv_heads * key_bytes(*of[i]) * ((t.rows + 15) / 16);
      }
      if (parts[0].cuts + parts[1].cuts == 0) parts[0].cuts = 1;  // a task that finishes rows without keys
      t.recent0 = t.recent1 = 0;
      if (!cut && parts[0].cuts && parts[1].cuts) {  // one part of each: merged while they are in the thread's cache
        t.recent0 = parts[1].begin, t.recent1 = parts[1].end;
        parts[1].cuts = 0;
      }
      const int64_t cuts = parts[0].cuts + parts[1].cuts, head_size = t.rows * row_size;
      for (int64_t h = 0; h < p.kv_heads; h += task_heads) {
        t.kv_head = h, t.kv_heads = std::min(task_heads, p.kv_heads - h);
        for (int64_t c = 0; c < cuts; ++c) {
          t.recent = c >= parts[0].cuts;
          const Part& part = parts[t.recent];
          t.key0 = part.begin + (t.recent ? c - parts[0].cuts : c) * part.step;
          t.key1 = std::min(part.end, t.key0 + part.step);
          plan->tasks.push_back(t);
          plan->places.push_back(cuts > 1 ? floats + static_cast<size_t>((c * p.kv_heads + h) * head_size) + 1 : 0);
        }
      }
      t.recent = false;
      if (cuts > 1) {
        t.kv_heads = 1;
        for (t.kv_head = 0; t.kv_head < p.kv_heads; ++t.kv_head)
          plan->merges.push_back({t, cuts, floats + static_cast<size_t>(t.kv_head * head_size)});
        floats += static_cast<size_t>(cuts * p.kv_heads * head_size);
      }
    }
  }
  if (plan->partial.size() < floats || plan->partial.size() > kKeptFloats)
    std::vector<float>(floats).swap(plan->partial);
  for (size_t i = 0; i < plan->tasks.size(); ++i)
    if (plan->places[i]) plan->tasks[i].partial = plan->partial.data() + plan->places[i] - 1;
}

// The keys of both problems for some rows of one head.
void run_both(const AttentionKernels& kernels, const AttentionProblem& p, const AttentionProblem& recent,
              const AttentionTask& task) {
  thread_local std::vector<float> partial;
  const int64_t floats = task.rows * attention_partial_row(p);
  if (static_cast<int64_t>(partial.size()) < 2 * floats) partial.resize(static_cast<size_t>(2 * floats));
  AttentionTask t = task;
  t.partial = partial.data();
  kernels.run(p, t, nullptr);
  t.recent = true, t.key0 = task.recent0, t.key1 = task.recent1, t.partial += floats;
  kernels.run(recent, t, nullptr);
  t = task, t.partial = partial.data();
  kernels.merge(p, t, 2, floats);
}

}  // namespace

void attention_forward(const AttentionProblem& p, const AttentionProblem* recent) {
  thread_local Plan plan;
  const AttentionKernels& kernels = attention_kernels();
  make_plan(p, recent, kernels, &plan);
  const int64_t tasks = static_cast<int64_t>(plan.tasks.size()), merges = static_cast<int64_t>(plan.merges.size());
  const int64_t step = p.kv_heads * attention_partial_row(p);
  // Causal blocks grow with the row: the long ones first, so that the threads end together. Sequences of one task each:
  // in their order, in which threads have made the queries, keys and values of a decode step.
  const int64_t way = tasks == p.count ? 1 : -1;
  const AttentionTask* start = way > 0 ? plan.tasks.data() : plan.tasks.data() + tasks - 1;
  const auto run = [&p, recent, &kernels, start, way](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const AttentionTask &task = start[way * i], *next = i + 1 < end ? start + way * (i + 1) : nullptr;
      if (task.recent1 > task.recent0)
        run_both(kernels, p, *recent, task);
      else
        kernels.run(task.recent ? *recent : p, task, next && next->recent == task.recent ? next : nullptr);
    }
  };
  Merge* first = plan.merges.data();
  float* partial = plan.partial.data();
  const auto merge = [&p, &kernels, first, partial, step](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      first[i].task.partial = partial + first[i].place;
      kernels.merge(p, first[i].task, first[i].splits, step * first[i].task.rows);
    }
  };
  if (plan.bytes < kWorthSharing) {
    run(0, tasks);
    merge(0, merges);
    return;
  }
  // Ranges of several tasks, since what a thread does next is fetched while it does another; as many for each thread.
  const int64_t each = plan.bytes / tasks + 1, share = (tasks + num_threads() - 1) / num_threads();
  const int64_t ranges = std::min<int64_t>({4, share, share * each / kWorthFetching + 1});
  parallel_for(tasks, (share + ranges - 1) / ranges, run);
  parallel_for(merges, 8, merge);
}

}  // namespace aloft
