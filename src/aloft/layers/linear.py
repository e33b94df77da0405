"""Unquantized linear layers whose weights are packed into FRACTAL_NZ after loading."""

from __future__ import annotations

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

from aloft import config

ACL_FORMAT_FRACTAL_NZ = 29


class NzLinearMethod(UnquantizedLinearMethod):
    """y = x Wᵀ + b with W ``[out, in]``, stored in NZ where ``weight_nz_mode`` is 2."""

    def __init__(self) -> None:
        super().__init__()
        vllm_config = get_current_vllm_config_or_none()
        additional = vllm_config.additional_config if vllm_config is not None else None
        self.pack = config.parse(additional if isinstance(additional, dict) else None).weight_nz_mode == 2

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        weight: torch.Tensor = layer.weight.data  # type: ignore[assignment]
        if self.pack and weight.numel():
            weight = torch.ops.npu.npu_format_cast(weight, ACL_FORMAT_FRACTAL_NZ)
        # a plain parameter: the loader's subclass would intercept every call of every step
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.nn.functional.linear(x, layer.weight, bias)  # type: ignore[arg-type]


class LinearMixin:
    """Swaps the unquantized method for ours; a quantization method chosen by vLLM stays."""

    quant_method: Any

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        if type(self.quant_method) is UnquantizedLinearMethod:
            self.quant_method = NzLinearMethod()


def replacements() -> dict[type[torch.nn.Module], type[torch.nn.Module]]:
    originals = (
        ReplicatedLinear,
        ColumnParallelLinear,
        MergedColumnParallelLinear,
        QKVParallelLinear,
        RowParallelLinear,
    )
    return {original: _REPLACED.setdefault(original, _derive(original)) for original in originals}


_REPLACED: dict[type[torch.nn.Module], type[torch.nn.Module]] = {}


def _derive(original: type[torch.nn.Module]) -> type[torch.nn.Module]:
    return type(f"Aloft{original.__name__}", (LinearMixin, original), {"__module__": __name__})
