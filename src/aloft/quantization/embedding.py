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
    """Logits from the codes of the embedding's table; with ``lm_head`` int8 activations are rounded too."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.int8 = settings.of(get_current_vllm_config_or_none()).lm_head == "int8"
        self.head: Projection | None = None

    def create_weights(self, layer: torch.nn.Module, *sizes: Any, **extra: Any) -> None:
        raise AssertionError("a tied head has no weights of its own")

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        scheme = self.table.quant_method.scheme
        if not self.int8 or scheme.kind == DYNAMIC:
            return self.table.quant_method.apply(self.table, x, bias)
        if self.head is None:
            self.head = scheme.int8_head(self.table)
        made = multiply(x.flatten(0, -2), self.head if bias is None else replace(self.head, bias=bias))
        return made if x.dim() == 2 else made.view(*x.shape[:-1], made.shape[-1])
