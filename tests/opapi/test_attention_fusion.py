"""npu_fusion_attention and its gradient against float64 autograd; scaled_dot_product_attention, which arrives at it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_npu  # noqa: F401

from aloft.ops import attention

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
TOLERANCE = {BF16: 2**-7, F16: 2**-10, F32: 4e-6}
TRIANGLE = torch.triu(torch.ones(2048, 2048, dtype=torch.bool), 1)
FA = torch.ops.npu.npu_fusion_attention


def make(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    heads: int,
    layout: str,
    *,
    mode: int = 0,
    pre: int = attention.UNBOUNDED,
    following: int = attention.UNBOUNDED,
    mask: torch.Tensor | None = None,
    pse: torch.Tensor | None = None,
    scale: float = 1.0,
    q_ends: list[int] | None = None,
    kv_ends: list[int] | None = None,
    prefix: list[int] | None = None,
    sink: torch.Tensor | None = None,
    kept: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output in `layout` and log-sum-exp (sinks included) `[B, N, S]`, or `[T, N]` packed. `kept`: 0 or 1/keep_prob."""
    d = query.size(-1) // heads if layout in ("BSH", "SBH") else query.size(-1)
    kv_heads = key.size(-1) // d if layout in ("BSH", "SBH") else key.size(1 if layout in ("BNSD", "TND") else 2)
    q, k, v = (attention.split_heads(t, layout, n) for t, n in ((query, heads), (key, kv_heads), (value, kv_heads)))
    if q_ends is not None and kv_ends is not None:
        lens = list(zip(attention.lengths_of(q_ends), attention.lengths_of(kv_ends), strict=True))
        parts = [t[0].split([n[i] for n in lens]) for t, i in ((q, 0), (k, 1), (v, 1))]
    else:
        parts = [tuple(t) for t in (q, k, v)]
    outs, lses = [], []
    for b, (rows, keys, values) in enumerate(zip(*parts, strict=True)):
        n, m = rows.size(0), keys.size(0)
        shown = attention.visible(n, m, mode, pre, following, banded=mask is not None)
        if prefix is not None:
            shown = attention.visible(n, m, 3) | (torch.arange(m) < prefix[b])
        elif mask is not None and mode < 2:
            piece = mask if mask.dim() == 2 else mask[b if mask.size(0) > 1 else 0]
            shown = shown & ~piece[..., :n, :m]
        bias = None if pse is None else pse[b if pse.size(0) > 1 else 0]
        out, lse = attend(rows, keys, values, scale, shown, bias, sink, None if kept is None else kept[b])
        outs.append(out)
        lses.append(lse)
    if q_ends is not None:
        return torch.cat(outs), torch.cat(lses)
    return attention.join_heads(torch.stack(outs), layout), torch.stack(lses).transpose(1, 2)


def attend(q, k, v, scale, shown, bias, sink, kept):  # type: ignore[no-untyped-def]
    """`attention.attend` with dropout, and the sinks in the log-sum-exp."""
    group = q.size(1) // k.size(1)
    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(group, 1)) * scale
    if bias is not None:
        scores = scores + bias
    scores = scores.masked_fill(~shown, -math.inf)
    if sink is not None:
        scores = torch.cat([scores, sink[:, None, None].expand(-1, scores.size(1), 1)], -1)
    seen = torch.isfinite(scores).any(-1, keepdim=True)
    weights = torch.where(seen, torch.softmax(torch.where(seen, scores, 0.0), -1), 0.0)[..., : k.size(0)]
    if kept is not None:
        weights = weights * kept
    out = torch.einsum("hqk,khd->qhd", weights, v.repeat_interleave(group, 1))
    return out, torch.logsumexp(scores, -1).T


