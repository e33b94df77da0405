// aloft::compress_kv and aloft::fp8_attention: a KV cache of 8-bit floats with one power of two a token
// (kernels/kv_fp8.h), and attention that reads it, with the newest `window` tokens from a cache in the query's dtype.
// CANN for 910B has neither: composites of documented operators take their place (src/aloft/ops/fp8_cache.py).
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <vector>

#include "acl/launch.h"
#include "kernels/attention.h"
#include "kernels/kv_fp8.h"
#include "opapi/work.h"
#include "torch/fused.h"

namespace aloft {
namespace {

constexpr char kCompress[] = "aloft::compress_kv", kAttend[] = "aloft::fp8_attention";
using Optional = std::optional<at::Tensor>;

bool given(const Optional& t) { return t && t->defined(); }
bool is_meta(const at::Tensor& t) { return t.device().type() == c10::DeviceType::Meta; }

AttentionType type_of(const char* name, const char* what, const at::Tensor& t) {
  const at::ScalarType type = t.scalar_type();
  TORCH_CHECK_VALUE(type == at::kFloat || type == at::kHalf || type == at::kBFloat16, name, ": ", what,
                    " must be float32, float16 or bfloat16, got ", type);
  return type == at::kFloat ? AttentionType::F32 : (type == at::kHalf ? AttentionType::F16 : AttentionType::BF16);
}

void check_codes(const char* name, const char* what, const at::Tensor& codes, int64_t heads) {
  TORCH_CHECK_VALUE(codes.dim() == 4 && codes.size(2) == heads && codes.size(1) > 0 && codes.size(3) > 0 &&
                        codes.size(3) <= 512 && codes.stride(3) == 1,
                    name, ": ", what, " has the shape ", codes.sizes(), "; it must be [blocks, block_size, ", heads,
                    " heads, 1 to 512] with contiguous rows");
  TORCH_CHECK_VALUE(codes.scalar_type() == at::kByte, name, ": ", what,
                    " must be uint8, the bytes of float8_e4m3fn, got ", codes.scalar_type());
}

void check_exponents(const char* name, const char* what, const at::Tensor& exponents, const at::Tensor& codes) {
  TORCH_CHECK_VALUE(exponents.dim() == 2 && exponents.size(0) == codes.size(0) && exponents.size(1) == codes.size(1) &&
                        exponents.scalar_type() == at::kChar && (exponents.size(1) == 1 || exponents.stride(1) == 1),
                    name, ": ", what, " must be int8 [", codes.size(0), ", ", codes.size(1),
                    "] with contiguous rows, got ", exponents.scalar_type(), " ", exponents.sizes());
}

bool is_index(const at::Tensor& t, int64_t n) {
  return t.dim() == 1 && t.size(0) == n && (t.scalar_type() == at::kInt || t.scalar_type() == at::kLong) &&
         t.is_contiguous();
}

// ---- compress_kv ---------------------------------------------------------------------------------------------------

struct Half {  // keys or values
  Fp8Write write;
  int64_t rows, slots;
};

Half half_of(const char* what, const at::Tensor& x, const at::Tensor& codes, const at::Tensor& exponents,
             const at::Tensor& slots, const Optional& source) {
  TORCH_CHECK_VALUE(x.dim() == 3 && (x.size(2) <= 1 || x.stride(2) == 1), kCompress, ": ", what,
                    " must be [tokens, heads, head_dim] with contiguous rows, got ", x.sizes());
  const bool keys = what[0] == 'k';
  check_codes(kCompress, keys ? "key_codes" : "value_codes", codes, x.size(1));
  TORCH_CHECK_VALUE(codes.size(3) == x.size(2), kCompress, ": ", what, " has head_dim ", x.size(2), ", its codes ",
                    codes.size(3));
  check_exponents(kCompress, keys ? "key_exponents" : "value_exponents", exponents, codes);
  Half made;
  Fp8Write& w = made.write;
  w.type = type_of(kCompress, what, x);
  w.tokens = slots.dim() == 1 ? slots.size(0) : -1;
  TORCH_CHECK_VALUE(is_index(slots, w.tokens), kCompress, ": slot_mapping must be contiguous int32 or int64 [tokens], ",
                    "got ", slots.scalar_type(), " ", slots.sizes());
  if (given(source)) {
    TORCH_CHECK_VALUE(is_index(*source, w.tokens), kCompress, ": source must be contiguous int32 or int64 [", w.tokens,
                      "], got ", source->scalar_type(), " ", source->sizes());
  } else {
    TORCH_CHECK_VALUE(x.size(0) == w.tokens, kCompress, ": ", what, " has ", x.size(0), " tokens, slot_mapping ",
                      w.tokens);
  }
  w.heads = x.size(1), w.d = x.size(2);
  w.x_token = x.stride(0), w.x_head = x.stride(1);
  w.code_block = codes.stride(0), w.code_token = codes.stride(1), w.code_head = codes.stride(2);
  w.exponent_block = exponents.stride(0), w.block_size = codes.size(1);
  made.rows = x.size(0), made.slots = codes.size(0) * codes.size(1);
  if (is_meta(x)) return made;
  w.x = x.const_data_ptr(), w.codes = codes.mutable_data_ptr<uint8_t>();
  w.exponents = exponents.mutable_data_ptr<int8_t>();
  w.slots = slots.const_data_ptr(), w.wide_slots = slots.scalar_type() == at::kLong;
  if (given(source)) w.source = source->const_data_ptr(), w.wide_source = source->scalar_type() == at::kLong;
  return made;
}

int64_t at_index(const void* of, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(of)[i] : static_cast<const int32_t*>(of)[i];
}

aclError compress_now(const Half& half) {
  const Fp8Write& w = half.write;
  for (int64_t t = 0; t < w.tokens; ++t) {
    const int64_t slot = at_index(w.slots, w.wide_slots, t);
    if (slot < 0) continue;
    const int64_t row = w.source ? at_index(w.source, w.wide_source, t) : t;
    if (slot >= half.slots || row < 0 || row >= half.rows) {
      aloftSetError("%s: token %lld goes from row %lld of %lld to slot %lld (slot_mapping) of %lld", kCompress,
                    static_cast<long long>(t), static_cast<long long>(row), static_cast<long long>(half.rows),
                    static_cast<long long>(slot), static_cast<long long>(half.slots));
      return kRtInvalidParam;
    }
  }
  kv_fp8_write(w);
  return kOk;
}

void compress(const at::Tensor& key, const at::Tensor& value, at::Tensor& key_codes, at::Tensor& value_codes,
              at::Tensor& key_exponents, at::Tensor& value_exponents, const at::Tensor& slot_mapping,
              const Optional& source) {
  const Half k = half_of("key", key, key_codes, key_exponents, slot_mapping, source);
  const Half v = half_of("value", value, value_codes, value_exponents, slot_mapping, source);
  if (is_meta(key) || !k.write.tokens) return;
  const auto work = [k, v]() -> aclError {
    const aclError keys = compress_now(k);
    return keys != kOk ? keys : compress_now(v);
  };
  fused::run(kCompress, key, work, [&] {
    return torch_route::touches({key, value, key_codes, value_codes, key_exponents, value_exponents, slot_mapping,
                                 torch_route::or_none(source)},
                                {});
  });
}

// ---- fp8_attention -------------------------------------------------------------------------------------------------

struct Arguments {
  const at::Tensor &query, &key_codes, &value_codes, &key_exponents, &value_exponents, &block_table;
  at::IntArrayRef cu_query_lens, kv_lens;
  int64_t num_kv_heads;
  double scale;
  int64_t window;
  const Optional &recent_key, &recent_value, &recent_table;
  int64_t window_left;
  double soft_cap;
  const Optional &sinks, &device_lens;

