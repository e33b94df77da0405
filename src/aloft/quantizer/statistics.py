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
    """Sums over calibration tokens. second: ``[K, K]`` of x xᵀ; peak: ``[K]`` of max|x|. sample: some of the
    inputs, ``[n, K]``."""

    second: torch.Tensor
    peak: torch.Tensor
    low: float
    high: float
    sample: torch.Tensor


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
def observe(layer: torch.nn.Module, stream: Stream) -> dict[str, StageInputs]:
    """Statistics of every stage's inputs."""
    found: dict[str, StageInputs] = {}
    for states in stream.batches():
        for stage, x in _inputs(layer, states, stream.position).items():
            _add(found, stage, x)
    return found


def _inputs(layer: torch.nn.Module, states: torch.Tensor, position: Any) -> dict[str, torch.Tensor]:
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
        _run(layer, states, position)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _add(found: dict[str, StageInputs], stage: str, x: torch.Tensor) -> None:
    wide = x.float()
    second = _product(wide, wide)
    peak, low, high = wide.abs().amax(0), float(wide.min()), float(wide.max())
    held = found.get(stage)
    if held is None:
        found[stage] = StageInputs(second, peak, low, high, wide[::16].clone())
        return
    held.second += second
    held.peak = torch.maximum(held.peak, peak)
    held.low, held.high = min(held.low, low), max(held.high, high)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """aᵀ b of float32 tensors that hold bfloat16 values: exact products, so the fast units of the CPU serve."""
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        return a.t() @ b
    finally:
        matmul.fp32_precision = before


class _CachePeaks:
    """Stands where a block keeps its keys and values, and notes their largest magnitudes, each ``[Hkv * D]``."""

    def __init__(self) -> None:
        self.peaks: list[torch.Tensor] = []

    def update(self, key: torch.Tensor, value: torch.Tensor, *_: object, **__: object) -> tuple[Any, Any]:
        now = [part.float().abs().amax((0, 2)).flatten() for part in (key, value)]  # from [B, Hkv, T, D]
        self.peaks = now if not self.peaks else [torch.maximum(*pair) for pair in zip(self.peaks, now, strict=True)]
        return key, value


@torch.inference_mode()
def cache_peaks(layer: torch.nn.Module, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest magnitude of each key channel (after the rotary embedding) and value channel, each ``[Hkv * D]``."""
    noted = _CachePeaks()
    for states in stream.batches():
        _run(layer, states, stream.position, noted)
    key, value = noted.peaks
    return key, value


def _run(layer: Any, states: torch.Tensor, position: Any, cache: Any = None) -> torch.Tensor:
    made = layer(states, position_embeddings=position, attention_mask=None, past_key_values=cache)
    return made[0] if isinstance(made, tuple) else made
