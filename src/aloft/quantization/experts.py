"""Quantized experts of vLLM: tensors by the checkpoint's storage, one expert like a linear layer; grouped products.

The checkpoint's tensors of all experts are stacked in parameters ``w13_<tensor>`` (gate and up, fused) and
``w2_<tensor>`` (down). Each expert's part is loaded, and split over ranks, by the very parameter a linear layer of that
format would have: a column parallel one for gate and up, a row parallel one for down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

from aloft.layers import experts as routed
from aloft.ops.experts import FUSED_COLUMNS, Experts
from aloft.ops.projection import Projection
from aloft.quantization import registry
from aloft.quantization.description import Description, LayerScheme, LayerShape
from aloft.quantization.loading import Loading, check_codes
from aloft.quantization.weight import QuantizedWeight

#: vLLM's names of an expert's layers -> (half, part of it)
_SHARDS = {"w1": ("w13", 0), "w3": ("w13", 1), "w2": ("w2", 0)}


class ExpertsScheme:
    """One scheme's tensors and arithmetic for experts.

    ``pack`` makes one expert's tensors, ``finish`` the operators' tensors of all of them, stacked.
    """

    operators: ClassVar[tuple[str, ...]] = ()
    #: rows are int8: the product may be one operator with SwiGLU and quantisation
    fusable: ClassVar[bool] = False

    def __init__(self, nz: bool = True) -> None:
        """nz: pack weights into FRACTAL_NZ where the operator takes it."""
        self.nz = nz

    def pack(self, weight: QuantizedWeight, shape: LayerShape) -> dict[str, torch.Tensor]:
        raise NotImplementedError

    def finish(self, held: dict[str, torch.Tensor], dtype: torch.dtype, fused: bool) -> dict[str, torch.Tensor]:
        """Stacked tensors ``[E, ...]`` of ``pack`` as the operators take them.

        fused: for the product with SwiGLU and quantisation in it.
        """
        return held

    def projection(self, held: Mapping[str, torch.Tensor]) -> Projection:
        raise NotImplementedError


@dataclass
class _Half:
    """Gate and up, or down, of every expert."""

    described: LayerScheme
    scheme: ExpertsScheme
    parts: tuple[str, ...]  # the checkpoint's names of the layers in it
    shape: LayerShape | None = None
    template: Any = None  # the module a linear layer of these tensors would be; its parameters look at one expert
    came: dict[str, set[tuple[int, int]]] = field(default_factory=dict)  # tensor -> (expert, part)

    def look_at(self, layer: Any, half: str, expert: int) -> Any:
        for name, parameter in self.template.named_parameters():
            parameter.data = getattr(layer, f"{half}_{name}").data[expert]
        return self.template


def method_of(description: Description, layer: Any, name: str, nz: bool) -> AloftQuantizedExpertsMethod | None:
    """The method of a RoutedExperts layer; None where its experts are float.

    Raises:
        ValueError: experts differ, or only a part of them is quantized; a scheme experts are not served in.
    """
    names = {
        "w13": (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name),
        "w2": (layer.ckpt_down_proj_name,),
    }
    halves = {}
    for half, parts in names.items():
        shards = [f"{name}.{expert}.{part}" for expert in range(layer.global_num_experts) for part in parts]
        described = description.linear(f"{name} ({', '.join(parts)})", shards)
        if described is not None:
            scheme = registry.method(described.name, registry.EXPERTS, name)(nz=nz)
            halves[half] = _Half(described, scheme, parts)
    if len(halves) == 1:
        raise ValueError(f"{name}: {'gate and up' if 'w13' in halves else 'down'} alone of its experts is quantized.")
    return AloftQuantizedExpertsMethod(layer.moe_config, halves, name) if halves else None


class AloftQuantizedExpertsMethod(FusedMoEMethodBase):
    """Created per layer. After loading, the checkpoint's tensors give way to the operators' ones."""

    def __init__(self, moe: Any, halves: dict[str, _Half], name: str) -> None:
        super().__init__(moe)
        self.halves, self.name = halves, name
        self.loading = Loading(name)

    @property
    def is_monolithic(self) -> bool:
        return True

    def get_fused_moe_quant_config(self, layer: Any) -> None:
        return None

    def create_weights(
        self,
        layer: Any,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra: Any,
    ) -> None:
        routed.check(layer)
        width, ranks, first = intermediate_size_per_partition, self.moe.tp_size, self.moe.tp_rank == 0
        sizes = {"w13": (hidden_size, (width, width), hidden_size), "w2": (width, (hidden_size,), width * ranks)}
        self.experts, self.dtype = num_experts, params_dtype
        for name, half in self.halves.items():
            inputs, outputs, total = sizes[name]
            half.shape = LayerShape(
                f"{self.name}.*.{'/'.join(half.parts)}", inputs, outputs, total, params_dtype, self._load, first
            )
            half.template = torch.nn.Module()
            half.described.storage.create(half.template, half.shape)
            for tensor, parameter in half.template.named_parameters():
                start = torch.empty((num_experts, *parameter.shape), dtype=parameter.dtype)
                stacked = torch.nn.Parameter(start, requires_grad=False)
                stacked.weight_loader = self._load  # type: ignore[attr-defined]
                stacked.aloft_place = (name, tensor)  # type: ignore[attr-defined]
                layer.register_parameter(f"{name}_{tensor}", stacked)
                half.came[tensor] = set()

    def _load(
        self,
        param: Any,
        loaded_weight: torch.Tensor,
        weight_name: str,
        shard_id: str,
        expert_id: int,
        return_success: bool = False,
    ) -> bool | None:
        """vLLM's loader of experts: one tensor of one layer of one expert."""
        _, tensor = param.aloft_place
        name, part = _SHARDS[shard_id]
        half = self.halves[name]
        assert half.shape is not None
        view = half.template.get_parameter(tensor)
        view.data = param.data[expert_id]
        view.filled = any((expert_id, other) in half.came[tensor] for other in range(len(half.parts)))
        check_codes(self.name, f"{expert_id}.{half.parts[part]}.{tensor}", view, loaded_weight)
        try:
            if name == "w2":
                view.load_row_parallel_weight(loaded_weight=loaded_weight)
            else:
                size = half.shape.outputs[part]
                view.load_merged_column_weight(
                    loaded_weight=loaded_weight, shard_id=part, shard_offset=part * size, shard_size=size
                )
        except (AssertionError, RuntimeError) as error:  # vLLM asserts sizes without a word
            raise ValueError(
                f"{self.name}: the checkpoint's {expert_id}.{half.parts[part]}.{tensor} of shape "
                f"{list(loaded_weight.shape)} does not fit the {list(view.shape)} its description asks for: the group "
                "size, the width or the layer's sizes are not those it was made with."
            ) from error
        half.came[tensor].add((expert_id, part))
        return True if return_success else None

    def process_weights_after_loading(self, layer: Any) -> None:
        if getattr(layer, "aloft_ready", False):
            return  # a second pass (reload of other layers, sleep) finds the operators' tensors
        shape = self.halves["w13"].shape
        assert shape is not None
        fused = all(half.scheme.fusable and half.scheme.nz for half in self.halves.values())
        fused = fused and sum(shape.outputs) <= FUSED_COLUMNS
        made = {}
        for name, half in self.halves.items():
            self._check(layer, name, half)
            held = half.scheme.finish(self._packed(layer, name, half), self.dtype, fused and name == "w13")
            for tensor in half.came:
                delattr(layer, f"{name}_{tensor}")
            for tensor, value in held.items():
                layer.register_parameter(f"{name}_{tensor}", torch.nn.Parameter(value, requires_grad=False))
            made[name] = half.scheme.projection(held)
            half.template = None
        layer.aloft_routing = routed.routing(layer)
        layer.aloft_experts = Experts(made["w13"], made["w2"], fused)
        layer.aloft_ready = True

    def _check(self, layer: Any, name: str, half: _Half) -> None:
        """Every tensor of every expert came, and scales are what scales can be."""
        for tensor, came in half.came.items():
            values = getattr(layer, f"{name}_{tensor}").data
            if self.loading.fill(tensor, values):
                continue
            for expert in range(self.experts):
                for part, layer_name in enumerate(half.parts):
                    if (expert, part) not in came:
                        raise ValueError(f"{self.name}: the checkpoint has no {expert}.{layer_name}.{tensor}.")
            self.loading.check_values(f"{name}_{tensor}", values, half.described.storage.signed_scales)

    def _packed(self, layer: Any, name: str, half: _Half) -> dict[str, torch.Tensor]:
        """Each expert's tensors, stacked; one expert is unpacked at a time."""
        assert half.shape is not None
        made: dict[str, torch.Tensor] = {}
        for expert in range(self.experts):
            weight = half.described.storage.read(half.look_at(layer, name, expert), half.shape)
            if weight.order is not None:
                raise ValueError(f"{half.shape.name}: weights in activation order are not served in experts.")
            for tensor, value in half.scheme.pack(weight, half.shape).items():
                if tensor not in made:  # zeros: formats leave out offsets of experts that have none
                    made[tensor] = torch.zeros((self.experts, *value.shape), dtype=value.dtype, device=value.device)
                made[tensor][expert].copy_(value)
        return made

    def apply_monolithic(
        self, layer: Any, x: torch.Tensor, router_logits: torch.Tensor, input_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        return routed.run(layer, x, router_logits)
