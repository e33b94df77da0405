"""Mixtures of experts in operators against float64, whatever the router and the number of tokens."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from aloft.ops.experts import Experts, Routing, choose, run_experts
from aloft.ops.projection import Projection

E, K, HIDDEN, WIDTH = 8, 2, 96, 40


def _float_reference(x, weights, ids, up, down):
    made = torch.zeros(x.shape, dtype=torch.float64)
    for t, j in itertools.product(range(len(x)), range(ids.shape[1])):
        gate, value = (x[t].double() @ up[ids[t, j]].double()).chunk(2)
        inner = torch.nn.functional.silu(gate) * value
        made[t] += weights[t, j].double() * (inner @ down[ids[t, j]].double())
    return made


def _ids(tokens):
    """Two different experts a token; the second expert never."""
    ids = torch.stack([torch.randperm(E)[:K] for _ in range(tokens)])
    ids[ids == 1] = (ids.sum(1, keepdim=True).expand(-1, K)[ids == 1] + 2) % E  # somewhere else
    return torch.where(ids == 1, 3, ids).to(torch.int32)


@pytest.mark.parametrize("form", ["nz", "view"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_float_experts(dtype, form):
    from aloft.layers.experts import packed

    torch.manual_seed(0)
    up = (torch.randn(E, 2 * WIDTH, HIDDEN) / HIDDEN**0.5).to(dtype)
    down = (torch.randn(E, HIDDEN, WIDTH) / WIDTH**0.5).to(dtype)
    if form == "nz" and dtype == torch.float32:
        pytest.skip("float32 stays ND")
    held = Experts(*(Projection(packed(w.npu(), form == "nz")) for w in (up, down)))
    every = {}
    for tokens in (1, 3, 7, 33):
        x, ids = torch.randn(tokens, HIDDEN).to(dtype), _ids(tokens)
        weights = torch.rand(tokens, K).to(dtype)
        got = run_experts(x.npu(), weights.npu(), ids.npu(), held).cpu()
        want = _float_reference(x, weights, ids, up.mT, down.mT)
        # the products of up and of down and SwiGLU round to dtype, the sum once more
        unit = torch.finfo(dtype).eps
        assert got.dtype == dtype and float((got.double() - want).abs().max()) < 8 * unit + 1e-5
        every[tokens] = (x, weights, ids, got)
    x, weights, ids, got = every[33]
    for rows in (slice(0, 1), slice(5, 12)):  # a row is what it is alone
        part = run_experts(x[rows].npu(), weights[rows].npu(), ids[rows].npu(), held).cpu()
        assert torch.equal(part, got[rows])
    empty = run_experts(x[:0].npu(), weights[:0].npu(), ids[:0].npu(), held)
    assert empty.shape == (0, HIDDEN)


ROUTINGS = [
    Routing(K, E, renormalize=renormalize, scoring=scoring, factor=factor, **grouped)
    for scoring, renormalize, factor in itertools.product(("softmax", "sigmoid"), (False, True), (1.0, 2.5))
    for grouped in ({}, {"groups": 2, "kept": 1})
]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("routing", ROUTINGS, ids=str)
def test_routing(routing, biased):
    torch.manual_seed(0)
    logits = torch.randn(37, E)
    bias = torch.randn(E) * 0.2 if biased else None
    weights, ids = choose(logits.npu(), replace(routing, bias=None if bias is None else bias.npu()))
    scores = logits.double().softmax(-1) if routing.scoring == "softmax" else logits.double().sigmoid()
    choice = scores if bias is None else scores + bias
    if routing.groups > 1:
        groups = choice.unflatten(1, (routing.groups, -1))
        value = groups.amax(-1) if bias is None else groups.topk(2).values.sum(-1)
        kept = torch.zeros_like(value).scatter(1, value.topk(routing.kept).indices, 1).bool()
        choice = groups.masked_fill(~kept[..., None], -torch.inf).flatten(1)
    want = choice.topk(K).indices
    values = scores.gather(1, want)
    values = (values / values.sum(-1, keepdim=True) if routing.renormalize else values) * routing.factor
    assert torch.equal(ids.cpu().long(), want)
    assert torch.allclose(weights.cpu().double(), values, rtol=1e-5, atol=1e-6)
