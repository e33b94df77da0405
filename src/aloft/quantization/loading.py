"""What came of a layer's tensors: vLLM asks nobody for those that did not, nor whether they hold numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from vllm.config import get_current_vllm_config_or_none


class Loading:
    """Notes the loads of one quantized layer's parameters, and judges them once all are over."""

    def __init__(self, name: str) -> None:
        self.name = name
        vllm_config = get_current_vllm_config_or_none()
        # random weights come from no checkpoint
        self.dummy = vllm_config is not None and vllm_config.load_config.load_format == "dummy"
        self._came: dict[int, set[Any]] = {}

    def noting(self, loader: Callable[..., None] | None) -> Callable[..., None] | None:
        """The loader, remembering which shards of which parameter came, and naming those of a wrong size."""
        if loader is None:
            return None

        def load(parameter: torch.nn.Parameter, loaded: torch.Tensor, *shard: Any, **named: Any) -> None:
            which = shard[0] if shard else named.get("loaded_shard_id")
            check_codes(self.name, getattr(parameter, "aloft_key", "tensor"), parameter, loaded)
            try:
                loader(parameter, loaded, *shard, **named)
            except (AssertionError, RuntimeError) as error:
                # vLLM asserts sizes without a word
                part = "" if which is None else f" (part {which})"
                raise ValueError(
                    f"{self.name}: the checkpoint's {getattr(parameter, 'aloft_key', 'tensor')}{part} of shape "
                    f"{list(loaded.shape)} does not fit the {list(parameter.shape)} its description asks for: the "
                    "group size, the width or the layer's sizes are not those it was made with."
                ) from error
            self._came.setdefault(id(parameter), set()).update(which if isinstance(which, tuple) else (which,))

        return load

    def check(self, layer: torch.nn.Module, names: Sequence[str], parts: int, signed_scales: bool = False) -> None:
        """Raises ValueError where the checkpoint lacks one of the named tensors, or holds what no scale can be.

        Args:
            parts: layers fused into this one. signed_scales: scales may be negative or zero, as GGUF's are.
        """
        for name in names:
            parameter = getattr(layer, name)
            if self.fill(name, parameter.data):
                continue
            came = self._came.get(id(parameter), set())
            if None not in came and len(came) < parts:
                told = f" (only the parts {sorted(map(str, came))} of it)" if came else ""
                raise ValueError(f"{self.name}: the checkpoint has no {name}{told}.")
            self.check_values(name, parameter.data, signed_scales)

    def fill(self, name: str, values: torch.Tensor) -> bool:
        """Whether weights are random, from no checkpoint; if so gives what is not a code a value one could have."""
        if self.dummy:
            _make_plausible(name, values)
        return self.dummy

    def check_values(self, name: str, values: torch.Tensor, signed_scales: bool = False) -> None:
        """Raises ValueError for numbers that are not finite, and scales that are not positive but have to be."""
        if not values.is_floating_point():
            return
        positive = "scale" in name and not signed_scales
        good = values.isfinite()
        if positive:
            good &= values > 0
        if bool(good.all()):
            return
        bad = values[~good]
        raise ValueError(
            f"{self.name}: the checkpoint's {name} must be {'positive and ' if positive else ''}finite; {bad.numel()} "
            f"of its {values.numel()} values are not, such as {float(bad.flatten()[0])}."
        )


def check_codes(layer: str, key: str, parameter: torch.Tensor, loaded: torch.Tensor) -> None:
    """Raises ValueError for fractions in the place of integers, which a copy would cut off without a word."""
    if parameter.is_floating_point() or not loaded.is_floating_point():
        return
    if not torch.equal(loaded.to(parameter.dtype).to(loaded.dtype), loaded):
        raise ValueError(
            f"{layer}: the checkpoint's {key} is of {loaded.dtype} and no integers; its description asks for "
            f"{parameter.dtype}."
        )


def _make_plausible(name: str, values: torch.Tensor) -> None:
    """Gives what is not a code a value that a checkpoint could have."""
    if values.is_floating_point() and "offset" in name:
        values.zero_()
    elif values.is_floating_point() and ("scale" in name or name == "clip_ratio"):
        values.fill_(0.01)
