// Paged KV cache operators of the aclnn door. Everything here copies bits.
#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "kernels/convert.h"
#include "kernels/parallel.h"
#include "kernels/strided.h"
#include "opapi/op.h"

namespace aloft {
namespace {

constexpr int64_t kGrainBytes = 1 << 16;

void check_cache_dtype(const char* name, const Tensor& t) {
  require(dtype_size(t.dtype) > 0, "%s cannot be %s", name, dtype_name(t.dtype));
  limit(t.dtype == DType::F16 || t.dtype == DType::BF16 || t.dtype == DType::I8,
        "%s is %s, it must be float16, bfloat16 or int8", name, dtype_name(t.dtype));
}

// Where the rows of a cache lie: token `slot` of `heads * size` elements.
struct Cache {
  Tensor t;
  int64_t blocks = 0, block_size = 0;
  bool nz = false;
};

bool is_nz_mode(const char* mode) {
  if (!mode || !*mode || !std::strcmp(mode, "Norm")) return false;
  require(!std::strcmp(mode, "PA_NZ"), "cache_mode is \"%s\"; valid: Norm, PA_NZ", mode);
  return true;
}

// tokens: [T, heads, size] (or [T, size] for a cache of rows).
Cache check_cache(const char* cache_name, const Tensor& cache, const char* name, const Tensor& tokens, bool nz) {
  require(cache.dtype == tokens.dtype, "%s must have the dtype of %s (%s), got %s", cache_name, name,
          dtype_name(tokens.dtype), dtype_name(cache.dtype));
  Cache c;
  c.t = cache;
  c.nz = nz;
  int64_t width = 1;
  for (int i = 1; i < tokens.ndim; ++i) width *= tokens.size(i);
  if (nz) {
    const int64_t last = 32 / static_cast<int64_t>(dtype_size(cache.dtype));
    ALOFT_REQUIRE(cache.ndim == 4 && cache.size(3) == last && cache.size(1) * last == width,
                  "%s must be [blocks, %lld, block_size, %lld] in the mode PA_NZ, its shape is %s", cache_name,
                  static_cast<long long>(width / last), static_cast<long long>(last), cache.shape_text().c_str());
    c.block_size = cache.size(2);
  } else {
    bool fits = cache.ndim == tokens.ndim + 1;
    for (int i = 1; fits && i < tokens.ndim; ++i) fits = cache.size(i + 1) == tokens.size(i);
    ALOFT_REQUIRE(
        fits, "%s must be [blocks, block_size, ...] followed by the dimensions of a token of %s %s, its shape is %s",
        cache_name, name, tokens.shape_text().c_str(), cache.shape_text().c_str());
    c.block_size = cache.size(1);
  }
  c.blocks = cache.size(0);
  return c;
}

// Dimensions of one token in the cache and in a [T, ...] array, for strided copies.
struct TokenCopy {
  int ndim = 0;
  int64_t sizes[kMaxDims], cache_strides[kMaxDims], token_strides[kMaxDims];
  bool flat = false;  // one dense run on both sides
  size_t item = 0;

  TokenCopy(const Cache& c, const Tensor& tokens) : item(dtype_size(tokens.dtype)) {
    if (c.nz) {
      // element w of a token: cache [block, w / last, offset, w % last]
      ndim = 2;
      sizes[0] = c.t.size(1), sizes[1] = c.t.size(3);
      cache_strides[0] = c.t.stride(1), cache_strides[1] = c.t.stride(3);
      token_strides[0] = c.t.size(3), token_strides[1] = 1;  // the token itself is made dense by the caller
    } else {
      ndim = tokens.ndim - 1;
      int64_t run = 1;
      flat = true;
      for (int i = ndim - 1; i >= 0; --i) {
        sizes[i] = tokens.size(i + 1);
        cache_strides[i] = c.t.stride(i + 2);
        token_strides[i] = tokens.stride(i + 1);
        if (sizes[i] != 1 && (cache_strides[i] != run || token_strides[i] != run)) flat = false;
        run *= sizes[i];
      }
    }
    bytes = item;
    for (int i = 0; i < ndim; ++i) bytes *= static_cast<size_t>(sizes[i]);
  }