  void check() const {
    TORCH_CHECK_VALUE(query.dim() == 3 && (query.size(2) <= 1 || query.stride(2) == 1), kAttend,
                      ": query must be [tokens, heads, head_dim] with contiguous rows, got ", query.sizes());
    type_of(kAttend, "query", query);
    TORCH_CHECK_VALUE(num_kv_heads > 0 && query.size(1) % num_kv_heads == 0, kAttend, ": query has ", query.size(1),
                      " heads, which num_kv_heads ", num_kv_heads, " does not divide");
    check_codes(kAttend, "key_codes", key_codes, num_kv_heads);
    check_codes(kAttend, "value_codes", value_codes, num_kv_heads);
    TORCH_CHECK_VALUE(key_codes.size(3) == query.size(2), kAttend, ": query has head_dim ", query.size(2),
                      ", key_codes ", key_codes.size(3));
    TORCH_CHECK_VALUE(value_codes.size(0) == key_codes.size(0) && value_codes.size(1) == key_codes.size(1), kAttend,
                      ": value_codes ", value_codes.sizes(), " and key_codes ", key_codes.sizes(),
                      " differ in blocks or block size");
    check_exponents(kAttend, "key_exponents", key_exponents, key_codes);
    check_exponents(kAttend, "value_exponents", value_exponents, value_codes);
    const int64_t count = static_cast<int64_t>(cu_query_lens.size());
    check_table("block_table", block_table, count);
    TORCH_CHECK_VALUE(window >= 0, kAttend, ": window is ", window,
                      "; 0 is none, else the tokens read from recent_key");
    TORCH_CHECK_VALUE(
        given(recent_key) == (window > 0) && given(recent_value) == (window > 0) && given(recent_table) == (window > 0),
        kAttend, ": recent_key, recent_value and recent_table go with a window, which is ", window);
    if (window) {
      check_recent("recent_key", *recent_key, key_codes.size(3));
      check_recent("recent_value", *recent_value, value_codes.size(3));
      TORCH_CHECK_VALUE(recent_value->size(0) == recent_key->size(0) && recent_value->size(1) == recent_key->size(1),
                        kAttend, ": recent_value ", recent_value->sizes(), " and recent_key ", recent_key->sizes(),
                        " differ in blocks or block size");
      check_table("recent_table", *recent_table, count);
    }
    TORCH_CHECK_VALUE(window_left >= -1, kAttend, ": window_left is ", window_left, "; -1 is no window, else >= 0");
    TORCH_CHECK_VALUE(soft_cap >= 0, kAttend, ": soft_cap is ", soft_cap, "; 0 is off, else positive");
    if (given(sinks)) {
      TORCH_CHECK_VALUE(sinks->dim() == 1 && sinks->size(0) == query.size(1) && sinks->scalar_type() == at::kFloat &&
                            sinks->is_contiguous(),
                        kAttend, ": sinks must be float32 [", query.size(1), "], got ", sinks->scalar_type(), " ",
                        sinks->sizes());
    }
    int64_t before = 0;
    for (const int64_t end : cu_query_lens) {
      TORCH_CHECK_VALUE(end >= before, kAttend, ": cu_query_lens decreases: ", end, " after ", before);
      before = end;
    }
    TORCH_CHECK_VALUE(before == query.size(0), kAttend, ": the last of cu_query_lens is ", before, ", query has ",
                      query.size(0), " tokens (cu_query_lens is cumulative without a leading 0)");
    if (given(device_lens)) {
      TORCH_CHECK_VALUE(device_lens->dim() == 1 && device_lens->size(0) == count && device_lens->is_contiguous() &&
                            device_lens->scalar_type() == at::kInt,
                        kAttend, ": device_lens must be contiguous int32 [", count, "], got ",
                        device_lens->scalar_type(), " ", device_lens->sizes());
      return;
    }
    TORCH_CHECK_VALUE(static_cast<int64_t>(kv_lens.size()) == count, kAttend, ": kv_lens has ", kv_lens.size(),
                      " entries, cu_query_lens ", count, ": one a sequence each");
    for (const int64_t length : kv_lens) {
      TORCH_CHECK_VALUE(length >= 0 && length <= most_keys(), kAttend, ": a length in kv_lens is ", length,
                        ", the tables hold ", most_keys(), " tokens a sequence");
    }
  }