def check(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: int, layout: str, **kwargs: Any
) -> tuple[torch.Tensor, ...]:
    names = {
        "mode": "sparse_mode",
        "pre": "pre_tockens",
        "following": "next_tockens",
        "mask": "atten_mask",
        "q_ends": "actual_seq_qlen",
        "kv_ends": "actual_seq_kvlen",
    }
    leaves = {"query": query, "key": key, "value": value}
    leaves |= {k: kwargs[k] for k in ("pse", "sink") if kwargs.get(k) is not None}
    ours = {k: v.npu().requires_grad_() for k, v in leaves.items()}
    wide = {k: v.double().requires_grad_() for k, v in leaves.items()}
    given = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()} | ours
    call = {names.get(k, k): v for k, v in given.items()}
    results = FA(call.pop("query"), call.pop("key"), call.pop("value"), heads, layout, **call)
    sizes = {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in kwargs.items()}
    sizes = sizes | wide
    want, want_lse = reference(sizes.pop("query"), sizes.pop("key"), sizes.pop("value"), heads, layout, **sizes)
    bound = TOLERANCE[query.dtype]
    out = results[0].cpu()
    assert out.shape == want.shape and out.dtype == query.dtype
    assert (out.double() - want).abs().max() <= bound * max(1.0, want.abs().max().item())
    top, total = results[1].cpu(), results[2].cpu()
    assert top.size(-1) == 8 and (top == top[..., :1]).all() and (total == total[..., :1]).all()
    if layout != "TND":
        lse = top[..., 0].double() + total[..., 0].double().log()
        assert ((lse == want_lse) | ((lse - want_lse).abs() <= 1e-5 * want_lse.abs().clamp(min=1))).all()
    upstream = make(*want.shape, dtype=query.dtype, seed=9)
    results[0].backward(upstream.npu())
    want.backward(upstream.double())
    for name, leaf in wide.items():
        got = ours[name].grad.cpu()
        assert got.dtype == leaves[name].dtype and got.shape == leaf.shape
        error = (got.double() - leaf.grad).abs().max()
        assert error <= bound * max(1.0, leaf.grad.abs().max().item()), (name, error)
    return results


@pytest.mark.parametrize("layout", ["BSH", "SBH", "BSND", "BNSD"])
@pytest.mark.parametrize(("dtype", "d", "d_v"), [(F32, 33, 33), (BF16, 64, 64), (F16, 128, 96)])
def test_layouts(layout: str, dtype: torch.dtype, d: int, d_v: int) -> None:
    b, hq, hkv, sq, skv = 2, 6, 2, 70, 133
    query, key, value = (
        attention.join_heads(make(b, *size, dtype=dtype), layout).contiguous()
        for size in ((sq, hq, d), (skv, hkv, d), (skv, hkv, d_v))
    )
    scale = d**-0.5
    check(query, key, value, hq, layout, scale=scale)
    check(query, key, value, hq, layout, scale=scale, mode=3, mask=TRIANGLE)
    mask = torch.rand(b, hq, sq, skv, generator=torch.Generator().manual_seed(1)) < 0.4
    mask[1, 2, 5] = True
    check(query, key, value, hq, layout, scale=scale, mode=1, mask=mask)
    check(query, key, value, hq, layout, scale=scale, mask=mask[:, :1], pre=30, following=40)


def test_modes() -> None:
    query, key, value = make(2, 4, 65, 16), make(2, 2, 130, 16), make(2, 2, 130, 16)
    for mode in (2, 3):
        check(query, key, value, 4, "BNSD", scale=0.3, mode=mode, mask=TRIANGLE)
    check(query, key, value, 4, "BNSD", scale=0.3, mode=4, pre=20, following=5, mask=TRIANGLE)
    check(query, key, value, 4, "BNSD", scale=0.3, mode=2, mask=TRIANGLE[None, None])
    prefix = torch.cat([TRIANGLE, torch.zeros(1024, 2048, dtype=torch.bool)])
    check(query, key, value, 4, "BNSD", scale=0.3, mode=6, mask=prefix, prefix=[0, 110])
    check(query[:, :, :1], key, value, 4, "BNSD", scale=0.3)
    check(make(1, 3, 2, 700), make(1, 3, 5, 700), make(1, 3, 5, 700), 3, "BNSD", scale=0.05)


@pytest.mark.parametrize("shape", [(2, 4, 65, 130), (1, 4, 65, 130), (2, 4, 1, 130)])
def test_bias(shape: tuple[int, ...]) -> None:
    query, key, value = make(2, 65, 4, 32), make(2, 130, 2, 32), make(2, 130, 2, 32)
    check(query, key, value, 4, "BSND", scale=0.2, pse=make(*shape), mode=3, mask=TRIANGLE)


