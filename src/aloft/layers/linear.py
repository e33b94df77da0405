"""Unquantized linear layers whose weights are packed into FRACTAL_NZ after loading.

A weight is kept as ``[in, out]`` in NZ, so that its 16-wide panels lie along the output features: a matrix product
then reads it front to back once, for one token as for many. With ``compact_weights`` the virtual NPU keeps bfloat16
weights without loss in three quarters of their bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from aloft import config
from aloft.ops.compact import compact
from aloft.ops.projection import DYNAMIC, Projection, multiply
from aloft.quantization.embedding import AloftQuantizedEmbeddingMethod
from aloft.quantization.layout import int8_matrix
from aloft.quantization.linear import tie_to_table

ACL_FORMAT_FRACTAL_NZ = 29
#: the matrix operators read NZ weights of these types; float32 stays ND
PACKABLE = (torch.bfloat16, torch.float16)


def pack(weight: torch.Tensor, compacted: bool = False) -> torch.Tensor:
    """``[out, in]`` in ND to ``[in, out]`` in FRACTAL_NZ, same dtype; ``compacted`` where the runtime can."""
    # torch_npu makes an ND tensor, with no more than a warning, unless internal formats are allowed
    torch.npu.config.allow_internal_format = True  # type: ignore[attr-defined]
    packed = torch.ops.npu.npu_format_cast(weight.t().contiguous(), ACL_FORMAT_FRACTAL_NZ)
    if compacted:
        compact(packed)
    return packed


def product(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x ``[..., in]`` times packed ``[in, out]``, plus bias ``[out]``."""
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    made = torch.mm(rows, packed) if bias is None else torch.addmm(bias, rows, packed)
    return made if x.dim() == 2 else made.view(*x.shape[:-1], packed.shape[1])


def _settings() -> config.AloftConfig:
    """Those of the engine being built."""
    return config.of(get_current_vllm_config_or_none())


def packing_wanted() -> bool:
    """Whether the engine being built packs unquantized weights (``weight_nz_mode`` 2, the default)."""
    return _settings().weight_nz_mode == 2


class NzLinearMethod(UnquantizedLinearMethod):
    """y = x Wᵀ + b with W ``[out, in]``, packed after loading where ``weight_nz_mode`` is 2."""

    def __init__(self) -> None:
        super().__init__()
        self.pack = packing_wanted()
        self.compact = _settings().compact_weights

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        weight: torch.Tensor = layer.weight.data  # type: ignore[assignment]
        layer.aloft_packed = self.pack and weight.dtype in PACKABLE and weight.numel() > 0  # type: ignore[assignment]
        if layer.aloft_packed:
            weight = pack(weight, self.compact)
        # a plain parameter: the loader's subclass would intercept every call of every step
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if layer.aloft_packed:
            return product(x, layer.weight, bias)  # type: ignore[arg-type]
        return torch.nn.functional.linear(x, layer.weight, bias)  # type: ignore[arg-type]


class NzEmbeddingMethod(UnquantizedEmbeddingMethod):
    """Look-ups in the ND table ``[vocab, hidden]``; logits from a packed copy, made when logits are first asked for.

    The copy costs the table's size once more (half of it with ``lm_head`` int8), for the head only: a tied table has to
    stay ND for the look-up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pack = packing_wanted()
        self.int8 = _settings().lm_head == "int8"
        self.compact = _settings().compact_weights

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        layer.aloft_head = None  # type: ignore[assignment]

    def tie_weights(self, layer: torch.nn.Module, embed_tokens: Any) -> Any:
        return tie_to_table(layer, embed_tokens) or super().tie_weights(layer, embed_tokens)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        weight: torch.Tensor = layer.weight  # type: ignore[assignment]
        if weight.dtype not in PACKABLE or not (self.pack or self.int8):
            return torch.nn.functional.linear(x, weight, bias)
        head: Projection | None = getattr(layer, "aloft_head", None)
        if head is None:
            head = self._rounded(weight.data) if self.int8 else Projection(pack(weight.data, self.compact))
            layer.aloft_head = head  # type: ignore[assignment]
        made = multiply(x.flatten(0, -2), head if bias is None else replace(head, bias=bias))
        return made if x.dim() == 2 else made.view(*x.shape[:-1], made.shape[-1])

    def _rounded(self, table: torch.Tensor) -> Projection:
        """``[vocab, hidden]`` in int8 with a scale a row, as activations are rounded."""
        codes, scale = torch.ops.npu.npu_dynamic_quant(table)
        return Projection(int8_matrix(codes, self.pack), None, DYNAMIC, 0, scale)


class LinearMixin:
    """Swaps the unquantized method for ours; a quantization method chosen by vLLM stays."""

    quant_method: Any

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        if type(self.quant_method) is UnquantizedLinearMethod:
            self.quant_method = NzLinearMethod()


class EmbeddingMixin:
    """The same for the vocabulary's table and the head."""

    quant_method: Any

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        if type(self.quant_method) is UnquantizedEmbeddingMethod:
            self.quant_method = NzEmbeddingMethod()


class TableMixin(EmbeddingMixin):
    """Looks up one row a token without widening the ids first."""

    tp_size: int
    weight: torch.Tensor

    def forward(self, input_: torch.Tensor) -> torch.Tensor:
        """ids int32 or int64 ``[T]`` (or any shape); returns ``[T, hidden]``."""
        if self.tp_size == 1 and type(self.quant_method) is AloftQuantizedEmbeddingMethod:
            return self.quant_method.embedding(self, input_)  # type: ignore[arg-type]
        if self.tp_size == 1 and input_.dim() == 1 and type(self.quant_method) is NzEmbeddingMethod:
            return torch.index_select(self.weight, 0, input_)
        return super().forward(input_)  # type: ignore[misc]


def replacements() -> dict[type[torch.nn.Module], type[torch.nn.Module]]:
    linear = (
        ReplicatedLinear,
        ColumnParallelLinear,
        MergedColumnParallelLinear,
        QKVParallelLinear,
        RowParallelLinear,
    )
    mixins: dict[type[torch.nn.Module], type] = dict.fromkeys(linear, LinearMixin)
    mixins |= {VocabParallelEmbedding: TableMixin, ParallelLMHead: EmbeddingMixin}
    return {original: _derived(original, mixin) for original, mixin in mixins.items()}


_DERIVED: dict[type[torch.nn.Module], type[torch.nn.Module]] = {}


def _derived(original: type[torch.nn.Module], mixin: type) -> type[torch.nn.Module]:
    made = _DERIVED.get(original)
    if made is None:
        made = _DERIVED[original] = type(f"Aloft{original.__name__}", (mixin, original), {"__module__": __name__})
    return made
