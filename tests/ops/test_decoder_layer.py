"""The fused operators of a decoder layer and the composites that stand in for them give the same bits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401

from aloft.ops import decoder_layer, draw, greedy
from aloft.ops.contracts import (
    attention_input,
    decoder_stack,
    draw_tokens,
    gated_matmul,
    greedy_tokens,
    mlp_block,
)
from aloft.ops.execute import as_outputs

CONTRACTS = (attention_input.CONTRACT, decoder_stack.CONTRACT, gated_matmul.CONTRACT, mlp_block.CONTRACT)


def moved(value: Any) -> Any:
    """A copy of a call's operands on the device."""
    if isinstance(value, torch.Tensor):
        return value.to("npu")
    if isinstance(value, (list, tuple)):
        return type(value)(map(moved, value))
    return value


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_composites_give_the_same_bits(contract: Any) -> None:
    assert decoder_layer.native()
    fused, composite = getattr(torch.ops.aloft, contract.name), getattr(decoder_layer, contract.name)
    for case in contract.cases():
        kwargs = {name: moved(value) for name, value in case.kwargs.items()}
        first, named = contract.prepare(moved(case.args), kwargs)
        second, _ = contract.prepare(moved(case.args), dict(kwargs))
        got, want = as_outputs(fused(*first, **named)), as_outputs(composite(*second, **named))
        for place, (left, right) in enumerate(zip(got, want, strict=True)):
            assert left.dtype == right.dtype
            assert torch.equal(left.cpu(), right.cpu()), f"{case.label}: output {place}"
        for left, right in zip(tensors(first), tensors(second), strict=True):
            if left.dim() == 4 and torch.ops.npu.get_npu_format(left) == 2:
                assert torch.equal(left.cpu(), right.cpu()), f"{case.label}: a cache"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_meta_tensors_give_shapes_and_refusals(dtype: torch.dtype) -> None:
    x, weight = torch.empty(3, 16, dtype=dtype, device="meta"), torch.empty(16, 20, dtype=dtype, device="meta")
    assert torch.ops.aloft.gated_matmul(x, weight).shape == (3, 10)
    with pytest.raises(ValueError, match="gate_up_weight"):
        torch.ops.aloft.gated_matmul(x, weight[:, :19])
    case = next(case for case in mlp_block.CONTRACT.cases() if case.dtype == dtype)
    args = [value.to("meta") if isinstance(value, torch.Tensor) else value for value in case.args]
    hidden, residual = torch.ops.aloft.mlp_block(*args)
    assert hidden.shape == residual.shape == case.args[1].shape and hidden.is_meta
    case = next(case for case in attention_input.CONTRACT.cases() if case.dtype == dtype)
    args = [value.to("meta") if isinstance(value, torch.Tensor) else value for value in case.args]
    query, total = torch.ops.aloft.attention_input(*args)
    assert query.shape == (7, 6, 64) and total.shape == (7, 192) and query.is_meta


def test_captured_and_replayed_with_new_values() -> None:
    """A replay reads what the tensors hold then: hidden states, tables and slots."""
    case = next(case for case in attention_input.CONTRACT.cases() if case.dtype == torch.bfloat16)
    args = moved(case.args)
    hidden, slots = args[0], args[11]
    _behind(*torch.ops.aloft.attention_input(*args))  # its weights are made outside of the graph
    graph = torch.npu.NPUGraph()
    torch.npu.synchronize()
    with torch.npu.graph(graph):
        query, total = torch.ops.aloft.attention_input(*args)
        made, residual = torch.ops.aloft.mlp_block(*_behind(query, total))
    for seed in (1, 2):
        torch.manual_seed(seed)
        hidden.copy_(torch.randn(hidden.shape).to(hidden.dtype))
        slots.copy_(torch.randperm(80)[: len(slots)])
        graph.replay()
        torch.npu.synchronize()
        fresh = moved(case.args)
        fresh[0].copy_(hidden), fresh[11].copy_(slots)
        want_query, want_total = torch.ops.aloft.attention_input(*fresh)
        want = torch.ops.aloft.mlp_block(*_behind(want_query, want_total))
        assert torch.equal(query.cpu(), want_query.cpu()) and torch.equal(total.cpu(), want_total.cpu())
        assert torch.equal(made.cpu(), want[0].cpu()) and torch.equal(residual.cpu(), want[1].cpu())


