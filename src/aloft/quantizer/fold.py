"""Changes of a block's weights that leave its function as it is: gains, smoothing, rotations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aloft.quantizer.decoder import STAGES, submodule
from aloft.quantizer.rotation import orthogonal
from aloft.quantizer.statistics import StageInputs


def _scale_inputs(layer: Any, names: tuple[str, ...], factor: torch.Tensor) -> None:
    for name in names:
        weight = submodule(layer, name).weight
        weight.data = weight.data.float() * factor


def fold_gains(layer: Any) -> None:
    """Multiplies the norms' gains into the linear layers that read them; a rotation then commutes with the norm."""
    for stage in ("qkv", "gate_up"):
        names, norm = STAGES[stage]
        gain = submodule(layer, norm).weight
        _scale_inputs(layer, names, gain.data.float())
        gain.data = torch.ones_like(gain.data)


def smooth(layer: Any, inputs: dict[str, StageInputs], exponent: float, head_dim: int) -> None:
    """SmoothQuant (arXiv 2211.10438): moves the spread of activation channels into the weights that read them.

    The inverse goes into the norm before them, or into the rows of the projection whose output they read. Value
    channels are shared by several query heads, so their factor is one for the group.
    """
    for stage, (names, before) in STAGES.items():
        peak = inputs[stage].peak
        width = peak.numel()
        reach = torch.stack([submodule(layer, name).weight.data.float().abs().amax(0) for name in names]).amax(0)
        if stage == "o":
            rows = submodule(layer, before).weight.shape[0]
            peak, reach = (over_group(part, rows, head_dim, torch.amax) for part in (peak, reach))
        factor = levelled(peak.clamp(min=1e-5) ** exponent / reach.clamp(min=1e-5) ** (1 - exponent))
        move(layer, stage, factor, width, head_dim)


def levelled(factor: torch.Tensor) -> torch.Tensor:
    """Factors whose geometric mean is one, none of them extreme."""
    return (factor / factor.log().mean().exp()).clamp(1 / 32, 32)


def move(layer: Any, stage: str, factor: torch.Tensor, width: int, head_dim: int) -> None:
    """Multiplies the weights of a stage by a factor an input channel, and divides what makes these inputs by it.

    factor: ``[width]``; for ``o`` one a value channel, ``[kv_heads * d]``.
    """
    names, before = STAGES[stage]
    _scale_inputs(layer, names, for_inputs(stage, factor, width, head_dim))
    source = submodule(layer, before)
    if source.weight.dim() == 1:
        source.weight.data = source.weight.data.float() / factor
    else:
        source.weight.data = source.weight.data.float() / factor[:, None]
        if source.bias is not None:
            source.bias.data = source.bias.data.float() / factor


def for_inputs(stage: str, factor: torch.Tensor, width: int, head_dim: int) -> torch.Tensor:
    """``move``'s factor, one for each of the stage's inputs ``[width]``."""
    return factor if stage != "o" else _spread_group(factor, width, head_dim)


def over_group(part: torch.Tensor, rows: int, head_dim: int, of: Callable[..., torch.Tensor]) -> torch.Tensor:
    """One value for the query heads that read each value channel: ``[heads * d]`` to ``[kv_heads * d]``."""
    kv_heads = rows // head_dim
    return of(part.view(kv_heads, -1, head_dim), 1).flatten()


def _spread_group(factor: torch.Tensor, size: int, head_dim: int) -> torch.Tensor:
    kv_heads = factor.numel() // head_dim
    group = size // factor.numel()
    return factor.view(kv_heads, 1, head_dim).expand(kv_heads, group, head_dim).flatten()


def rotate_block(layer: Any, stream: torch.Tensor, seed: int, head_dim: int) -> None:
    """Turns the residual stream by ``stream`` ``[hidden, hidden]`` and every head's values by a rotation of its own.

    The block's norms must have gains of one (``fold_gains``).
    """
    for stage in ("qkv", "gate_up"):
        for name in STAGES[stage][0]:
            weight = submodule(layer, name).weight
            weight.data = (weight.data.double() @ stream).float()
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        module = submodule(layer, name)
        module.weight.data = (stream.t() @ module.weight.data.double()).float()
        if module.bias is not None:
            module.bias.data = (stream.t() @ module.bias.data.double()).float()
    turn = orthogonal(head_dim, seed)
    value, output = submodule(layer, "self_attn.v_proj"), submodule(layer, "self_attn.o_proj")
    hidden = value.weight.shape[1]
    value.weight.data = (turn.t() @ value.weight.data.double().view(-1, head_dim, hidden)).float().reshape(-1, hidden)
    if value.bias is not None:
        value.bias.data = (value.bias.data.double().view(-1, head_dim) @ turn).float().flatten()
    rows = output.weight.shape[0]
    output.weight.data = (output.weight.data.double().view(rows, -1, head_dim) @ turn).float().reshape(rows, -1)