  void to_cache(const char* token, char* place) const {
    if (flat) {
      std::memcpy(place, token, bytes);
    } else {
      strided_copy(token, token_strides, place, cache_strides, sizes, ndim, item);
    }
  }
  void from_cache(const char* place, char* token) const {
    if (flat) {
      std::memcpy(token, place, bytes);
    } else {
      strided_copy(place, cache_strides, token, token_strides, sizes, ndim, item);
    }
  }
  size_t bytes = 0;
};

char* place_of(const Cache& c, int64_t slot, size_t item) {
  const int64_t block = slot / c.block_size, row = slot % c.block_size;
  const int64_t at = block * c.t.stride(0) + row * c.t.stride(c.nz ? 2 : 1);
  return c.t.ptr<char>() + at * static_cast<int64_t>(item);
}

std::vector<int64_t> read_ints(const Tensor& t) {
  Dense dense(t, Dense::Read);
  std::vector<int64_t> values(static_cast<size_t>(t.numel()));
  if (t.dtype == DType::I64) {
    if (!values.empty()) std::memcpy(values.data(), dense.data(), values.size() * 8);
  } else {
    convert(dense.data(), t.dtype, values.data(), DType::I64, t.numel());
  }
  return values;
}

void check_index_dtype(const char* name, const Tensor& t) {
  require(t.dtype == DType::I32 || t.dtype == DType::I64, "%s must be int32 or int64, got %s", name,
          dtype_name(t.dtype));
}

std::vector<int64_t> read_slots(const Tensor& slots, const Cache& c, const char* cache_name, bool strict) {
  std::vector<int64_t> values = read_ints(slots);
  const int64_t count = c.blocks * c.block_size;
  std::unordered_set<int64_t> seen;
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t slot = values[i];
    require(slot < count, "slot_mapping[%zu] is %lld, %s has %lld slots (%lld blocks of %lld)", i,
            static_cast<long long>(slot), cache_name, static_cast<long long>(count), static_cast<long long>(c.blocks),
            static_cast<long long>(c.block_size));
    if (strict && slot >= 0) {
      require(seen.insert(slot).second, "slot_mapping[%zu] repeats the slot %lld", i, static_cast<long long>(slot));
    }
  }
  return values;
}

void scatter(const Tensor& tokens, const Cache& c, const std::vector<int64_t>& slots) {
  Dense dense(c.nz ? tokens : Tensor(), Dense::Read);
  const Tensor from = c.nz ? dense.tensor() : tokens;
  const TokenCopy copy(c, from);
  const int64_t step = from.stride(0) * static_cast<int64_t>(copy.item);
  const char* base = from.ptr<char>();
  const int64_t grain = std::max<int64_t>(1, kGrainBytes / static_cast<int64_t>(std::max<size_t>(1, copy.bytes)));
  // A slot that is given twice (refused in strict mode) keeps one of the two tokens.
  parallel_for(static_cast<int64_t>(slots.size()), grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t slot = slots[static_cast<size_t>(t)];
      if (slot >= 0) copy.to_cache(base + t * step, place_of(c, slot, copy.item));
    }
  });
}

void check_tokens(const char* name, const Tensor& t, const Tensor& slots) {
  check_cache_dtype(name, t);
  require(t.ndim >= 2, "%s has %d dimensions, it must be [tokens, heads, size]", name, t.ndim);
  require(t.size(0) == slots.numel(), "slot_mapping holds %lld slots, %s has %lld tokens",
          static_cast<long long>(slots.numel()), name, static_cast<long long>(t.size(0)));
  limit(t.contiguous(), "%s is not contiguous: hardware would write wrong values", name);
}

