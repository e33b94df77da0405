"""A quantized linear layer of vLLM: tensors by the checkpoint's storage, arithmetic by the scheme."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.linear import LinearMethodBase, register_weight_loader_v2_supported_method
from vllm.model_executor.parameter import PerTensorScaleParameter

from aloft.quantization.description import LayerScheme, LayerShape
from aloft.quantization.weight import QuantizedWeight


class LinearScheme:
    """One scheme's arithmetic for linear layers.

    ``pack`` makes the operators' tensors from a weight, once; ``apply`` is the layer's product.
    """

    operators: ClassVar[tuple[str, ...]] = ()

    def __init__(self, nz: bool = True) -> None:
        """nz: pack weights into FRACTAL_NZ where the operator takes it."""
        self.nz = nz

    def pack(self, weight: QuantizedWeight, shape: LayerShape) -> dict[str, torch.Tensor]:
        raise NotImplementedError

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x ``[T, K]`` in the model's dtype to ``[T, N]``."""
        raise NotImplementedError


@register_weight_loader_v2_supported_method
class AloftQuantizedLinearMethod(LinearMethodBase):
    """Created per layer. After loading, the checkpoint's tensors give way to the operators' ones."""

    def __init__(self, described: LayerScheme, scheme: LinearScheme, name: str) -> None:
        self.described, self.scheme, self.name = described, scheme, name
        self._loaded: dict[int, set[Any]] = {}

    def create_weights(
        self,
        layer: torch.nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra: Any,
    ) -> None:
        self.shape = LayerShape(
            name=self.name,
            inputs=input_size_per_partition,
            outputs=tuple(output_partition_sizes),
            total_inputs=input_size,
            dtype=params_dtype,
            loader=self._noting(extra.get("weight_loader")),
            is_first_rank=getattr(layer, "tp_rank", 0) == 0,
        )
        self.described.storage.create(layer, self.shape)
        self.created = tuple(name for name, _ in layer.named_parameters(recurse=False))

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if getattr(layer, "aloft_ready", False):
            return  # a second pass (reload of other layers, sleep) finds the operators' tensors
        self._check_loaded(layer)
        weight = self.described.storage.read(layer, self.shape)
        if not bool(weight.scale.isfinite().all()):
            raise ValueError(f"{self.name}: the checkpoint's weight scales hold values that are not finite.")
        packed = self.scheme.pack(weight, self.shape)
        for name in self.created:
            delattr(layer, name)
        for name, tensor in packed.items():
            layer.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
        layer.aloft_ready = True  # type: ignore[assignment]

    def _noting(self, loader: Callable[..., None] | None) -> Callable[..., None] | None:
        """The loader, remembering which shards of which parameter came: vLLM asks nobody for those that did not."""
        if loader is None:
            return None

        def load(parameter: torch.nn.Parameter, loaded: torch.Tensor, *shard: Any, **named: Any) -> None:
            loader(parameter, loaded, *shard, **named)
            which = shard[0] if shard else named.get("loaded_shard_id")
            self._loaded.setdefault(id(parameter), set()).update(which if isinstance(which, tuple) else (which,))

        return load

    def _check_loaded(self, layer: torch.nn.Module) -> None:
        """Raises ValueError where the checkpoint has only a part of the layer's tensors: the rest is no one's memory.

        Nothing at all is another way of loading (dummy weights); values for a whole tensor have a default.
        """
        if not self._loaded:
            return
        for name in self.created:
            parameter = getattr(layer, name)
            came = self._loaded.get(id(parameter), set())
            if None in came or len(came) == len(self.shape.outputs) or isinstance(parameter, PerTensorScaleParameter):
                continue
            parts = "" if len(self.shape.outputs) == 1 else f" (only the parts {sorted(map(str, came))} of it)"
            raise ValueError(f"{self.name}: the checkpoint has no {name}{parts if came else ''}.")

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        made = self.scheme.apply(layer, rows, bias)
        return made if x.dim() == 2 else made.view(*x.shape[:-1], made.shape[-1])
