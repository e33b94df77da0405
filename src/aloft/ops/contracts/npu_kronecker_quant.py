"""Contract of npu_kronecker_quant, the FlatQuant transform. Operands are chosen so that every sum is exact."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.generate import Maker, layouts
from aloft.ops.quant import by_operand, pack_int4, saturate

HALVES = (torch.float16, torch.bfloat16)


def _reference(
    x: torch.Tensor, kronecker_p1: torch.Tensor, kronecker_p2: torch.Tensor, clip_ratio: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = x.dtype
    inner = (x.double() @ kronecker_p2.double()).to(dtype)
    z = (kronecker_p1.double() @ inner.double()).to(dtype).float()
    clip, seven = torch.tensor(1.0 if clip_ratio is None else clip_ratio), torch.tensor(7.0)
    largest = z.abs().amax((-2, -1))
    factor = torch.where(largest > 0, seven / clip / largest, torch.zeros(()))
    return pack_int4(saturate(z * factor[:, None, None], -8, 7, torch.int8)), largest * clip / seven


def _cases() -> Iterator[Case]:
    make = Maker("npu_kronecker_quant")
    returns = (None, torch.float32)
    for dtype in HALVES:
        for m, n1, n2 in ((1, 1, 8), (5, 3, 16), (3, 24, 24), (2, 18, 32), (40, 5, 48)):
            x = (make.integers((m, n1, n2), -16, 17) / 8).to(dtype)
            p1 = (make.integers((n1, n1), -4, 5) / 4).to(dtype)
            p2 = (make.integers((n2, n2), -4, 5) / 4).to(dtype)
            yield Case(f"{m}x{n1}x{n2}, {dtype}", (x, p1, p2), returns=returns)
            yield Case(f"{m}x{n1}x{n2}, clipped, {dtype}", (x, p1, p2), {"clip_ratio": 0.75}, returns=returns)
        known = torch.tensor([[[7, -3.5, 2.5, 0, 0, 0, 0, 0]]], dtype=dtype)
        yield Case(f"ties, {dtype}", (known, torch.ones(1, 1, dtype=dtype), torch.eye(8, dtype=dtype)), returns=returns)
        x = torch.zeros(2, 4, 8, dtype=dtype)
        x[1, 2, 3] = 1.0
        args = (x, torch.eye(4, dtype=dtype), torch.eye(8, dtype=dtype))
        yield Case(f"a token of zeros, {dtype}", args, returns=returns)
        for label, view in layouts((make.integers((3, 4, 16), -16, 17) / 8).to(dtype)):
            args = (view, torch.eye(4, dtype=dtype), torch.eye(16, dtype=dtype))
            yield Case(f"{label}, {dtype}", args, returns=returns)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_kronecker_quant, bad")
    x, p1, p2 = make.normal((2, 4, 16)).half(), torch.eye(4).half(), torch.eye(16).half()
    yield Bad("p1 too small", (x, torch.eye(3).half(), p2), names="kronecker_p1")
    yield Bad("p2 of another dtype", (x, p1, p2.float()), names="kronecker_p2")
    yield Bad("float32", (x.float(), p1.float(), p2.float()), names="x")
    yield Bad("clip ratio above 1", (x, p1, p2), {"clip_ratio": 1.5}, names="clip_ratio")
    wide = make.normal((1, 1, 264)).half()
    yield Bad("n2 of 264", (wide, torch.eye(1).half(), torch.eye(264).half()), names="256", strict=True)


CONTRACT = Contract(
    name="npu_kronecker_quant",
    schemas=("npu::npu_kronecker_quant",),
    formula="z = p1 @ (x @ p2); m = max |z| of a token; out = sat4(rint(z · (7 / clip_ratio / m))), packed; "
    "scale = m · clip_ratio / 7.",
    dtypes=HALVES,
    limits=(
        "x [tokens, n1, n2], p1 [n1, n1], p2 [n2, n2], all of one dtype; n1, n2 at most 256, n2 a multiple of 8",
        "x @ p2 and z are rounded to the dtype of x",
        "out int32 [tokens, n1, n2 / 8]; a token of zeros gives zeros and scale 0",
    ),
    tolerance={torch.float32: EXACT},
    reference=_reference,
    cases=lambda: by_operand(_cases()),
    bad=_bad,
    widen=False,
    source="contracts 7.12: vendor sources",
)
