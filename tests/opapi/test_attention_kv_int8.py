"""Fused infer attention with int8 keys and values, against attention over the dequantised ones."""

from __future__ import annotations

import pytest
import torch
import torch_npu

HEADS, KV_HEADS, D, BLOCK = 6, 2, 64, 128
MASK = torch.ones(2048, 2048, dtype=torch.int8).triu(1)


def cache(seed: int, blocks: int) -> torch.Tensor:
    return torch.randint(-128, 128, (blocks, BLOCK, KV_HEADS, D), generator=torch.Generator().manual_seed(seed)).char()


def rows_of(x: torch.Tensor, table: list[int], n: int) -> torch.Tensor:
    return torch.cat([x[b] for b in table])[:n]


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """q [Q, H, D], k and v [K, Hkv, D] in float64, causal at the end: output and log sum."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    hidden = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).triu(k.shape[0] - q.shape[0] + 1)
    scores = scores.masked_fill(hidden, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v), scores.logsumexp(-1).mT


def close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    rtol = {torch.bfloat16: 2**-8, torch.float16: 2**-11}.get(dtype, 1e-5)
    torch.testing.assert_close(got.cpu().double(), want, rtol=rtol, atol=2e-5 if rtol < 1e-3 else 2e-4)


def scales(seed: int, *shape: int, spread: float = 0.02) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * spread + 0.002


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("offsets", [False, True])
def test_paged_packed_sequences_by_channel(dtype: torch.dtype, offsets: bool) -> None:
    """Prefill, decode and a chunk in one call, as serving does."""
    kv_len, q_len = [300, 1, 40, 517], [1, 1, 40, 30]
    tables = [[3, 1, 7], [0, 0, 0], [2, 0, 0], [4, 5, 6, 8, 9]]
    width = max(map(len, tables))
    table = torch.tensor([t + [0] * (width - len(t)) for t in tables], dtype=torch.int32)
    k8, v8 = cache(1, 10), cache(2, 10)
    ks, vs = scales(3, 1, KV_HEADS, D).to(dtype), scales(4, 1, KV_HEADS, D).to(dtype)
    ko = (torch.randn(1, KV_HEADS, D, generator=torch.Generator().manual_seed(5)) * 9).to(dtype) if offsets else None
    vo = (torch.randn(1, KV_HEADS, D, generator=torch.Generator().manual_seed(6)) * 9).to(dtype) if offsets else None
    q = torch.randn(sum(q_len), HEADS, D, generator=torch.Generator().manual_seed(7)).to(dtype)
    extra = {"key_antiquant_offset": ko.npu(), "value_antiquant_offset": vo.npu()} if offsets else {}
    out, lse = torch_npu.npu_fused_infer_attention_score(
        q.npu(),
        k8.view(10, BLOCK, -1).npu(),
        v8.view(10, BLOCK, -1).npu(),
        atten_mask=MASK.npu(),
        block_table=table.npu(),
        actual_seq_lengths=torch.tensor(q_len).cumsum(0).tolist(),
        actual_seq_lengths_kv=kv_len,
        key_antiquant_scale=ks.npu(),
        value_antiquant_scale=vs.npu(),
        input_layout="TND",
        num_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        block_size=BLOCK,
        sparse_mode=3,
        scale=0.125,
        softmax_lse_flag=True,
        **extra,
    )
    at = 0
    for t, n, m in zip(tables, kv_len, q_len, strict=True):
        k = (rows_of(k8, t, n).double() + (ko.double() if offsets else 0)) * ks.double()
        v = (rows_of(v8, t, n).double() + (vo.double() if offsets else 0)) * vs.double()
        want, sums = attention(q[at : at + m].double(), k, v, 0.125)
        close(out[at : at + m], want, dtype)
        close(lse[at : at + m, :, 0], sums, torch.float32)
        at += m


@pytest.mark.parametrize("mode", range(6))
def test_every_mode_when_decoding(mode: int) -> None:
    batch, tokens, dtype = 3, 130, torch.bfloat16
    lengths, paged = [130, 7, 64], mode in (4, 5)
    tables = [[5, 2], [1, 0], [3, 0]]
    k8, v8 = cache(8, 6), cache(9, 6)
    shape = {
        0: (1, KV_HEADS, 1, D),
        1: (1, batch, tokens),
        2: (KV_HEADS,),
        3: (batch, KV_HEADS, tokens),
        4: (6, BLOCK),
        5: (6, KV_HEADS, BLOCK),
    }[mode]
    kind = dtype if mode in (0, 2) else torch.float32
    ks, vs = scales(10, *shape).to(kind), scales(11, *shape).to(kind)
    ko, vo = torch.randn(shape).to(kind), torch.randn(shape).to(kind)
    q = torch.randn(batch, HEADS, 1, D).to(dtype)

    def wide(x8: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor, b: int) -> torch.Tensor:
        n = lengths[b]
        rows = rows_of(x8, tables[b], n).double()

        def of(t: torch.Tensor) -> torch.Tensor:
            t = t.double()
            match mode:
                case 0:
                    return t.reshape(1, KV_HEADS, D)
                case 1:
                    return t[0, b, :n, None, None]
                case 2:
                    return t[None, :, None]
                case 3:
                    return t[b, :, :n].mT[..., None]
                case 4:
                    return rows_of(t, tables[b], n)[:, None, None]
                case _:
                    return torch.cat([t[block].mT for block in tables[b]])[:n, :, None]

        return (rows + of(offset)) * of(scale)

    if paged:
        keys, values = k8.view(6, BLOCK, -1), v8.view(6, BLOCK, -1)
        where = {"block_table": torch.tensor(tables, dtype=torch.int32).npu(), "block_size": BLOCK}
    else:
        dense = [torch.zeros(batch, KV_HEADS, tokens, D, dtype=torch.int8) for _ in range(2)]
        for b in range(batch):
            for to, x8 in zip(dense, (k8, v8), strict=True):
                to[b, :, : lengths[b]] = rows_of(x8, tables[b], lengths[b]).transpose(0, 1)
        keys, values = dense
        where = {}
    out, _ = torch_npu.npu_fused_infer_attention_score(
        q.npu(),
        keys.npu(),
        values.npu(),
        actual_seq_lengths_kv=lengths,
        key_antiquant_scale=ks.npu(),
        value_antiquant_scale=vs.npu(),
        key_antiquant_offset=ko.npu(),
        value_antiquant_offset=vo.npu(),
        key_antiquant_mode=mode,
        value_antiquant_mode=mode,
        input_layout="BNSD",
        num_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        scale=0.125,
        **where,
    )
    for b in range(batch):
        want, _ = attention(q[b].transpose(0, 1).double(), wide(k8, ks, ko, b), wide(v8, vs, vo, b), 0.125)
        close(out[b].transpose(0, 1), want, dtype)


def test_joint_scales_and_refusals() -> None:
    q = torch.randn(1, HEADS, 1, D).half()
    k8, v8 = (torch.randint(-128, 128, (1, KV_HEADS, 50, D)).char() for _ in range(2))
    both = torch.stack([scales(12, KV_HEADS, 1, D), scales(13, KV_HEADS, 1, D)]).half()
    call = {"input_layout": "BNSD", "num_heads": HEADS, "num_key_value_heads": KV_HEADS, "scale": 0.1}
    op = torch_npu.npu_fused_infer_attention_score
    joint, _ = op(q.npu(), k8.npu(), v8.npu(), antiquant_scale=both.npu(), **call)
    apart = {"key_antiquant_scale": both[0].clone().npu(), "value_antiquant_scale": both[1].clone().npu()}
    single, _ = op(q.npu(), k8.npu(), v8.npu(), **apart, **call)
    assert torch.equal(joint.cpu(), single.cpu())
    with pytest.raises(RuntimeError, match="key_antiquant_scale"):
        op(q.npu(), k8.npu(), v8.npu(), **call)
    with pytest.raises(RuntimeError, match="antiquant scale of key"):
        op(q.npu(), k8.npu(), v8.npu(), **apart | {"key_antiquant_scale": torch.ones(3).half().npu()}, **call)
    with pytest.raises(RuntimeError, match="both be int8"):
        op(q.npu(), k8.npu(), v8.half().npu(), **apart, **call)
    with pytest.raises(RuntimeError, match="int8 key and value"):
        op(q.npu(), k8.half().npu(), v8.half().npu(), **apart, **call)
