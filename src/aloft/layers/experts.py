"""Unquantized experts on the device's grouped products, and what every mixture of experts shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

from aloft.errors import UnsupportedFeature
from aloft.layers.linear import ACL_FORMAT_FRACTAL_NZ, PACKABLE, packing_wanted
from aloft.ops.experts import SCORING, Experts, Routing, choose, run_experts
from aloft.ops.projection import Projection


def check(layer: Any) -> None:
    """Raises UnsupportedFeature for the first thing about a RoutedExperts layer that aloft cannot serve."""
    for sentence in refusals(layer):
        raise UnsupportedFeature(f"{layer.layer_name}: {sentence}")


def refusals(layer: Any) -> Iterator[str]:
    """One sentence for each."""
    config = layer.moe_config
    if layer.activation != MoEActivation.SILU:
        yield f"aloft serves experts with SiLU and a gate only, not {layer.activation.value}."
    if config.has_bias:
        yield "aloft does not support experts with biases yet."
    if layer.swiglu_limit is not None or layer.swiglu_alpha is not None or layer.swiglu_beta is not None:
        yield "aloft does not support a clamped or scaled SwiGLU in experts yet."
    if config.has_hash_routing:
        yield "aloft does not support routing by token id yet."
    if layer.scoring_func not in SCORING:
        yield f"aloft routes by {' or '.join(SCORING)} scores only, not {layer.scoring_func}."
    if layer.apply_router_weight_on_input:
        yield "aloft does not support router weights that multiply the experts' inputs yet."
    if layer.local_num_experts != layer.global_num_experts:
        yield "aloft does not support expert parallelism yet."


def routing(layer: Any) -> Routing:
    """A RoutedExperts layer's routing, as its model asked for it."""
    bias = layer.e_score_correction_bias
    in_groups = layer.use_grouped_topk and (layer.num_expert_group or 1) > 1
    return Routing(
        top_k=layer.top_k,
        experts=layer.global_num_experts,
        scoring=layer.scoring_func,
        renormalize=bool(layer.renormalize),
        # vLLM's plain router leaves the factor to the model
        factor=float(layer.routed_scaling_factor) if layer.use_grouped_topk or bias is not None else 1.0,
        bias=None if bias is None else bias.data.float(),
        groups=int(layer.num_expert_group) if in_groups else 1,
        kept=int(layer.topk_group) if in_groups else 1,
    )


def run(layer: Any, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The layer's routed output for x ``[T, hidden]`` and logits ``[T, experts]``."""
    own = layer.custom_routing_function
    if own is None:
        weights, ids = choose(logits, layer.aloft_routing)
    else:  # of the model, in torch's operators
        weights, ids = own(hidden_states=x, gating_output=logits, topk=layer.top_k, renormalize=layer.renormalize)
        weights, ids = weights.float(), ids.to(torch.int32)
    return run_experts(x, weights, ids, layer.aloft_experts)


def packed(weight: torch.Tensor, nz: bool) -> torch.Tensor:
    """``[E, out, in]`` to ``[E, in, out]``: in FRACTAL_NZ, or a view of the same memory."""
    turned = weight.transpose(1, 2)
    if not nz:
        return turned
    torch.npu.config.allow_internal_format = True  # type: ignore[attr-defined]
    return torch.ops.npu.npu_format_cast(turned.contiguous(), ACL_FORMAT_FRACTAL_NZ)


class AloftExpertsMethod(UnquantizedFusedMoEMethod):
    """Routing and experts in one: vLLM hands over the router's logits.

    Weights are kept ``[E, in, out]``, in FRACTAL_NZ where ``weight_nz_mode`` is 2.
    """

    def __init__(self, moe: Any) -> None:
        super().__init__(moe)
        self.pack = packing_wanted()

    @property
    def is_monolithic(self) -> bool:
        return True

    @property
    def supports_eplb(self) -> bool:
        return False

    def create_weights(self, layer: Any, *args: Any, **kwargs: Any) -> None:
        check(layer)
        super().create_weights(layer, *args, **kwargs)

    def process_weights_after_loading(self, layer: Any) -> None:
        for name in ("w13_weight", "w2_weight"):
            weight = getattr(layer, name)
            if getattr(weight, "aloft_packed", False):
                continue  # a second pass (reload of other layers, sleep) finds it as the operators take it
            made = torch.nn.Parameter(
                packed(weight.data, self.pack and weight.dtype in PACKABLE and weight.numel() > 0), requires_grad=False
            )
            made.aloft_packed = True  # type: ignore[attr-defined]
            setattr(layer, name, made)
        layer.aloft_routing = routing(layer)
        layer.aloft_experts = Experts(Projection(layer.w13_weight.data), Projection(layer.w2_weight.data))

    def apply_monolithic(
        self, layer: Any, x: torch.Tensor, router_logits: torch.Tensor, input_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        return run(layer, x, router_logits)


def replacements() -> dict[type[torch.nn.Module], type[torch.nn.Module]]:
    return {UnquantizedFusedMoEMethod: AloftExpertsMethod}
