"""A quantized linear layer of vLLM: tensors by the checkpoint's storage, arithmetic by the scheme."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.linear import LinearMethodBase, register_weight_loader_v2_supported_method

from aloft.ops.projection import Projection, multiply
from aloft.quantization.description import LayerScheme, LayerShape
from aloft.quantization.loading import Loading
from aloft.quantization.weight import QuantizedWeight


class LinearScheme:
    """One scheme's arithmetic for linear layers.

    ``pack`` makes the operators' tensors from a weight, once; ``apply`` is the layer's product. Where that is one of
    ``aloft.ops.projection``, ``projection`` says so: fused operators may then compute it.
    """

    operators: ClassVar[tuple[str, ...]] = ()

    def __init__(self, nz: bool = True) -> None:
        """nz: pack weights into FRACTAL_NZ where the operator takes it."""
        self.nz = nz

    def pack(self, weight: QuantizedWeight, shape: LayerShape) -> dict[str, torch.Tensor]:
        raise NotImplementedError

    def projection(self, layer: Any, bias: torch.Tensor | None) -> Projection | None:
        """The layer's product; None where it is none of those."""
        return None

    def fused(self, layer: Any) -> None:
        """After loading, where the runtime has fused operators as single ones and they take over the layer: what it
        holds may be put as they read it; ``multiply`` still has to serve it."""

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x ``[T, K]`` in the model's dtype to ``[T, N]``."""
        made = self.projection(layer, bias)
        if made is None:
            raise NotImplementedError
        return multiply(x, made)


def tie_to_table(head: torch.nn.Module, table: Any) -> Any:
    """The head, multiplying with the quantized table it is tied to; None where the table is not quantized."""
    share = getattr(table.quant_method, "share", None)
    return None if share is None else share(head, table)


@register_weight_loader_v2_supported_method
class AloftQuantizedLinearMethod(LinearMethodBase):
    """Created per layer. After loading, the checkpoint's tensors give way to the operators' ones."""

    def __init__(self, described: LayerScheme, scheme: LinearScheme, name: str) -> None:
        self.described, self.scheme, self.name = described, scheme, name
        self.loading = Loading(name)

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
            loader=self.loading.noting(extra.get("weight_loader")),
            is_first_rank=getattr(layer, "tp_rank", 0) == 0,
        )
        self.described.storage.create(layer, self.shape)
        self.created = tuple(name for name, _ in layer.named_parameters(recurse=False))

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if getattr(layer, "aloft_ready", False):
            return  # a second pass (reload of other layers, sleep) finds the operators' tensors
        self._pad(layer)
        self.loading.check(layer, self.created, len(self.shape.outputs), self.described.storage.signed_scales)
        weight = self.described.storage.read(layer, self.shape)
        packed = self.scheme.pack(weight, self.shape)
        for name in self.created:
            delattr(layer, name)
        for name, tensor in packed.items():
            layer.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
        layer.aloft_ready = True  # type: ignore[assignment]

    def _pad(self, layer: Any) -> None:
        """Rows of a head or table beyond the vocabulary, which vLLM fills with zeros, get a scale a row can have."""
        shard: Any = getattr(layer, "shard_indices", None)
        for name in self.created if shard is not None else ():
            parameter = getattr(layer, name)
            if parameter.is_floating_point() and getattr(parameter, "output_dim", None) == 0:
                parameter.data[shard.num_org_elements :].fill_(1.0 if "scale" in name else 0.0)

    def tie_weights(self, layer: torch.nn.Module, embed_tokens: torch.nn.Module) -> Any:
        """A head that is described as quantized, and shares its table with the embedding.

        Raises:
            ValueError: the table is not quantized.
        """
        if (tied := tie_to_table(layer, embed_tokens)) is not None:
            return tied
        raise ValueError(
            f"{self.name}: the description says {self.described.name}, but config.json ties the head to the embedding "
            "(tie_word_embeddings), which is not quantized: tie_word_embeddings must be false where the checkpoint has "
            "a quantized head of its own, or the description must leave the head out."
        )

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        made = self.scheme.apply(layer, rows, bias)
        return made if x.dim() == 2 else made.view(*x.shape[:-1], made.shape[-1])
