"""Contract of npu_top_k_top_p."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from aloft.ops.contract import EXACT, Bad, Case, Contract
from aloft.ops.generate import Maker, layouts

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def reference(logits: torch.Tensor, p: torch.Tensor | None, k: torch.Tensor | None) -> torch.Tensor:
    rows, size = logits.shape
    values, order = logits.sort(dim=1, stable=True)
    keep = torch.ones(rows, size, dtype=torch.bool)
    for row in range(rows):
        if k is not None and 0 < int(k[row]) < size:
            keep[row] = ~(values[row] < values[row, size - int(k[row])])
        if p is not None and float(p[row]) < 1:
            probability = torch.where(keep[row], values[row], -torch.inf).softmax(0)
            keep[row] &= ~(probability.cumsum(0) <= 1 - float(p[row]))
            keep[row, -1] = True
    return torch.full_like(logits, -torch.inf).scatter_(1, order, torch.where(keep, values, -torch.inf))


def _safe_p(logits: torch.Tensor, k: torch.Tensor | None, wanted: float) -> float:
    """A p near `wanted` at which no row has a cumulative probability within 1e-4 of the bound."""
    rows, size = logits.shape
    values = logits.double().sort(dim=1).values
    masked = values.clone()
    for row in range(rows):
        if k is not None and 0 < int(k[row]) < size:
            masked[row, values[row] < values[row, size - int(k[row])]] = -torch.inf
    sums = masked.softmax(1).cumsum(1)
    for step in range(200):
        p = float(torch.tensor(wanted + step * 2e-3, dtype=logits.dtype))
        if bool(((sums - (1 - p)).abs() > 1e-4).all()):
            return p
    raise ValueError("no p is far enough from all boundaries: use fewer or more spread logits")


def _spread(make: Maker, rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Logits of which a few dozen carry nearly all probability, as a language model's do."""
    logits = make.normal((rows, size), scale=2.0)
    logits += 14.0 * make.uniform((rows, size)).pow(size / 8)
    return logits.to(dtype)


def _case(label: str, logits: torch.Tensor, p: float | None, k: list[int] | None) -> Case:
    dtype, rows = logits.dtype, logits.size(0)
    counts = None if k is None else torch.tensor((k * rows)[:rows], dtype=torch.int32)
    bound = None
    if p is not None:
        value = _safe_p(logits, counts, p) if 0 < p < 1 and logits.numel() else p
        bound = torch.full((rows,), value, dtype=dtype)
    return Case(f"{label}, {dtype}", (logits, bound, counts), dtype=dtype)


def _cases() -> Iterator[Case]:
    make = Maker("npu_top_k_top_p")
    for dtype in DTYPES:
        logits = _spread(make, 5, 203, dtype)
        yield _case("both", logits, 0.7, [5, 50, 1, 100, 202])
        yield _case("only k", logits, None, [7])
        yield _case("only p", logits, 0.8, None)
        yield _case("k off", logits, 0.6, [0, -1, 203, 1000, 20])
        yield _case("p keeps everything", logits, 1.0, [20])
        yield _case("p keeps the maximum", logits, 0.0, [20])
        yield _case("p keeps the maximum, no k", logits, 0.0, None)
        yield _case("one column", logits[:, :1].contiguous(), 0.5, [1])
        yield _case("no rows", logits[:0], 0.5, [1])
        for label, view in layouts(logits):
            yield _case(label, view, 0.75, [30])
        ties = make.integers((4, 130), 0, 6).to(dtype)
        yield _case("ties with the k-th", ties, None, [1, 3, 60, 129])
    yield _case("vocabulary 49152", _spread(make, 3, 49152, torch.float32), 0.9, [50, 1024, 20000])
    yield _case("vocabulary 151936, only p", _spread(make, 2, 151936, torch.float32), 0.9, None)
    yield _case("vocabulary 151936, bf16", _spread(make, 2, 151936, torch.bfloat16), None, [40])
    tied = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0, 3.0]])
    yield Case("a boundary inside ties", (tied, torch.tensor([0.75]), None))
    masked = make.normal((4, 90))
    masked[0, 10:], masked[1, :] = -torch.inf, -torch.inf
    masked[2, 5] = torch.inf
    masked[3, 7] = torch.nan
    yield Case("-inf, +inf and NaN", (masked, torch.full((4,), 0.9), torch.full((4,), 20, dtype=torch.int32)))
    check = torch.tensor([[0.5, 0.2, 0.1001, 0.1, 0.0999]] * 2).log()
    args = (check, torch.tensor([0.85, 0.7]), torch.tensor([3, 2], dtype=torch.int32))
    yield Case("the worked example", args)


def _bad() -> Iterator[Bad]:
    make = Maker("npu_top_k_top_p, bad")
    logits, p, k = make.normal((3, 40)), make.uniform((3,)), torch.ones(3, dtype=torch.int32)
    yield Bad("neither p nor k", (logits, None, None), names="p")
    yield Bad("p of another dtype", (logits, p.half(), k), names="p")
    yield Bad("p of another length", (logits, p[:2], k), names="p")
    yield Bad("k of int64", (logits, p, k.long()), names="k")
    yield Bad("k of another length", (logits, p, k[:1]), names="k")
    yield Bad("three dimensions", (logits[None], p, k), names="logits")
    yield Bad("integers", (logits.int(), p.int(), k), names="logits")


CONTRACT = Contract(
    name="npu_top_k_top_p",
    schemas=("npu::npu_top_k_top_p",),
    formula="keep values >= the k-th largest (ties included); of those, softmax, ascending cumulative sum, remove what "
    "is <= 1 - p except the largest; removed entries become -inf.",
    dtypes=DTYPES,
    limits=(
        "logits [batch, vocabulary]; p [batch] of the same dtype; k [batch] int32; p or k may be None, not both",
        "k <= 0 or k >= vocabulary: no top-k for that row; p >= 1: no top-p; p <= 0: only the largest stays",
        "of equal logits the one with the lower index is removed first",
    ),
    tolerance=dict.fromkeys(DTYPES, EXACT),
    undefined=("tokens whose cumulative probability is within rounding of 1 - p",),
    reference=reference,
    cases=_cases,
    bad=_bad,
    source="contracts 9.3: vendor documentation and published sources",
)