def test_memory_in_between_does_not_grow_with_the_step_in_blocks() -> None:
    """What mlp_block takes beside its results: in blocks the same for 4,096 tokens as for 2,048, else twice as much."""
    width, inner = 64, 1024

    def weight(rows: int, cols: int) -> torch.Tensor:
        return torch.zeros(rows, cols, dtype=torch.bfloat16, device="npu")

    weights = (weight(width, width), None, weight(1, width)[0], 1e-5, weight(width, 2 * inner), None)
    down = weight(inner, width)

    def taken(tokens: int, block_rows: int) -> int:
        rows = weight(tokens, width)
        torch.npu.synchronize()
        torch.npu.reset_peak_memory_stats()
        before = torch.npu.memory_allocated()
        made = torch.ops.aloft.mlp_block(rows, rows, *weights, down, None, block_rows)
        torch.npu.synchronize()
        return torch.npu.max_memory_allocated() - before - sum(result.nbytes for result in made)

    blocked = [taken(tokens, 512) for tokens in (2048, 4096)]
    whole = [taken(tokens, 0) for tokens in (2048, 4096)]
    assert blocked[0] == blocked[1] >= 512 * inner * 2
    assert whole[1] > 1.9 * whole[0] and whole[0] > 3 * blocked[0]


_WEIGHTS: dict[tuple[int, ...], torch.Tensor] = {}


def _behind(query: torch.Tensor, total: torch.Tensor) -> tuple[Any, ...]:
    def weight(rows: int, cols: int) -> torch.Tensor:
        if (rows, cols) not in _WEIGHTS:
            _WEIGHTS[rows, cols] = (torch.randn(rows, cols) * rows**-0.5).to(query.dtype).to("npu")
        return _WEIGHTS[rows, cols]

    rows, width = query.flatten(1), total.shape[1]
    norm = weight(1, width)[0].contiguous()
    return rows, total, weight(rows.shape[1], width), None, norm, 1e-5, weight(width, 64), None, weight(32, width), None


def test_greedy_tokens_are_those_of_argmax() -> None:
    for case in greedy_tokens.CONTRACT.cases():
        logits = case.args[0].to("npu")
        got, want = greedy.tokens(logits), greedy.composite(logits)
        assert got.dtype == want.dtype == torch.int32 and torch.equal(got.cpu(), want.cpu()), case.label


def test_drawn_tokens_are_those_of_the_composite() -> None:
    for case in draw_tokens.CONTRACT.cases():
        if case.args[1] is None:
            continue  # the composite sums in float32
        operands = [argument.to("npu") for argument in case.args]
        got, want = draw.tokens(*operands), draw.composite(*operands)
        assert got.dtype == want.dtype == torch.int64 and torch.equal(got.cpu(), want.cpu()), case.label


def test_ensure_defines_the_operators_where_nothing_else_does() -> None:
    program = """
import torch
from aloft.ops import decoder_layer, greedy
assert not hasattr(torch.ops.aloft, "mlp_block")
decoder_layer.ensure()
decoder_layer.ensure()
assert not decoder_layer.native()
for schema in decoder_layer.SCHEMAS:
    assert hasattr(torch.ops.aloft, schema.split("(")[0])
"""
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_schemas_are_those_of_the_native_operators() -> None:
    for schema in decoder_layer.SCHEMAS:
        name = schema.split("(")[0]
        text = str(getattr(torch.ops.aloft, name).default._schema)
        assert text == str(torch._C.parse_schema(f"aloft::{schema}")), name