def test_sink() -> None:
    query, key, value = make(2, 65, 4, 32), make(2, 130, 2, 32), make(2, 130, 2, 32)
    check(query, key, value, 4, "BSND", scale=0.2, sink=make(4) * 2, mode=3, mask=TRIANGLE)
    ends = {"q_ends": [60, 130], "kv_ends": [100, 260]}
    flat = (t.flatten(0, 1) for t in (query, key, value))
    check(*flat, 4, "TND", scale=0.2, sink=make(4) * 2, **ends)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_packed(dtype: torch.dtype) -> None:
    q_ends, kv_ends = [3, 3, 70, 71], [5, 25, 99, 300]
    query, key, value = make(71, 4, 64, dtype=dtype), make(300, 2, 64, dtype=dtype), make(300, 2, 64, dtype=dtype)
    shared = {"scale": 0.125, "q_ends": q_ends, "kv_ends": kv_ends}
    results = check(query, key, value, 4, "TND", **shared)
    check(query, key, value, 4, "TND", **shared, mode=3, mask=TRIANGLE)
    check(query, key, value, 4, "TND", **shared, mode=4, pre=30, following=0, mask=TRIANGLE)
    # Without softmax_layout the statistics of a sequence lie [heads, tokens, 8]; with "TND" [tokens, heads, 8].
    ordered = FA(
        query.npu(),
        key.npu(),
        value.npu(),
        4,
        "TND",
        softmax_layout="TND",
        scale=0.125,
        actual_seq_qlen=q_ends,
        actual_seq_kvlen=kv_ends,
    )
    flat, begin = results[1].detach().cpu().flatten(), 0
    for end in q_ends:
        piece = flat[begin * 32 : end * 32].view(4, end - begin, 8).transpose(0, 1)
        assert torch.equal(piece, ordered[1].cpu()[begin:end])
        begin = end


def test_packed_gradient_with_ordered_statistics() -> None:
    query, key, value = (make(40, 2, 32).npu().requires_grad_() for _ in range(3))
    grads = []
    for layout in ("", "TND"):
        out = FA(
            query,
            key,
            value,
            2,
            "TND",
            softmax_layout=layout,
            scale=0.2,
            actual_seq_qlen=[10, 40],
            actual_seq_kvlen=[15, 40],
        )[0]
        grads.append(torch.autograd.grad(out.square().sum(), (query, key, value)))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_dropout() -> None:
    keep = 0.7
    torch.npu.manual_seed(7)
    query, key = make(1, 2, 200, 32).npu(), make(1, 2, 260, 32).npu()
    identity = torch.zeros(1, 2, 260, 260)
    identity[..., range(260), range(260)] = 1.0
    # With the identity as values the output is the dropped weight matrix itself.
    out = FA(query, key, identity.npu(), 2, "BNSD", scale=0.2, keep_prob=keep)[0].cpu()
    plain = FA(query, key, identity.npu(), 2, "BNSD", scale=0.2)[0].cpu()
    kept = out != 0
    assert abs(kept.double().mean() - keep) < 0.01
    assert abs(kept[0, 0].double().mean() - keep) < 0.01 and not torch.equal(kept[0, 0], kept[0, 1])
    torch.testing.assert_close(out[kept], (plain / keep)[kept], rtol=1e-5, atol=1e-7)
    torch.npu.manual_seed(7)
    value = make(1, 2, 260, 32)
    leaves = [t.detach().clone().requires_grad_() for t in (query, key, value.npu())]
    again = FA(*leaves, 2, "BNSD", scale=0.2, keep_prob=keep)[0]
    wide = [t.detach().cpu().double().requires_grad_() for t in leaves]
    want, _ = reference(*wide, 2, "BNSD", scale=0.2, kept=kept.double() / keep)
    torch.testing.assert_close(again.detach().cpu().double(), want.detach(), rtol=1e-5, atol=2e-6)
    upstream = make(*want.shape)
    again.backward(upstream.npu())
    want.backward(upstream.double())
    for ours, theirs in zip(leaves, wide, strict=True):
        torch.testing.assert_close(ours.grad.cpu().double(), theirs.grad, rtol=1e-4, atol=1e-5)


