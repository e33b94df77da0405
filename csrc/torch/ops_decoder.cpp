// The fused operators of a decoder layer, and of all layers of a model. They do what the operators they stand for do
// one after the other, bit for bit; composites of those take their place on CANN (src/aloft/ops/decoder_layer.py).
#include <ATen/core/List.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "torch/fused_input.h"
#include "torch/fused_mlp.h"
#include "torch/paged_attention.h"

namespace aloft {
namespace {

using fused::given;
using fused::Optional;
using Pair = std::tuple<at::Tensor, at::Tensor>;
using torch_route::or_none;

using fused::is_meta;
using fused::Schemes;
using Scales = fused::Schemes::Scales;

// As torch_route::touches; what quantized projections are scaled by is read as well.
std::vector<Touch> touches(std::initializer_list<at::Tensor> kept, std::initializer_list<at::Tensor> written,
                           const Scales& scales) {
  std::vector<Touch> all = torch_route::touches(kept, written);
  if (!scales) return all;
  for (const Optional scale : *scales) torch_route::add_touch(Use::Keeps, or_none(scale), &all);
  return all;
}

Pair attention_input(const at::Tensor& hidden, const Optional& residual, const at::Tensor& norm_weight, double norm_eps,
                     const at::Tensor& qkv_weight, const Optional& qkv_bias, const at::Tensor& cos,
                     const at::Tensor& sin, bool interleaved, at::Tensor& key_cache, at::Tensor& value_cache,
                     const at::Tensor& slot_mapping, int64_t num_heads, const Optional& q_norm_weight,
                     const Optional& k_norm_weight, double qk_norm_eps, int64_t block_rows, const Scales& scales,
                     at::IntArrayRef schemes) {
  const Schemes::One qkv = Schemes(fused::InputStage::kName, scales, schemes, 1)[0];
  fused::InputStage stage({hidden, residual, norm_weight, norm_eps, qkv_weight, qkv_bias, cos, sin, interleaved,
                           key_cache, value_cache, slot_mapping, num_heads, q_norm_weight, k_norm_weight, qk_norm_eps,
                           block_rows, qkv});
  Pair made{at::empty({hidden.size(0), num_heads, key_cache.size(3)}, hidden.options()),
            at::empty(given(residual) ? hidden.sizes() : at::IntArrayRef({0}), hidden.options())};
  if (is_meta(hidden) || !stage.tokens()) return made;
  const at::Tensor scratch = fused::scratch(stage.scratch_bytes(), hidden);
  stage.put(std::get<0>(made), std::get<1>(made), scratch.data_ptr());
  fused::run(stage.kName, hidden, stage, [&] {
    return touches({hidden, or_none(residual), norm_weight, qkv_weight, or_none(qkv_bias), cos, sin, key_cache,
                    value_cache, slot_mapping, or_none(q_norm_weight), or_none(k_norm_weight)},
                   {std::get<0>(made), std::get<1>(made)}, scales);
  });
  return made;
}

Pair mlp_block(const at::Tensor& attention, const at::Tensor& residual, const at::Tensor& o_weight,
               const Optional& o_bias, const at::Tensor& norm_weight, double norm_eps, const at::Tensor& gate_up_weight,
               const Optional& gate_up_bias, const at::Tensor& down_weight, const Optional& down_bias,
               int64_t block_rows, const Scales& scales, at::IntArrayRef schemes) {
  const Schemes of(fused::MlpStage::kName, scales, schemes, 3);
  const Schemes::One o = of[0], gate_up = of[1], down = of[2];
  fused::MlpStage stage({attention, residual, o_weight, o_bias, norm_weight, norm_eps, gate_up_weight, gate_up_bias,
                         down_weight, down_bias, block_rows, o, gate_up, down});
  Pair made{at::empty(residual.sizes(), residual.options()), at::empty(residual.sizes(), residual.options())};
  if (is_meta(residual) || !stage.tokens()) return made;
  const at::Tensor scratch = fused::scratch(stage.scratch_bytes(), residual);
  stage.put(std::get<0>(made), std::get<1>(made), scratch.data_ptr());
  fused::run(stage.kName, residual, stage, [&] {
    return touches({attention, residual, o_weight, or_none(o_bias), norm_weight, gate_up_weight, or_none(gate_up_bias),
                    down_weight, or_none(down_bias)},
                   {std::get<0>(made), std::get<1>(made)}, scales);
  });
  return made;
}

constexpr char kGated[] = "aloft::gated_matmul";

at::Tensor gated_matmul(const at::Tensor& x, const at::Tensor& gate_up_weight, const Optional& gate_up_bias,
                        const Scales& scales, at::IntArrayRef schemes) {
  fused::check_dtype(kGated, "x", x);
  TORCH_CHECK_VALUE(x.dim() == 2 && x.is_contiguous(), kGated, ": x must be contiguous [tokens, width], got ",
                    x.sizes());
  const fused::GatedProduct gated(kGated, gate_up_weight, gate_up_bias, Schemes(kGated, scales, schemes, 1)[0], x,
                                  x.size(1));
  at::Tensor made = at::empty({x.size(0), gated.out()}, x.options());
  if (is_meta(x) || !made.numel()) return made;
  const int64_t rows = x.size(0);
  const size_t sums = fused::padded_bytes(gated.sums(rows), fused::dtype_of(x));
  const at::Tensor scratch = fused::scratch(sums + gated.product().input_bytes(rows), x);
  fused::run(
      kGated, x,
      [gated, rows, sums, from = x.const_data_ptr(), work = static_cast<char*>(scratch.data_ptr()),
       to = made.data_ptr()] {
        gated.product().take(from, work + sums, rows);
        gated(rows, from, work + sums, work, to);
        return aclError{kOk};
      },
      [&] { return touches({x, gate_up_weight, or_none(gate_up_bias)}, {made}, scales); });
  return made;
}

constexpr char kStack[] = "aloft::decoder_stack";

// The tensors of one layer, in the order of `weights`, and its epsilons in that of `epsilons`.
constexpr size_t kWeights = 12, kEpsilons = 3, kProjections = 4;
struct LayerWeights {
  Optional input_norm, qkv, qkv_bias, q_norm, k_norm, o, o_bias, mlp_norm, gate_up, gate_up_bias, down, down_bias;

