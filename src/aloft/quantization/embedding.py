"""A quantized vocabulary table of vLLM, and the head that shares it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

from aloft import config as settings
from aloft.ops.projection import DYNAMIC, Projection, multiply
from aloft.quantization.linear import AloftQuantizedLinearMethod
from aloft.quantization.table import Table


class AloftQuantizedEmbeddingMethod(AloftQuantizedLinearMethod):
    """Loads a table as linear layers are loaded; looks up rows of it."""

    scheme: Table

    def embedding(self, layer: torch.nn.Module, input_: torch.Tensor) -> torch.Tensor:
        """ids of any shape to ``[..., hidden]``."""
        made = self.scheme.rows(layer, input_.flatten())
        return made if input_.dim() == 1 else made.view(*input_.shape, made.shape[-1])

    def share(self, head: Any, table: torch.nn.Module) -> Any:
        """Has a tied head multiply with this table; whatever it had of its own is dropped."""
        for name in [name for name, _ in head.named_parameters(recurse=False) if name != "bias"]:
            delattr(head, name)
        head.quant_method = TiedHeadMethod(table)
        return head


class TiedHeadMethod(QuantizeMethodBase):
    """Logits from the embedding's table: from its codes for W8A8 tables and with ``lm_head`` int8.

    Weight-only tables are dequantized once into a packed copy, as float tables are packed for the head: several times
    as fast as the product with the codes. With ``weight_nz_mode`` 0 or 1 there is no copy, and the codes serve.
    """

    def __init__(self, table: Any) -> None:
        self.table = table
        said = settings.of(get_current_vllm_config_or_none())
        self.int8, self.pack, self.compact = said.lm_head == "int8", said.weight_nz_mode == 2, said.compact_weights
        self.head: Projection | None = None

    def create_weights(self, layer: torch.nn.Module, *sizes: Any, **extra: Any) -> None:
        raise AssertionError("a tied head has no weights of its own")

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        scheme = self.table.quant_method.scheme
        if scheme.kind == DYNAMIC or not (self.int8 or self.pack):
            return self.table.quant_method.apply(self.table, x, bias)
        if self.head is None:
            self.head = scheme.int8_head(self.table) if self.int8 else scheme.float_head(self.table, self.compact)
        made = multiply(x.flatten(0, -2), self.head if bias is None else replace(self.head, bias=bias))
        return made if x.dim() == 2 else made.view(*x.shape[:-1], made.shape[-1])