  int64_t most_keys() const {
    const int64_t own = block_table.size(1) * key_codes.size(1);
    return window ? std::min(own, recent_table->size(1) * recent_key->size(1)) : own;
  }

 private:
  void check_table(const char* what, const at::Tensor& table, int64_t count) const {
    TORCH_CHECK_VALUE(table.dim() == 2 && table.scalar_type() == at::kInt && table.size(0) == count &&
                          (table.size(1) <= 1 || table.stride(1) == 1),
                      kAttend, ": ", what, " must be int32 [", count, ", blocks] with contiguous rows, got ",
                      table.scalar_type(), " ", table.sizes());
  }
  void check_recent(const char* what, const at::Tensor& cache, int64_t d) const {
    TORCH_CHECK_VALUE(cache.dim() == 4 && cache.size(2) == num_kv_heads && cache.size(3) == d && cache.size(1) > 0 &&
                          (d == 1 || cache.stride(3) == 1) && cache.scalar_type() == query.scalar_type(),
                      kAttend, ": ", what, " must be ", query.scalar_type(), " [blocks, block_size, ", num_kv_heads,
                      ", ", d, "] with contiguous rows, got ", cache.scalar_type(), " ", cache.sizes());
  }
};

// The work of one call, everything but the lengths prepared.
class Attend {
 public:
  Attend(const Arguments& a, const at::Tensor& out)
      : window_(a.window),
        window_left_(a.window_left),
        most_(a.most_keys()),
        device_(given(a.device_lens) ? a.device_lens->const_data_ptr<int32_t>() : nullptr),
        host_(a.kv_lens.begin(), a.kv_lens.end()) {
    AttentionProblem p;
    p.type = type_of(kAttend, "query", a.query);
    p.heads = a.query.size(1), p.kv_heads = a.num_kv_heads, p.d = a.query.size(2), p.d_v = a.value_codes.size(3);
    p.scale = static_cast<float>(a.scale), p.soft_cap = static_cast<float>(a.soft_cap);
    p.q_token = a.query.stride(0), p.q_head = a.query.stride(1);
    p.out_token = out.stride(0), p.out_head = out.stride(1);
    p.sinks = given(a.sinks) ? a.sinks->const_data_ptr<float>() : nullptr;
    p.count = static_cast<int64_t>(a.cu_query_lens.size());
    history_.bind(p, a.key_codes, a.value_codes, a.block_table, "block_table");
    AttentionProblem& h = history_.problem;
    h.kv = AttentionKv::Fp8;
    h.k_exponents = a.key_exponents.const_data_ptr<int8_t>();
    h.v_exponents = a.value_exponents.const_data_ptr<int8_t>();
    // one step for both: they are parts of one cache
    TORCH_CHECK_VALUE(a.key_exponents.stride(0) == a.value_exponents.stride(0), kAttend,
                      ": key_exponents and value_exponents have different strides");
    h.exponent_block = a.key_exponents.stride(0);
    if (window_) recent_.bind(p, *a.recent_key, *a.recent_value, *a.recent_table, "recent_table");
    int64_t first = 0;
    for (size_t b = 0; b < a.cu_query_lens.size(); ++b) {
      const int64_t end = a.cu_query_lens[b];
      for (Cache* cache : {&history_, &recent_}) {
        if (cache == &recent_ && !window_) continue;
        AttentionSequence& s = cache->sequences[b];
        s.q_len = end - first;
        s.q = row(a.query, first), s.out = row(out, first);
      }
      first = end;
    }
  }