  LayerWeights(const c10::List<Optional>& all, size_t layer) {
    size_t i = layer * kWeights;
    for (Optional* to : {&input_norm, &qkv, &qkv_bias, &q_norm, &k_norm, &o, &o_bias, &mlp_norm, &gate_up,
                         &gate_up_bias, &down, &down_bias}) {
      *to = all.get(i++);
    }
    for (const Optional* needed : {&input_norm, &qkv, &o, &mlp_norm, &gate_up, &down}) {
      TORCH_CHECK_VALUE(given(*needed), kStack, ": a norm or projection of layer ", layer, " is missing in weights");
    }
  }
};

// Everything is checked before anything is launched, but for what the attention says of its own arguments.
Pair decoder_stack(const at::Tensor& hidden, const c10::List<Optional>& weights, at::ArrayRef<double> epsilons,
                   const at::Tensor& cos, const at::Tensor& sin, bool interleaved, at::TensorList key_caches,
                   at::TensorList value_caches, const at::Tensor& slot_mapping, const at::Tensor& block_table,
                   at::IntArrayRef cu_query_lens, at::IntArrayRef kv_lens, int64_t num_heads, double scale,
                   at::IntArrayRef window_left, double soft_cap, at::IntArrayRef block_rows, const Scales& scales,
                   at::IntArrayRef schemes) {
  const size_t layers = key_caches.size();
  TORCH_CHECK_VALUE(block_rows.size() == 2, kStack, ": block_rows needs two numbers, in front of and behind the ",
                    "attention, got ", block_rows.size());
  const Schemes of(kStack, scales, schemes, layers * kProjections);
  TORCH_CHECK_VALUE(layers > 0 && value_caches.size() == layers && window_left.size() == layers &&
                        weights.size() == layers * kWeights && epsilons.size() == layers * kEpsilons,
                    kStack, ": key_caches has ", layers, " layers; value_caches (", value_caches.size(),
                    ") and window_left (", window_left.size(), ") need one entry a layer, weights (", weights.size(),
                    ") ", kWeights, " and epsilons (", epsilons.size(), ") ", kEpsilons);
  TORCH_CHECK_VALUE(hidden.dim() == 2, kStack, ": hidden must be [tokens, width], got ", hidden.sizes());
  TORCH_CHECK_VALUE(key_caches[0].dim() == 4, kStack, ": key_caches[0] has the shape ", key_caches[0].sizes(),
                    "; it must be [blocks, block_size, num_kv_heads, head_dim]");
  at::Tensor query = at::empty({hidden.size(0), num_heads, key_caches[0].size(3)}, hidden.options());
  at::Tensor attended = at::empty(query.sizes(), hidden.options());
  const at::Tensor rows = attended.flatten(1), total = at::empty(hidden.sizes(), hidden.options());
  const Optional none, residual = at::empty(hidden.sizes(), hidden.options());
  const at::Tensor out = at::empty(hidden.sizes(), hidden.options());
  std::vector<fused::InputStage> inputs;
  std::vector<fused::MlpStage> outputs;
  inputs.reserve(layers), outputs.reserve(layers);
  size_t bytes = 0;
  for (size_t l = 0; l < layers; ++l) {
    const LayerWeights w(weights, l);
    const double* epsilon = epsilons.data() + l * kEpsilons;
    Schemes::One how[kProjections];
    for (size_t p = 0; p < kProjections; ++p) how[p] = of[l * kProjections + p];
    inputs.emplace_back(fused::InputArguments{l ? out : hidden, l ? residual : none, *w.input_norm, epsilon[0], *w.qkv,
                                              w.qkv_bias, cos, sin, interleaved, key_caches[l], value_caches[l],
                                              slot_mapping, num_heads, w.q_norm, w.k_norm, epsilon[1], block_rows[0],
                                              how[0]});
    outputs.emplace_back(fused::MlpArguments{rows, l ? total : hidden, *w.o, w.o_bias, *w.mlp_norm, epsilon[2],
                                             *w.gate_up, w.gate_up_bias, *w.down, w.down_bias, block_rows[1], how[1],
                                             how[2], how[3]});
    bytes = std::max({bytes, inputs.back().scratch_bytes(), outputs.back().scratch_bytes()});
  }
  if (is_meta(hidden) || !hidden.size(0)) return {out, *residual};
  const at::Tensor scratch = fused::scratch(bytes, hidden);
  for (size_t l = 0; l < layers; ++l) {
    inputs[l].put(query, total, scratch.data_ptr());
    fused::run(inputs[l].kName, hidden, inputs[l], [&] {
      const LayerWeights w(weights, l);
      return touches({l ? out : hidden, l ? *residual : at::Tensor(), *w.input_norm, *w.qkv, or_none(w.qkv_bias), cos,
                      sin, key_caches[l], value_caches[l], slot_mapping, or_none(w.q_norm), or_none(w.k_norm)},
                     {query, l ? total : at::Tensor()}, scales);
    });
    paged_attention_into(query, key_caches[l], value_caches[l], {block_table, cu_query_lens, kv_lens},
                         key_caches[l].size(2), scale, window_left[l], soft_cap, attended);
    outputs[l].put(out, *residual, scratch.data_ptr());
    fused::run(outputs[l].kName, hidden, outputs[l], [&] {
      const LayerWeights w(weights, l);
      return touches({rows, l ? total : hidden, *w.o, or_none(w.o_bias), *w.mlp_norm, *w.gate_up,
                      or_none(w.gate_up_bias), *w.down, or_none(w.down_bias)},
                     {out, *residual}, scales);
    });
  }
  return {out, *residual};
}

}  // namespace
}  // namespace aloft

