"""Contract of npu_attention_update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from aloft.ops.contract import Bad, Case, Contract
from aloft.ops.families.attention import BF16, F16, F32, TOLERANCE
from aloft.ops.generate import Maker


def _reference(
    lse: Sequence[torch.Tensor], local_out: Sequence[torch.Tensor], update_type: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    total = torch.stack(list(lse)).logsumexp(0)
    out = sum((part - total).exp()[:, None] * value for part, value in zip(lse, local_out, strict=True))
    assert isinstance(out, torch.Tensor)
    return out, total if update_type else None


def _cases() -> Iterator[Case]:
    make = Maker("npu_attention_update")
    for dtype in (F32, F16, BF16):
        for parts, rows, d in ((1, 3, 8), (2, 1, 64), (5, 70, 40), (16, 9, 512), (3, 0, 64)):
            lse = [make.normal((rows,), F32, scale=5.0) for _ in range(parts)]
            if rows > 2:
                lse[-1][1] = -1e30  # a part that saw nothing
            local = [make.normal((rows, d), dtype) for _ in range(parts)]
            for kind in (0, 1):
                label = f"{parts} parts of [{rows}, {d}], update_type {kind}, {dtype}"
                yield Case(label, (lse, local, kind), dtype=dtype, returns=(dtype, F32))


def _bad() -> Iterator[Bad]:
    make = Maker("npu_attention_update, bad")
    lse = [make.normal((4,)) for _ in range(2)]
    local = [make.normal((4, 16)) for _ in range(2)]
    yield Bad("a part too few", (lse, local[:1], 0), names="local_out")
    yield Bad("half precision lse", ([t.half() for t in lse], local, 0), names="lse")
    yield Bad("rows differ", (lse, [local[0], local[1][:3]], 0), names="local_out")
    yield Bad("update_type 2", (lse, local, 2), names="update_type")
    yield Bad("head size 12", (lse, [t[:, :12].contiguous() for t in local], 0), names="D = 12", strict=True)


CONTRACT = Contract(
    name="npu_attention_update",
    schemas=("npu::npu_attention_update",),
    formula="lse = ln Σ exp(lse_i); out = Σ exp(lse_i - lse) · out_i.",
    dtypes=(F32, F16, BF16),
    limits=(
        "1 to 16 parts; lse fp32 [N], local_out [N, D] of one dtype, D a multiple of 8 in 8..512",
        "update_type 0 returns out only, 1 also lse",
        "a row whose parts are all -inf gives NaN: make them finite before",
    ),
    tolerance=TOLERANCE,
    reference=_reference,
    cases=_cases,
    bad=_bad,
    source="contracts 5.7",
)