  aclError operator()() {
    for (size_t b = 0; b < history_.sequences.size(); ++b) {
      const int64_t length = device_ ? device_[b] : host_[b], q_len = history_.sequences[b].q_len;
      if (length < 0 || length > most_) {
        aloftSetError("%s: the length of sequence %zu (device_lens) is %lld; its block tables hold %lld tokens",
                      kAttend, b, static_cast<long long>(length), static_cast<long long>(most_));
        return kRtInvalidParam;
      }
      const int64_t offset = length - q_len;
      const int64_t low = window_left_ >= 0 ? offset - window_left_ : -kAttentionFar;
      if (!history_.see(b, length, low, offset - window_)) return kRtInvalidParam;
      if (window_ && !recent_.see(b, length, std::max(low, offset - window_ + 1), offset)) return kRtInvalidParam;
    }
    history_.problem.sequences = history_.sequences.data();
    recent_.problem.sequences = recent_.sequences.data();
    note_attention(history_.problem);
    if (window_) note_attention(recent_.problem);
    attention_forward(history_.problem, window_ ? &recent_.problem : nullptr);
    return kOk;
  }

 private:
  struct Cache {
    AttentionProblem problem;
    std::vector<AttentionSequence> sequences;
    const char* table = "";
    int64_t blocks = 0;

