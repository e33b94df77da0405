"""The vocabulary table as integers: nearest rounding, clipped by least squared error, some rows at a time."""

from __future__ import annotations

import torch

from aloft.quantizer import grid as grids
from aloft.quantizer.block import Quantized
from aloft.quantizer.recipe import Recipe, largest_group

NAME = "model.embed_tokens"
KINDS = ("auto", "int8", "int4")
_ROWS = 8192
_GROUP = 64


def recipe(kind: str, layers: Recipe, features: int) -> Recipe | None:
    """How a table of so many features is rounded; None for ``auto``, which leaves it as it is.

    The group of 4-bit tables is that of the layers' 4-bit weights, of which ModelSlim's description knows one.

    Raises:
        ValueError: an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"--embedding must be one of {', '.join(KINDS)}, not {kind!r}")
    if kind == "auto":
        return None
    if kind == "int8":
        return Recipe("w8a16", 8)
    group = layers.group or layers.sensitive_group if layers.bits == 4 else _GROUP
    return Recipe("w4a16", 4, group=largest_group(group, features))


def quantize(table: torch.Tensor, how: Recipe) -> Quantized:
    """A table ``[vocab, hidden]`` in any float type."""
    codes, scales, zeros, wrong, whole = [], [], [], 0.0, 0.0
    for rows in table.split(_ROWS):
        values = rows.float()
        grid = grids.fit(values, how.bits, how.group, how.symmetric, scale_dtype=torch.bfloat16)
        codes.append(grid.round(values))
        scales.append(grid.scale)
        zeros.append(grid.zero)
        wrong += float((grid.value(codes[-1]) - values).square().sum())
        whole += float(values.square().sum())
    made = grids.Grid(torch.cat(scales), torch.cat(zeros), grid.group, grid.low, grid.high)
    return Quantized(torch.cat(codes), made, how, wrong / whole)
