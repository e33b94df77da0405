"""Contract of aloft::sample_tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.contracts import draw_tokens, npu_top_k_top_p
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS


def _reference(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    numbers: torch.Tensor,
    pieces: int,
) -> torch.Tensor:
    """One step after the other, in float32 as the operator."""
    greedy = temperature < 1e-5
    x = logits.float() / torch.where(greedy, 1, temperature).float().unsqueeze(1)
    x = npu_top_k_top_p.reference(x, top_p, top_k)
    probs = x.softmax(1)
    sums = probs.reshape(len(probs), pieces, probs.shape[1] // pieces).double().sum(-1).float()
    drawn = draw_tokens.reference(probs, sums, numbers)
    return torch.where(greedy, logits.argmax(1), drawn).int().unsqueeze(1)


def _operands(
    make: Maker, rows: int, vocabulary: int, pieces: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int]:
    logits = make.normal((rows, vocabulary), dtype, scale=3)
    temperature = make.uniform((rows,), low=0.3, high=1.8)
    top_k = make.integers((rows,), -1, max(2, vocabulary // 4), torch.int32)
    return logits, temperature, top_k, make.uniform((rows,), low=0.4, high=1.2), make.uniform((rows, 1)), pieces


def _cases() -> Iterator[Case]:
    make = Maker("sample_tokens")
    for dtype in FLOATS:
        for rows, vocabulary, pieces in ((1, 1, 1), (2, 49152, 96), (33, 640, 5), (4, 1009, 1), (7, 24, 24), (0, 8, 2)):
            x, t, k, p, number, _ = _operands(make, rows, vocabulary, pieces, dtype)
            label = f"[{rows}, {vocabulary}] in {pieces}, {dtype}"
            yield Case(label, (x, t, None, None, number, pieces), dtype=dtype)
            yield Case(f"{label}, top-k", (x, t, k, None, number, pieces), dtype=dtype)
            yield Case(f"{label}, top-k and top-p", (x, t, k, p, number, pieces), dtype=dtype)
        x, t, k, p, number, pieces = _operands(make, 9, 300, 3, dtype)
        t[::2] = 0
        t[1] = 9e-6
        yield Case(f"greedy rows between, {dtype}", (x, t, k, p, number, pieces), dtype=dtype)
    for end in (0.0, 1 - 2.0**-24):
        x, t, k, p, number, pieces = _operands(make, 40, 512, 4)
        yield Case(f"number {end}", (x, t, None, None, torch.full_like(number, end), pieces))
        yield Case(f"number {end}, top-k", (x, t, torch.ones_like(k), None, torch.full_like(number, end), pieces))
    x, t, k, p, number, pieces = _operands(make, 5, 40, 4)
    for label, view in layouts(x):
        yield Case(label, (view, t, k, None, number, pieces))


def _bad() -> Iterator[Bad]:
    make = Maker("sample_tokens, bad")
    x, t, k, p, number, pieces = _operands(make, 3, 12, 4)
    yield Bad("one dimension", (x[0], t, k, p, number, pieces), names="logits")
    yield Bad("integers", (x.long(), t, k, p, number, pieces), names="logits")
    yield Bad("no vocabulary", (x[:, :0], t, k, p, number, pieces), names="logits")
    yield Bad("temperatures of other rows", (x, t[:2], k, p, number, pieces), names="temperature")
    yield Bad("top_k in 64 bits", (x, t, k.long(), p, number, pieces), names="top_k")
    yield Bad("top_p in half precision", (x, t, k, p.half(), number, pieces), names="top_p")
    yield Bad("two numbers a row", (x, t, k, p, number.expand(3, 2), pieces), names="numbers")
    yield Bad("pieces that do not divide it", (x, t, k, p, number, 5), names="pieces")
    yield Bad("no pieces", (x, t, k, p, number, 0), names="pieces")


CONTRACT = Contract(
    name="sample_tokens",
    schemas=("aloft::sample_tokens",),
    formula="draw_tokens of the softmax of what npu_top_k_top_p leaves of logits [B, V] / temperature [B], as int32 "
    "[B, 1]; the arg-max where the temperature is below 1e-5.",
    dtypes=FLOATS,
    limits=("logits [B, V] of any strides, at least one column", "pieces divides V", "top_k and top_p optional, [B]"),
    tolerance={},
    reference=_reference,
    cases=_cases,
    bad=_bad,
    widen=False,
    optional=True,
    source="aloft: random sampling; thirty operators on CANN",
)