    void bind(const AttentionProblem& common, const at::Tensor& key, const at::Tensor& value, const at::Tensor& of,
              const char* name) {
      problem = common;
      table = name, blocks = key.size(0);
      problem.block_size = key.size(1);
      problem.k_block = key.stride(0), problem.k_token = key.stride(1), problem.k_head = key.stride(2);
      problem.v_block = value.stride(0), problem.v_token = value.stride(1), problem.v_head = value.stride(2);
      sequences.resize(static_cast<size_t>(problem.count));
      for (int64_t b = 0; b < problem.count; ++b) {
        AttentionSequence& s = sequences[static_cast<size_t>(b)];
        s.k = key.const_data_ptr(), s.v = value.const_data_ptr();
        s.blocks = of.const_data_ptr<int32_t>() + b * of.stride(0);
      }
    }
    // Row i of sequence b sees the keys i + low to i + high. False: the table names blocks that do not exist.
    bool see(size_t b, int64_t length, int64_t low, int64_t high) {
      AttentionSequence& s = sequences[b];
      s.kv_len = length, s.low = low, s.high = high;
      constexpr int64_t kTile = 64;  // kernels read whole tiles
      const int64_t first = std::max<int64_t>(0, low) / kTile * kTile / problem.block_size;
      const int64_t keys = std::min(length, s.q_len + high);
      const int64_t end = keys > 0 ? (keys + problem.block_size - 1) / problem.block_size : 0;
      for (int64_t j = first; j < end; ++j)
        if (s.blocks[j] < 0 || s.blocks[j] >= blocks) {
          aloftSetError("%s: %s[%zu][%lld] is %d, the cache has %lld blocks", kAttend, table, b,
                        static_cast<long long>(j), s.blocks[j], static_cast<long long>(blocks));
          return false;
        }
      return true;
    }
  };

  static char* row(const at::Tensor& t, int64_t i) {
    return static_cast<char*>(t.data_ptr()) + i * t.stride(0) * static_cast<int64_t>(t.element_size());
  }