TORCH_LIBRARY_FRAGMENT(aloft, m) {
  m.def(
      "attention_input(Tensor hidden, Tensor? residual, Tensor norm_weight, float norm_eps, Tensor qkv_weight, Tensor? "
      "qkv_bias, Tensor cos, Tensor sin, bool interleaved, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor "
      "slot_mapping, int num_heads, Tensor? q_norm_weight=None, Tensor? k_norm_weight=None, float qk_norm_eps=1e-06, "
      "int block_rows=0, Tensor?[]? scales=None, int[] schemes=[]) -> (Tensor, Tensor)");
  m.def(
      "mlp_block(Tensor attention, Tensor residual, Tensor o_weight, Tensor? o_bias, Tensor norm_weight, float "
      "norm_eps, Tensor gate_up_weight, Tensor? gate_up_bias, Tensor down_weight, Tensor? down_bias, int block_rows=0, "
      "Tensor?[]? scales=None, int[] schemes=[]) -> (Tensor, Tensor)");
  m.def(
      "gated_matmul(Tensor x, Tensor gate_up_weight, Tensor? gate_up_bias=None, Tensor?[]? scales=None, int[] "
      "schemes=[]) "
      "-> Tensor");
  m.def(
      "decoder_stack(Tensor hidden, Tensor?[] weights, float[] epsilons, Tensor cos, Tensor sin, bool interleaved, "
      "Tensor(a!)[] key_caches, Tensor(b!)[] value_caches, Tensor slot_mapping, Tensor block_table, int[] "
      "cu_query_lens, int[] kv_lens, int num_heads, float scale, int[] window_left, float soft_cap=0., int[2] "
      "block_rows=0, Tensor?[]? scales=None, int[] schemes=[]) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(aloft, PrivateUse1, m) {
  m.impl("attention_input", TORCH_FN(aloft::attention_input));
  m.impl("mlp_block", TORCH_FN(aloft::mlp_block));
  m.impl("gated_matmul", TORCH_FN(aloft::gated_matmul));
  m.impl("decoder_stack", TORCH_FN(aloft::decoder_stack));
}
TORCH_LIBRARY_IMPL(aloft, Meta, m) {
  m.impl("attention_input", TORCH_FN(aloft::attention_input));
  m.impl("mlp_block", TORCH_FN(aloft::mlp_block));
  m.impl("gated_matmul", TORCH_FN(aloft::gated_matmul));
  m.impl("decoder_stack", TORCH_FN(aloft::decoder_stack));
}