void check_plain(const aclTensor* compress_lens, const aclTensor* compress_seq_offsets, const aclTensor* seq_lens) {
  require(!compress_lens, "compress_lens (the compressed cache) is not supported");
  require(!compress_seq_offsets, "compress_seq_offsets (the compressed cache) is not supported");
  require(!seq_lens, "seq_lens (the compressed cache) is not supported");
}

}  // namespace

ALOFT_ACLNN(ScatterPaKvCache,
            (const aclTensor* key, const aclTensor* key_cache, const aclTensor* slot_mapping, const aclTensor* value,
             const aclTensor* value_cache, const aclTensor* compress_lens, const aclTensor* compress_seq_offsets,
             const aclTensor* seq_lens, const char* cache_mode, const char* scatter_mode, const aclIntArray* strides,
             const aclIntArray* offsets),
            (key, key_cache, slot_mapping, value, value_cache, compress_lens, compress_seq_offsets, seq_lens,
             cache_mode, scatter_mode, strides, offsets)) {
  check_plain(compress_lens, compress_seq_offsets, seq_lens);
  require(!scatter_mode || !*scatter_mode || !std::strcmp(scatter_mode, "None"),
          "scatter_mode is \"%s\", only None is supported", scatter_mode);
  const bool nz = is_nz_mode(cache_mode);
  const Tensor K = in("key", key), V = in("value", value), Slots = in("slot_mapping", slot_mapping);
  check_index_dtype("slot_mapping", Slots);
  check_tokens("key", K, Slots);
  check_tokens("value", V, Slots);
  require(V.dtype == K.dtype, "value must have the dtype of key (%s), got %s", dtype_name(K.dtype),
          dtype_name(V.dtype));
  limit(Slots.contiguous(), "slot_mapping is not contiguous: hardware would write wrong values");
  const Cache KC = check_cache("key_cache", inout("key_cache", key_cache, Layout::Any), "key", K, nz);
  const Cache VC = check_cache("value_cache", inout("value_cache", value_cache, Layout::Any), "value", V, nz);
  require(KC.blocks == VC.blocks && KC.block_size == VC.block_size,
          "key_cache has %lld blocks of %lld slots, value_cache %lld of %lld", static_cast<long long>(KC.blocks),
          static_cast<long long>(KC.block_size), static_cast<long long>(VC.blocks),
          static_cast<long long>(VC.block_size));
  if (!Slots.numel()) return nullptr;
  const bool strict = contract() == Contract::Strict;
  return [=] {
    const std::vector<int64_t> slots = read_slots(Slots, KC, "key_cache", strict);
    scatter(K, KC, slots);
    scatter(V, VC, slots);
  };
}

ALOFT_ACLNN(ScatterPaCache,
            (const aclTensor* key, const aclTensor* key_cache, const aclTensor* slot_mapping,
             const aclTensor* compress_lens, const aclTensor* compress_seq_offsets, const aclTensor* seq_lens,
             const char* cache_mode),
            (key, key_cache, slot_mapping, compress_lens, compress_seq_offsets, seq_lens, cache_mode)) {
  check_plain(compress_lens, compress_seq_offsets, seq_lens);
  const bool nz = is_nz_mode(cache_mode);
  const Tensor K = in("key", key), Slots = in("slot_mapping", slot_mapping);
  check_index_dtype("slot_mapping", Slots);
  check_tokens("key", K, Slots);
  const Cache KC = check_cache("key_cache", inout("key_cache", key_cache, Layout::Any), "key", K, nz);
  if (!Slots.numel()) return nullptr;
  const bool strict = contract() == Contract::Strict;
  return [=] { scatter(K, KC, read_slots(Slots, KC, "key_cache", strict)); };
}

