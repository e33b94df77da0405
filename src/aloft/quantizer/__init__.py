"""``aloft quantize``: makes quantized checkpoints of bfloat16 models on the CPU, without vLLM.

from aloft.quantizer import Settings, quantize
quantize("SmolLM2-135M", "out", Settings("w4a16"), calibration="text.txt")
"""

from __future__ import annotations

from typing import Any

__all__ = ["Result", "Settings", "quantize"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from aloft.quantizer import run

        return getattr(run, name)
    raise AttributeError(name)
