"""The attention reference itself, and that the contract cases notice the mistakes attention code makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_npu  # noqa: F401

from aloft.ops import attention
from aloft.ops.compare import compare
from aloft.ops.contract import Case, Contract
from aloft.ops.contracts import npu_fused_infer_attention_score, npu_fused_infer_attention_score_v2, paged_attention
from aloft.ops.execute import reference_outputs

VISIBLE, ATTEND, READ_PAGES = attention.visible, attention.attend, attention.read_pages


def test_attend_is_scaled_dot_product_attention() -> None:
    query, key, value = (torch.randn(n, h, 16, dtype=torch.float64) for n, h in ((7, 6), (11, 2), (11, 2)))
    shown = attention.visible(7, 11, 3)
    out, lse = attention.attend(query, key, value, 0.3, shown)
    batched = (t.transpose(0, 1)[None] for t in (query, key, value))
    want = F.scaled_dot_product_attention(*batched, attn_mask=shown, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(out, want[0].transpose(0, 1))
    scores = torch.einsum("qhd,khd->qhk", query, key.repeat_interleave(3, 1)) * 0.3
    torch.testing.assert_close(lse, scores.masked_fill(~shown[:, None], -math.inf).logsumexp(-1))


def test_visible_keys_as_documented() -> None:
    # Contracts 6.1, the worked example: 2 queries, 5 keys.
    assert attention.visible(2, 5, 3).tolist() == [[True] * 4 + [False], [True] * 5]
    window = attention.visible(2, 5, 4, 2, 0).tolist()
    assert window == [[False, True, True, True, False], [False, False, True, True, True]]
    assert attention.visible(2, 5, 2).sum(1).tolist() == [1, 2]
    assert attention.visible(2, 5, 0, 0, 0).all()
    assert attention.visible(2, 5, 0, 0, 1, banded=True).sum(1).tolist() == [2, 2]


def test_learnable_sink_as_documented() -> None:
    query, key = torch.ones(1, 1, 1, dtype=torch.float64), torch.tensor([[[1.0]], [[0.0]]], dtype=torch.float64)
    value = torch.eye(2, dtype=torch.float64)[:, None]
    out, lse = attention.attend(query, key, value, 1.0, torch.ones(1, 2, dtype=torch.bool), sinks=torch.zeros(1))
    torch.testing.assert_close(out.flatten(), torch.tensor([0.576117, 0.211942]).double(), rtol=0, atol=1e-6)
    assert lse.item() == pytest.approx(1.313262, abs=1e-6)


Measured = list[tuple[Contract, Case, list[torch.Tensor]]]


@pytest.fixture(scope="module")
def measured() -> Measured:
    """What the device computes for a choice of contract cases."""
    choice = (
        (npu_fused_infer_attention_score.CONTRACT, torch.ops.npu.npu_fused_infer_attention_score, slice(0, 6)),
        (npu_fused_infer_attention_score.CONTRACT, torch.ops.npu.npu_fused_infer_attention_score, slice(15, 17)),
        (
            npu_fused_infer_attention_score_v2.CONTRACT,
            torch.ops.npu.npu_fused_infer_attention_score_v2,
            slice(-4, None),
        ),
        (paged_attention.CONTRACT, torch.ops.aloft.paged_attention, slice(0, 5)),
    )
    found = []

    def move(value: Any) -> Any:
        return value.npu() if isinstance(value, torch.Tensor) else value

    for contract, operator, cases in choice:
        for case in list(contract.cases())[cases]:
            results = operator(*map(move, case.args), **{k: move(v) for k, v in case.kwargs.items()})
            found.append((contract, case, [t.cpu() for t in results]))
    return found


def mismatches(measured: Measured) -> int:
    wrong = 0
    for contract, case, outputs in measured:
        wanted = reference_outputs(contract, case).outputs
        pairs = enumerate(zip(outputs, wanted, strict=True))
        wrong += any(
            compare(t, want, contract.tolerance_of(case, t.dtype, i)).problem is not None for i, (t, want) in pairs
        )
    return wrong


def test_unchanged_reference_agrees(measured: Measured) -> None:
    assert mismatches(measured) == 0


def mask_off_by_one(q_len: int, kv_len: int, mode: int, *args: Any, **kwargs: Any) -> torch.Tensor:
    shown = VISIBLE(q_len, kv_len, mode, *args, **kwargs)
    return torch.cat([shown[:, 1:], shown[:, -1:]], 1) if kv_len else shown


def window_off_by_one(
    q_len: int, kv_len: int, mode: int, pre: int = 1 << 31, *args: Any, **kwargs: Any
) -> torch.Tensor:
    return VISIBLE(q_len, kv_len, mode, pre + 1, *args, **kwargs)


def left_top(q_len: int, kv_len: int, mode: int, *args: Any, **kwargs: Any) -> torch.Tensor:
    return VISIBLE(q_len, kv_len, 2 if mode == 3 else mode, *args, **kwargs)


def wrong_block(cache: torch.Tensor, table: torch.Tensor, *args: Any) -> torch.Tensor:
    return READ_PAGES(cache.nan_to_num(), table.roll(1), *args)


def stale_token(cache: torch.Tensor, table: torch.Tensor, length: int, heads: int) -> torch.Tensor:
    rows = READ_PAGES(cache, table, length, heads).clone()
    rows[-1:] = 0.5
    return rows


def swapped_heads(cache: torch.Tensor, table: torch.Tensor, length: int, heads: int) -> torch.Tensor:
    return READ_PAGES(cache, table, length, heads).flip(1)


def interleaved_groups(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    group = query.size(1) // key.size(1)
    return ATTEND(query, key.repeat(1, group, 1), value.repeat(1, group, 1), *args, **kwargs)


def scaled_twice(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, *args: Any, **kwargs: Any
) -> Any:
    return ATTEND(query, key, value, scale * scale, *args, **kwargs)


def no_cap(*args: Any, soft_cap: float = 0.0, **kwargs: Any) -> Any:
    return ATTEND(*args, **kwargs)


def no_sinks(*args: Any, sinks: Any = None, **kwargs: Any) -> Any:
    return ATTEND(*args, **kwargs)


def sinks_in_the_sum(*args: Any, sinks: torch.Tensor | None = None, **kwargs: Any) -> Any:
    out, lse = ATTEND(*args, sinks=sinks, **kwargs)
    return out, lse if sinks is None else torch.logaddexp(lse, sinks.double())


MUTANTS: dict[str, list[Callable[..., Any]]] = {
    "visible": [mask_off_by_one, window_off_by_one, left_top],
    "read_pages": [wrong_block, stale_token, swapped_heads],
    "attend": [interleaved_groups, scaled_twice, no_cap, no_sinks, sinks_in_the_sum],
}


def mutants() -> Iterator[Any]:
    for name, functions in MUTANTS.items():
        for function in functions:
            yield pytest.param(name, function, id=function.__name__)


@pytest.mark.parametrize(("name", "mutant"), mutants())
def test_mutants_are_noticed(
    name: str, mutant: Callable[..., Any], measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, name, mutant)
    assert mismatches(measured) > 0