namespace {

// NZ outputs are [sum, heads * size]; the caller's array as it is otherwise.
void gather(const Cache& c, const Tensor& to, const std::vector<int64_t>& table, int64_t table_width,
            const std::vector<int64_t>& lens, const std::vector<int64_t>& offsets, const char* cache_name) {
  Dense dense(c.nz ? to : Tensor(), Dense::ReadWrite);
  const Tensor target = c.nz ? dense.tensor() : to;
  const TokenCopy copy(c, target);
  const int64_t step = target.stride(0) * static_cast<int64_t>(copy.item);
  char* token = target.ptr<char>();
  for (size_t b = 0; b < lens.size(); ++b) {
    const int64_t first = offsets.empty() ? 0 : offsets[b] / c.block_size;
    for (int64_t j = 0; j < lens[b]; ++j) {
      const int64_t column = first + j / c.block_size;
      require(column < table_width, "sequence %zu has %lld tokens, its row of block_tables holds %lld blocks", b,
              static_cast<long long>(lens[b]), static_cast<long long>(table_width));
      const int64_t block = table[b * static_cast<size_t>(table_width) + static_cast<size_t>(column)];
      if (block < 0) continue;  // left out without a gap
      require(block < c.blocks, "block_tables holds block %lld, %s has %lld", static_cast<long long>(block), cache_name,
              static_cast<long long>(c.blocks));
      copy.from_cache(place_of(c, block * c.block_size + j % c.block_size, copy.item), token);
      token += step;
    }
  }
  dense.commit();
}

}  // namespace

ALOFT_ACLNN(GatherPaKvCache,
            (const aclTensor* key_cache, const aclTensor* value_cache, const aclTensor* block_tables,
             const aclTensor* seq_lens, const aclTensor* key, const aclTensor* value, const aclTensor* seq_offset,
             const char* cache_mode, bool is_cumsum),
            (key_cache, value_cache, block_tables, seq_lens, key, value, seq_offset, cache_mode, is_cumsum)) {
  const bool nz = is_nz_mode(cache_mode);
  const Tensor K = inout("key", key), V = inout("value", value), Table = in("block_tables", block_tables);
  const Tensor Lens = in("seq_lens", seq_lens), Offsets = optional("seq_offset", seq_offset);
  check_cache_dtype("key", K);
  require(K.ndim >= 2 && V.ndim >= 2, "key and value must be [tokens, heads, size]");
  const Cache KC = check_cache("key_cache", in("key_cache", key_cache, Layout::Any), "key", K, nz);
  const Cache VC = check_cache("value_cache", in("value_cache", value_cache, Layout::Any), "value", V, nz);
  check_index_dtype("block_tables", Table);
  check_index_dtype("seq_lens", Lens);
  limit(Table.dtype == DType::I32 && Lens.dtype == DType::I32, "block_tables and seq_lens must be int32");
  ALOFT_REQUIRE(Table.ndim == 2, "block_tables must be [sequences, blocks], its shape is %s",
                Table.shape_text().c_str());
  ALOFT_REQUIRE(Lens.ndim == 1 && Lens.size(0) == Table.size(0) + (is_cumsum ? 1 : 0),
                "seq_lens must hold %lld values for block_tables %s, its shape is %s",
                static_cast<long long>(Table.size(0) + (is_cumsum ? 1 : 0)), Table.shape_text().c_str(),
                Lens.shape_text().c_str());
  if (Offsets) {
    check_index_dtype("seq_offset", Offsets);
    ALOFT_REQUIRE(Offsets.numel() == Table.size(0), "seq_offset must hold one value for each sequence, its shape is %s",
                  Offsets.shape_text().c_str());
  }
  if (!Table.size(0)) return nullptr;
  return [=] {
    std::vector<int64_t> lens = read_ints(Lens);
    if (is_cumsum) {
      require(lens[0] == 0, "seq_lens must begin with 0 when is_seq_lens_cumsum is set, it begins with %lld",
              static_cast<long long>(lens[0]));
      for (size_t i = 0; i + 1 < lens.size(); ++i) lens[i] = lens[i + 1] - lens[i];
      lens.pop_back();
    }
    int64_t total = 0;
    for (size_t i = 0; i < lens.size(); ++i) {
      require(lens[i] >= 0, "the length of sequence %zu is %lld", i, static_cast<long long>(lens[i]));
      total += lens[i];
    }
    require(total <= K.size(0) && total <= V.size(0), "seq_lens add up to %lld tokens, key holds %lld and value %lld",
            static_cast<long long>(total), static_cast<long long>(K.size(0)), static_cast<long long>(V.size(0)));
    const std::vector<int64_t> offsets = Offsets ? read_ints(Offsets) : std::vector<int64_t>();
    for (size_t i = 0; i < offsets.size(); ++i) {
      require(offsets[i] >= 0, "seq_offset[%zu] is %lld", i, static_cast<long long>(offsets[i]));
    }
    const std::vector<int64_t> table = read_ints(Table);
    gather(KC, K, table, Table.size(1), lens, offsets, "key_cache");
    gather(VC, V, table, Table.size(1), lens, offsets, "value_cache");
  };
}