def test_rope_parts() -> None:
    ends = [10, 40]
    parts = [make(40, 2, d, seed=i) for i, d in enumerate((128, 128, 128, 64, 64))]
    ours, wide = ([f(t).requires_grad_() for t in parts] for f in (lambda t: t.npu(), lambda t: t.double()))
    out = torch.ops.npu.npu_fusion_attention_v2(
        *ours[:3],
        2,
        "TND",
        query_rope=ours[3],
        key_rope=ours[4],
        scale=0.1,
        actual_seq_qlen=ends,
        actual_seq_kvlen=ends,
    )[0]
    joined = (torch.cat([wide[0], wide[3]], -1), torch.cat([wide[1], wide[4]], -1), wide[2])
    want, _ = reference(*joined, 2, "TND", scale=0.1, q_ends=ends, kv_ends=ends)
    upstream = make(*want.shape)
    out.backward(upstream.npu())
    want.backward(upstream.double())
    torch.testing.assert_close(out.detach().cpu().double(), want.detach(), rtol=1e-5, atol=1e-6)
    for a, b in zip(ours, wide, strict=True):
        torch.testing.assert_close(a.grad.cpu().double(), b.grad, rtol=1e-5, atol=1e-5)


def test_captured_graph_and_tensor_lengths() -> None:
    query = make(1, 2, 40, 32).npu()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        out = torch.ops.npu.npu_fusion_attention_v3(query, query, query, 2, "BNSD", scale=0.2)[0]
        dropped = F.scaled_dot_product_attention(query, query, query, dropout_p=0.3)
    query.copy_(make(1, 2, 40, 32, seed=5))
    graph.replay()
    first = dropped.clone()
    graph.replay()
    assert torch.equal(out, FA(query, query, query, 2, "BNSD", scale=0.2)[0])
    assert not torch.equal(first, dropped)
    packed, ends = query[0].transpose(0, 1).contiguous(), torch.tensor([10, 40])
    v3 = torch.ops.npu.npu_fusion_attention_v3
    by_tensor = v3(packed, packed, packed, 2, "TND", scale=0.2, actual_seq_qlen=ends, actual_seq_kvlen=ends)[0]
    by_list = FA(packed, packed, packed, 2, "TND", scale=0.2, actual_seq_qlen=[10, 40], actual_seq_kvlen=[10, 40])[0]
    assert torch.equal(by_tensor, by_list)
    space = torch.ops.npu._npu_fusion_attention_v3_get_max_workspace(
        packed, packed, packed, 2, "TND", scale=0.2, actual_seq_qlen=ends, actual_seq_kvlen=ends
    )
    assert space.numel() >= 0


def refused(message: str, *args: Any, **kwargs: Any) -> None:
    moved = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    with pytest.raises(RuntimeError, match=message):
        FA(*(a.npu() if isinstance(a, torch.Tensor) else a for a in args), **moved)


