"""vLLM parameters by the axes they are split along; vLLM's loaders do the splitting.

Along the output features: everything per row (scales, biases). Along the input features: weights, and scales of groups
(a group never crosses ranks, see ``LayerShape.groups``). Whole on every rank: per-tensor activation parameters.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.parameter import (
    BasevLLMParameter,
    ChannelQuantScaleParameter,
    GroupQuantScaleParameter,
    ModelWeightParameter,
    PackedColumnParameter,
    PackedvLLMParameter,
    PerTensorScaleParameter,
    RowvLLMParameter,
)

from aloft.quantization.description import LayerShape


def add(layer: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
    parameter.aloft_key = name  # type: ignore[attr-defined]
    layer.register_parameter(name, parameter)


class Unsigned:
    """Of storages whose scales are positive."""

    signed_scales = False


def weight(shape: LayerShape, dtype: torch.dtype = torch.int8) -> torch.nn.Parameter:
    """``[N, K]``."""
    data = torch.empty(sum(shape.outputs), shape.inputs, dtype=dtype)
    return ModelWeightParameter(data=data, output_dim=0, input_dim=1, weight_loader=shape.loader)


def packed_weight(
    shape: LayerShape,
    size: tuple[int, int],
    dtype: torch.dtype,
    output_dim: int,
    packed_dim: int,
    factor: int,
) -> torch.nn.Parameter:
    """A weight (or its zero points) that holds ``factor`` codes an element along ``packed_dim``."""
    return PackedvLLMParameter(
        data=torch.empty(size, dtype=dtype),
        output_dim=output_dim,
        input_dim=1 - output_dim,
        packed_dim=packed_dim,
        packed_factor=factor,
        weight_loader=shape.loader,
    )


def packed_zeros(shape: LayerShape, group: int, dtype: torch.dtype, output_dim: int, factor: int) -> torch.nn.Parameter:
    """``[N / factor, G]`` (or its transpose): zero points, packed along the outputs and split as ``per_group``'s."""
    rows, groups = sum(shape.outputs) // factor, shape.groups(group)
    size = (rows, groups) if output_dim == 0 else (groups, rows)
    if group:
        return packed_weight(shape, size, dtype, output_dim, output_dim, factor)
    return PackedColumnParameter(
        data=torch.empty(size, dtype=dtype),
        output_dim=output_dim,
        packed_dim=output_dim,
        packed_factor=factor,
        weight_loader=shape.loader,
    )


def per_group(shape: LayerShape, group: int, dtype: torch.dtype, output_dim: int = 0) -> torch.nn.Parameter:
    """``[N, G]`` (or its transpose): split with the inputs where there are groups, whole along them for ``group`` 0."""
    rows, groups = sum(shape.outputs), shape.groups(group)
    data = torch.empty((rows, groups) if output_dim == 0 else (groups, rows), dtype=dtype)
    if not group:
        return ChannelQuantScaleParameter(data=data, output_dim=output_dim, weight_loader=shape.loader)
    return GroupQuantScaleParameter(
        data=data, output_dim=output_dim, input_dim=1 - output_dim, weight_loader=shape.loader
    )


class _Spread(GroupQuantScaleParameter):
    """Numbers of groups; a layer of the checkpoint that has one a row gets it in each of the row's groups."""

    aloft_groups: int  # along all of the layer's inputs

    def spread(self, loaded: torch.Tensor) -> torch.Tensor:
        alone = loaded.dim() == 2 and loaded.shape[1] == 1
        return loaded.expand(-1, self.aloft_groups) if alone else loaded

    def load_column_parallel_weight(self, loaded_weight: torch.Tensor) -> None:
        super().load_column_parallel_weight(self.spread(loaded_weight))

    def load_row_parallel_weight(self, loaded_weight: torch.Tensor) -> None:
        super().load_row_parallel_weight(self.spread(loaded_weight))

    def load_merged_column_weight(self, loaded_weight: torch.Tensor, **shard: Any) -> None:
        super().load_merged_column_weight(self.spread(loaded_weight), **shard)

    def load_qkv_weight(self, loaded_weight: torch.Tensor, **shard: Any) -> None:
        super().load_qkv_weight(self.spread(loaded_weight), **shard)


def per_group_or_row(shape: LayerShape, group: int, dtype: torch.dtype) -> torch.nn.Parameter:
    """``[N, G]`` for layers of a checkpoint that may have a number a row in the place of one a group."""
    if not group or shape.inputs % group:
        return per_group(shape, 0, dtype)
    data = torch.empty(sum(shape.outputs), shape.groups(group), dtype=dtype)
    made = _Spread(data=data, output_dim=0, input_dim=1, weight_loader=shape.loader)
    made.aloft_groups = shape.total_inputs // group
    return made


def per_row(shape: LayerShape, dtype: torch.dtype) -> torch.nn.Parameter:
    """``[N]``."""
    data = torch.empty(sum(shape.outputs), dtype=dtype)
    return ChannelQuantScaleParameter(data=data, output_dim=0, weight_loader=shape.loader)


def per_tensor(shape: LayerShape, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    """``[shards]``: one value for each original layer of a fused one."""
    return PerTensorScaleParameter(data=torch.zeros(len(shape.outputs), dtype=dtype), weight_loader=shape.loader)


class _Shared(RowvLLMParameter):
    """One tensor for all layers fused into one; they must agree on it."""

    def _assert_and_load(self, loaded_weight: torch.Tensor) -> None:
        if getattr(self, "filled", False) and not torch.equal(self.data.cpu(), loaded_weight.to(self.dtype).cpu()):
            raise ValueError("layers that are fused into one differ in the order or transform of their inputs")
        super()._assert_and_load(loaded_weight)
        self.filled = True


def whole(shape: LayerShape, size: tuple[int, ...], dtype: torch.dtype) -> torch.nn.Parameter:
    """The same for every shard of a fused layer and on every rank."""
    return _Shared(data=torch.empty(size, dtype=dtype), input_dim=0, weight_loader=shape.loader)


def per_input(shape: LayerShape, dtype: torch.dtype) -> torch.nn.Parameter:
    """``[K]``, the same for every shard of a fused layer."""
    return _Shared(data=torch.empty(shape.inputs, dtype=dtype), input_dim=0, weight_loader=shape.loader)


class _Unread(BasevLLMParameter):
    """A tensor of the checkpoint that nothing is needed of, whatever its size."""

    def _assert_and_load(self, loaded_weight: torch.Tensor) -> None:
        pass


def unread(shape: LayerShape) -> torch.nn.Parameter:
    """The place of a tensor that is not read."""
    return _Unread(data=torch.empty(0), weight_loader=shape.loader)