// var[indices[i]] = updates[i]; indices [..., k] address the first k dimensions of var.
ALOFT_ACLNN(ScatterNdUpdate, (const aclTensor* var, const aclTensor* indices, const aclTensor* updates),
            (var, indices, updates)) {
  const Tensor Var = inout("varRef", var), I = in("indices", indices), U = in("updates", updates);
  require(dtype_size(Var.dtype) > 0, "varRef cannot be %s", dtype_name(Var.dtype));
  require(U.dtype == Var.dtype, "updates must have the dtype of varRef (%s), got %s", dtype_name(Var.dtype),
          dtype_name(U.dtype));
  check_index_dtype("indices", I);
  require(I.ndim >= 1, "indices has no dimensions");
  const int depth = static_cast<int>(I.size(-1));
  require(depth >= 1 && depth <= Var.ndim, "the last dimension of indices is %d, varRef has %d dimensions", depth,
          Var.ndim);
  const int outer = I.ndim - 1;
  bool fits = U.ndim == outer + Var.ndim - depth;
  for (int i = 0; fits && i < outer; ++i) fits = U.size(i) == I.size(i);
  for (int i = depth; fits && i < Var.ndim; ++i) fits = U.size(outer + i - depth) == Var.size(i);
  ALOFT_REQUIRE(fits,
                "updates has the shape %s, it must be indices.shape[:-1] + varRef.shape[%d:] (indices %s, varRef %s)",
                U.shape_text().c_str(), depth, I.shape_text().c_str(), Var.shape_text().c_str());
  if (!U.numel()) return nullptr;
  return [=] {
    const std::vector<int64_t> index = read_ints(I);
    const int64_t rows = static_cast<int64_t>(index.size()) / depth;
    Dense source(U, Dense::Read);
    const Tensor& from = source.tensor();
    const int64_t item = static_cast<int64_t>(dtype_size(Var.dtype)), row = U.numel() / std::max<int64_t>(1, rows);
    for (int64_t r = 0; r < rows; ++r) {
      int64_t at = 0;
      for (int d = 0; d < depth; ++d) {
        int64_t i = index[static_cast<size_t>(r * depth + d)];
        require(i >= -Var.size(d) && i < Var.size(d), "indices holds %lld for dimension %d of varRef, which has %lld",
                static_cast<long long>(i), d, static_cast<long long>(Var.size(d)));
        at += (i < 0 ? i + Var.size(d) : i) * Var.stride(d);
      }
      strided_copy(from.ptr<char>() + r * row * item, from.strides + outer, Var.ptr<char>() + at * item,
                   Var.strides + depth, Var.sizes + depth, Var.ndim - depth, static_cast<size_t>(item));
    }
  };
}

}  // namespace aloft
