"""int8 keys and values: one calibrated scale (and offset) for every head and channel, or for every head."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod

from aloft.attention.int8 import CacheScales
from aloft.quantization.description import LayerScheme
from aloft.quantization.registry import KV_CACHE, register

_NAMES = ("k_cache_scale", "k_cache_offset", "v_cache_scale", "v_cache_offset")


@register("kv-int8", KV_CACHE)
class KvInt8(BaseKVCacheMethod):
    """``q = round(k / scale + offset)`` when written, ``(q - offset) * scale`` when read. Heads split over ranks."""

    operators = ("npu::npu_quantize", "npu::npu_scatter_pa_kv_cache", "npu::npu_fused_infer_attention_score")

    def __init__(self, described: LayerScheme, name: str) -> None:
        self.name = name

    def create_weights(self, layer: Any) -> None:
        if layer.impl.fp8 is not None:
            raise ValueError(
                f"{self.name}: the checkpoint keeps its KV cache in int8: --kv-cache-dtype must be auto, "
                f"not {layer.kv_cache_dtype}."
            )
        size = layer.num_kv_heads * layer.head_size
        for name in _NAMES:
            start = torch.zeros(size) if name.endswith("offset") else torch.full((size,), float("nan"))
            parameter = torch.nn.Parameter(start, requires_grad=False)
            parameter.weight_loader = self._load  # type: ignore[attr-defined]
            layer.register_parameter(name, parameter)
        self.heads, self.head_size = layer.num_kv_heads, layer.head_size

    def _load(self, parameter: torch.nn.Parameter, loaded: torch.Tensor) -> None:
        from vllm.distributed import get_tensor_model_parallel_rank

        values = loaded.float().flatten()
        mine = parameter.numel()
        if values.numel() % mine == 0:  # a scale a channel
            start = get_tensor_model_parallel_rank() * mine % values.numel()
            values = values[start : start + mine]
        elif values.numel() % self.heads == 0:  # a scale a head
            start = get_tensor_model_parallel_rank() * self.heads % values.numel()
            values = values[start : start + self.heads].repeat_interleave(self.head_size)
        else:
            raise ValueError(
                f"{self.name}: a cache scale has {loaded.numel()} values; it must have one for each of {self.heads} "
                f"heads, or for each of their {self.head_size} channels."
            )
        parameter.data.copy_(values)

    def process_weights_after_loading(self, layer: Any) -> None:
        if layer.impl.cache_scales is not None:
            return
        held = {name: getattr(layer, name).data for name in _NAMES}
        for name in ("k_cache_scale", "v_cache_scale"):
            if not bool((held[name] > 0).all()):
                raise ValueError(
                    f"{self.name}: the checkpoint has no {name[0]}_proj.kv_cache_scale, or one that is not positive."
                )
        if not all(bool(values.isfinite().all()) for values in held.values()):
            raise ValueError(f"{self.name}: the checkpoint's KV cache scales or offsets are not all finite.")
        layer.impl.cache_scales = (
            CacheScales.of(held["k_cache_scale"], held["k_cache_offset"]),
            CacheScales.of(held["v_cache_scale"], held["v_cache_offset"]),
        )
        for name in _NAMES:
            delattr(layer, name)
