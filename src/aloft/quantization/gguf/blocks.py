"""Blocks of 32 weights along a row, as GGUF packs them: ``w = (code - offset) * scale``.

| type | bytes of a block | weights |
|---|---|---|
| Q8_0 | float16 d, 32 int8 q | ``q d`` |
| Q4_0 | float16 d, 16 bytes of nibbles q | ``(q - 8) d`` |
| Q4_1 | float16 d, float16 m, 16 bytes of nibbles q | ``q d + m`` |

The low nibbles of a block are its first 16 weights, the high ones the others.
"""

from __future__ import annotations

import numpy
import torch

GROUP = 32
#: type -> bits of its codes
BITS = {"Q8_0": 8, "Q4_0": 4, "Q4_1": 4}
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def keeps_codes(name: str, kind: str) -> bool:
    """Whether a tensor of this name in the file, and of this type, is served as codes and scales."""
    return kind in BITS and name != "output.weight"


def split(raw: numpy.ndarray, kind: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes int8 ``[N, K]`` (4-bit ones from -8 to 7), scale and offset float32 ``[N, K / 32]``.

    raw: uint8 ``[N, bytes a row]``. A Q4_1 block of equal weights, whose d is 0, gets its m as the scale.
    """
    rows = raw.shape[0]
    heads = {"Q8_0": 1, "Q4_0": 1, "Q4_1": 2}[kind]
    block = 2 * heads + GROUP * BITS[kind] // 8
    blocks = numpy.ascontiguousarray(raw).reshape(rows, -1, block)
    numbers = blocks[..., : 2 * heads].copy().view(numpy.float16).astype(numpy.float32)
    scale, offset = torch.from_numpy(numbers[..., 0].copy()), torch.zeros(rows, blocks.shape[1])
    packed = torch.from_numpy(blocks[..., 2 * heads :].copy())
    if kind == "Q8_0":
        return packed.view(torch.int8).reshape(rows, -1), scale, offset
    codes = (torch.cat((packed & 15, packed >> 4), dim=-1).to(torch.int8) - 8).reshape(rows, -1)
    if kind == "Q4_1":
        lowest = torch.from_numpy(numbers[..., 1].copy())
        flat = scale == 0
        codes = codes.masked_fill(flat.repeat_interleave(GROUP, 1), 0)
        offset = -torch.where(flat, 1.0, lowest / torch.where(flat, 1.0, scale) + 8)
        scale = torch.where(flat, lowest, scale)
    return codes, scale, offset


def floats(raw: numpy.ndarray, kind: str, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor as float32, or in the float type it is stored in.

    Raises:
        ValueError: the gguf library cannot dequantize the type.
    """
    if kind in FLOATS:
        return torch.from_numpy(raw.copy()).view(FLOATS[kind]).reshape(shape)
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        values = dequantize(raw, GGMLQuantizationType[kind])
    except NotImplementedError as error:
        raise ValueError(f"the gguf library cannot dequantize the type {kind}") from error
    return torch.from_numpy(values).reshape(shape)