def test_refusals() -> None:
    query, key = make(2, 20, 4, 16), make(2, 30, 2, 16)
    refused("share a dtype", query, key.half(), key, 4, "BSND")
    refused("head_num is 3|4 heads", query, key, key, 3, "BSND")
    refused("needs atten_mask", query, key, key, 4, "BSND", sparse_mode=2)
    refused("compressed", query, key, key, 4, "BSND", sparse_mode=2, atten_mask=TRIANGLE[:64, :64])
    refused(
        "atten_mask has the shape", query, key, key, 4, "BSND", sparse_mode=1, atten_mask=TRIANGLE[None, None, :1, :30]
    )
    refused("bool or uint8", query, key, key, 4, "BSND", sparse_mode=1, atten_mask=torch.zeros(20, 30))
    refused("pse has the shape", query, key, key, 4, "BSND", pse=torch.zeros(1, 4, 20, 10))
    flat = query.flatten(0, 1)
    refused("ends at 39", flat, flat, flat, 4, "TND", actual_seq_qlen=[10, 39], actual_seq_kvlen=[10, 40])


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_scaled_dot_product_attention(dtype: torch.dtype) -> None:
    shapes = [(2, 6, 37, 64), (2, 6, 50, 64), (2, 6, 50, 64)]
    leaves = [make(*s, dtype=dtype, seed=i) for i, s in enumerate(shapes)]
    cases: list[dict[str, Any]] = [
        {},
        {"is_causal": True},
        {"attn_mask": torch.rand(2, 1, 37, 50, generator=torch.Generator().manual_seed(0)) > 0.3},
        {"attn_mask": make(1, 6, 37, 50, dtype=dtype)},
        {"scale": 0.3},
    ]
    for case in cases:
        ours = [t.npu().requires_grad_() for t in leaves]
        wide = [t.double().requires_grad_() for t in leaves]
        mine = {k: v.npu() if isinstance(v, torch.Tensor) else v for k, v in case.items()}
        theirs = {
            k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in case.items()
        }
        out = F.scaled_dot_product_attention(*ours, **mine)
        want = F.scaled_dot_product_attention(*wide, **theirs)
        bound = TOLERANCE[dtype] * 2
        assert (out.detach().cpu().double() - want).abs().max() <= bound
        upstream = make(*want.shape, dtype=dtype, seed=4)
        out.backward(upstream.npu())
        want.backward(upstream.double())
        for a, b in zip(ours, wide, strict=True):
            assert (a.grad.cpu().double() - b.grad).abs().max() <= bound * max(1.0, b.grad.abs().max().item())
    with torch.no_grad():
        grouped = [make(1, h, 20, 32, dtype=dtype) for h in (4, 2, 2)]
        out = F.scaled_dot_product_attention(*(t.npu() for t in grouped), enable_gqa=True).cpu()
        want = F.scaled_dot_product_attention(*(t.double() for t in grouped), enable_gqa=True)
        assert (out.double() - want).abs().max() <= TOLERANCE[dtype]


def test_prompt_and_incremental() -> None:
    query, key, value = make(2, 4, 33, 64, dtype=F16), make(2, 2, 50, 64, dtype=F16), make(2, 2, 50, 64, dtype=F16)
    shared = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": "BNSD"}
    moved = [t.npu() for t in (query, key, value)]
    out = torch.ops.npu.npu_prompt_flash_attention(*moved, **shared, scale_value=0.125, next_tokens=65535)
    want, _ = attention.fused_infer(*(t.double() for t in (query, key, value)), **shared, scale=0.125)
    assert (out.cpu().double() - want).abs().max() <= 2**-10
    one = [moved[0][:, :, :1].contiguous(), *moved[1:]]
    out = torch.ops.npu.npu_incre_flash_attention(*one, **shared, scale_value=0.125, actual_seq_lengths=[7, 50])
    want, _ = attention.fused_infer(
        query[:, :, :1].double(), key.double(), value.double(), **shared, scale=0.125, actual_seq_lengths_kv=[7, 50]
    )
    assert (out.cpu().double() - want).abs().max() <= 2**-10


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_attention_update(dtype: torch.dtype) -> None:
    lse = [torch.tensor([math.log(2.0)]), torch.tensor([0.0])]
    local = [torch.full((1, 8), 3.0, dtype=dtype), torch.zeros(1, 8, dtype=dtype)]
    update = torch.ops.npu.npu_attention_update
    out, _ = update([t.npu() for t in lse], [t.npu() for t in local], 0)
    torch.testing.assert_close(out.cpu(), torch.full((1, 8), 2.0, dtype=dtype))
    parts, rows, d = 5, 70, 40
    lse = [make(rows, seed=i) * 5 for i in range(parts)]
    local = [make(rows, d, dtype=dtype, seed=i) for i in range(parts)]
    out, _ = update([t.npu() for t in lse], [t.npu() for t in local], 0)
    total = torch.stack(lse).double().logsumexp(0)
    want = sum((a.double() - total).exp()[:, None] * b.double() for a, b in zip(lse, local, strict=True))
    assert (out.cpu().double() - want).abs().max() <= TOLERANCE[dtype] * 3
    out, merged = update([t.npu() for t in lse], [t.npu() for t in local], 1)
    assert merged.dtype == F32 and (merged.cpu().double() - total).abs().max() <= 1e-5
    with pytest.raises(RuntimeError, match="local_out 4"):
        update([t.npu() for t in lse], [t.npu() for t in local[:4]], 0)
    with pytest.raises(RuntimeError, match=r"lse\[1\] must be float32"):
        update([lse[0].npu(), lse[1].half().npu()], [t.npu() for t in local[:2]], 0)
