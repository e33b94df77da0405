"""int8 keys and values: their scales as the operators that write and read the cache take them."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class CacheScales:
    """write_scale float32, write_offset int32, both ``[Hkv * D]``; read_scale, read_offset bfloat16 ``[1, Hkv * D]``.

    What is written is divided by exactly the number that is read with: a scale that bfloat16 holds.
    """

    write_scale: torch.Tensor
    write_offset: torch.Tensor
    read_scale: torch.Tensor
    read_offset: torch.Tensor | None

    @classmethod
    def of(cls, scale: torch.Tensor, offset: torch.Tensor) -> CacheScales:
        """From float32 ``[Hkv * D]``: ``q = round(x / scale + offset)``."""
        read = scale.to(torch.bfloat16)
        added = -offset.to(torch.bfloat16)[None] if bool((offset != 0).any()) else None
        return cls(read.float(), torch.round(offset).to(torch.int32), read[None], added)

    def codes(self, x: torch.Tensor) -> torch.Tensor:
        """int8 of x ``[T, Hkv, D]``, same shape."""
        flat = x.reshape(x.shape[0], -1)
        made = torch.ops.npu.npu_quantize(flat, self.write_scale, self.write_offset, torch.qint8, 1, True)
        return made.view(x.shape)


def arguments(key: CacheScales, value: CacheScales) -> dict[str, object]:
    """What the fused operator is told about the cache (mode 0: by channel)."""
    return {
        "key_antiquant_scale": key.read_scale,
        "key_antiquant_offset": key.read_offset,
        "key_antiquant_mode": 0,
        "value_antiquant_scale": value.read_scale,
        "value_antiquant_offset": value.read_offset,
        "value_antiquant_mode": 0,
    }
