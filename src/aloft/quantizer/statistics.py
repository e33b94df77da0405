"""What calibration text tells about the inputs of a block's linear layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from aloft.quantizer.decoder import STAGES, submodule

_BATCH = 8


@dataclass
class StageInputs:
    """Sums over calibration tokens. second: ``[K, K]`` of x xᵀ; cross: of x_float xᵀ; peak: ``[K]`` of max|x|."""

    second: torch.Tensor
    cross: torch.Tensor | None
    peak: torch.Tensor
    low: float
    high: float


@dataclass
class Stream:
    """Hidden states ``[sequences, length, hidden]`` before the next block, and its rotary tables."""

    states: torch.Tensor
    position: Any = field(repr=False)

    def batches(self) -> list[torch.Tensor]:
        return list(self.states.split(_BATCH))


@torch.inference_mode()
def advance(layer: torch.nn.Module, stream: Stream) -> Stream:
    """The hidden states after a block."""
    return Stream(torch.cat([_run(layer, batch, stream.position) for batch in stream.batches()]), stream.position)


@torch.inference_mode()
def observe(
    layer: torch.nn.Module, stream: Stream, reference: Stream | None = None, reference_layer: Any = None
) -> tuple[dict[str, StageInputs], Stream | None]:
    """Statistics of every stage's inputs; with a reference, also their products with the float model's inputs.

    Returns the statistics and the reference's hidden states after the block.
    """
    found: dict[str, StageInputs] = {}
    after: list[torch.Tensor] = []
    pairs = zip(stream.batches(), reference.batches() if reference else [None] * len(stream.batches()), strict=True)
    for states, exact in pairs:
        ours, _ = _inputs(layer, states, stream.position)
        theirs: dict[str, torch.Tensor] = {}
        if exact is not None:
            theirs, made = _inputs(reference_layer, exact, stream.position)
            after.append(made)
        for stage, x in ours.items():
            _add(found, stage, x, theirs.get(stage))
    return found, Stream(torch.cat(after), stream.position) if after else None


def _inputs(
    layer: torch.nn.Module, states: torch.Tensor, position: Any
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    seen: dict[str, torch.Tensor] = {}

    def hook(stage: str) -> Callable[..., None]:
        def keep(_: object, args: tuple[torch.Tensor, ...]) -> None:
            seen[stage] = args[0].reshape(-1, args[0].shape[-1])

        return keep

    # prepended: before any hook that rounds the activations
    handles = [
        submodule(layer, names[0]).register_forward_pre_hook(hook(stage), prepend=True)
        for stage, (names, _) in STAGES.items()
    ]
    try:
        made = _run(layer, states, position)
    finally:
        for handle in handles:
            handle.remove()
    return seen, made


def _add(found: dict[str, StageInputs], stage: str, x: torch.Tensor, exact: torch.Tensor | None) -> None:
    wide = x.float()
    second = _product(wide, wide)
    cross = None if exact is None else _product(exact.float(), wide)
    peak, low, high = wide.abs().amax(0), float(wide.min()), float(wide.max())
    held = found.get(stage)
    if held is None:
        found[stage] = StageInputs(second, cross, peak, low, high)
        return
    held.second += second
    if cross is not None:
        assert held.cross is not None
        held.cross += cross
    held.peak = torch.maximum(held.peak, peak)
    held.low, held.high = min(held.low, low), max(held.high, high)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """aᵀ b of float32 tensors that hold bfloat16 values: exact products, so the fast units of the CPU serve."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        return a.t() @ b
    finally:
        torch.set_float32_matmul_precision(before)


def _run(layer: Any, states: torch.Tensor, position: Any) -> torch.Tensor:
    made = layer(states, position_embeddings=position, attention_mask=None)
    return made[0] if isinstance(made, tuple) else made