  Cache history_, recent_;
  int64_t window_, window_left_, most_;
  const int32_t* device_;
  std::vector<int64_t> host_;
};

void attend_into(const Arguments& a, at::Tensor& out) {
  if (is_meta(a.query) || !out.numel()) return;
  using torch_route::or_none;
  fused::run(kAttend, out, Attend(a, out), [&] {
    return torch_route::touches(
        {a.query, a.key_codes, a.value_codes, a.key_exponents, a.value_exponents, a.block_table, or_none(a.recent_key),
         or_none(a.recent_value), or_none(a.recent_table), or_none(a.sinks), or_none(a.device_lens)},
        {out});
  });
}

at::Tensor attend(const at::Tensor& query, const at::Tensor& key_codes, const at::Tensor& value_codes,
                  const at::Tensor& key_exponents, const at::Tensor& value_exponents, const at::Tensor& block_table,
                  at::IntArrayRef cu_query_lens, at::IntArrayRef kv_lens, int64_t num_kv_heads, double scale,
                  int64_t window, const Optional& recent_key, const Optional& recent_value,
                  const Optional& recent_table, int64_t window_left, double soft_cap, const Optional& sinks,
                  const Optional& device_lens) {
  const Arguments a{query,         key_codes,    value_codes,  key_exponents, value_exponents, block_table,
                    cu_query_lens, kv_lens,      num_kv_heads, scale,         window,          recent_key,
                    recent_value,  recent_table, window_left,  soft_cap,      sinks,           device_lens};
  a.check();
  at::Tensor out = at::empty({query.size(0), query.size(1), value_codes.size(3)}, query.options());
  attend_into(a, out);
  return out;
}

at::Tensor& attend_out(const at::Tensor& query, const at::Tensor& key_codes, const at::Tensor& value_codes,
                       const at::Tensor& key_exponents, const at::Tensor& value_exponents,
                       const at::Tensor& block_table, at::IntArrayRef cu_query_lens, at::IntArrayRef kv_lens,
                       int64_t num_kv_heads, double scale, int64_t window, const Optional& recent_key,
                       const Optional& recent_value, const Optional& recent_table, int64_t window_left, double soft_cap,
                       const Optional& sinks, const Optional& device_lens, at::Tensor& out) {
  const Arguments a{query,         key_codes,    value_codes,  key_exponents, value_exponents, block_table,
                    cu_query_lens, kv_lens,      num_kv_heads, scale,         window,          recent_key,
                    recent_value,  recent_table, window_left,  soft_cap,      sinks,           device_lens};
  a.check();
  TORCH_CHECK_VALUE(out.dim() == 3 && out.size(0) == query.size(0) && out.size(1) == query.size(1) &&
                        out.size(2) == value_codes.size(3) && out.scalar_type() == query.scalar_type() &&
                        (out.size(2) == 1 || out.stride(2) == 1),
                    kAttend, ": out must be ", query.scalar_type(), " [", query.size(0), ", ", query.size(1), ", ",
                    value_codes.size(3), "] with contiguous rows, got ", out.scalar_type(), " ", out.sizes());
  attend_into(a, out);
  return out;
}

}  // namespace
}  // namespace aloft

TORCH_LIBRARY_FRAGMENT(aloft, m) {
  m.def(
      "compress_kv(Tensor key, Tensor value, Tensor(a!) key_codes, Tensor(b!) value_codes, Tensor(c!) key_exponents, "
      "Tensor(d!) value_exponents, Tensor slot_mapping, Tensor? source=None) -> ()");
  m.def(
      "fp8_attention(Tensor query, Tensor key_codes, Tensor value_codes, Tensor key_exponents, Tensor value_exponents, "
      "Tensor block_table, int[] cu_query_lens, int[] kv_lens, int num_kv_heads, float scale, int window=0, Tensor? "
      "recent_key=None, Tensor? recent_value=None, Tensor? recent_table=None, int window_left=-1, float soft_cap=0., "
      "Tensor? sinks=None, Tensor? device_lens=None) -> Tensor");
  m.def(
      "fp8_attention.out(Tensor query, Tensor key_codes, Tensor value_codes, Tensor key_exponents, Tensor "
      "value_exponents, Tensor block_table, int[] cu_query_lens, int[] kv_lens, int num_kv_heads, float scale, int "
      "window=0, Tensor? recent_key=None, Tensor? recent_value=None, Tensor? recent_table=None, int window_left=-1, "
      "float soft_cap=0., Tensor? sinks=None, Tensor? device_lens=None, *, Tensor(a!) out) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(aloft, PrivateUse1, m) {
  m.impl("compress_kv", TORCH_FN(aloft::compress));
  m.impl("fp8_attention", TORCH_FN(aloft::attend));
  m.impl("fp8_attention.out", TORCH_FN(aloft::attend_out));
}
TORCH_LIBRARY_IMPL(aloft, Meta, m) {
  m.impl("compress_kv", TORCH_FN(aloft::compress));
  m.impl("fp8_attention", TORCH_FN(aloft::attend));
  m.impl("fp8_attention.out", TORCH_FN(aloft::attend_out));
}
