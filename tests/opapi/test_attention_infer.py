"""npu_fused_infer_attention_score on the virtual NPU against its float64 reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401
from fused_infer import BF16, F16, FIA, TRIANGLE, check, make, paged, run

from aloft.ops import attention

LENGTHS = [
    (1, 1),
    (1, 7),
    (7, 7),
    (1, 127),
    (5, 128),
    (129, 129),
    (2, 300),
    (1, 513),
    (60, 513),
    (0, 5),
    (1, 0),
]


@pytest.mark.parametrize("heads", [(3, 3), (9, 3), (8, 2), (8, 1)])
@pytest.mark.parametrize(("d", "dtype", "size"), [(64, BF16, 128), (128, F16, 128), (64, BF16, 16)])
def test_paged_tnd(heads: tuple[int, int], d: int, dtype: torch.dtype, size: int) -> None:
    hq, hkv = heads
    q_lens, kv_lens = zip(*LENGTHS, strict=True)
    cache = paged(list(kv_lens), hkv, d, size, dtype)
    key, value = cache.pop("key"), cache.pop("value")
    total = torch.tensor(q_lens).cumsum(0).tolist()
    query = make(total[-1], hq, d, dtype=dtype)
    shared: dict[str, Any] = dict(
        cache,
        actual_seq_lengths=total,
        actual_seq_lengths_kv=list(kv_lens),
        num_heads=hq,
        num_key_value_heads=hkv,
        scale=d**-0.5,
        input_layout="TND",
        softmax_lse_flag=True,
        atten_mask=TRIANGLE,
    )
    check(query, key, value, **shared, sparse_mode=3)
    check(query, key, value, **shared, sparse_mode=2)
    check(query, key, value, **shared, sparse_mode=4, pre_tokens=9, next_tokens=0)
    check(query, key, value, **shared, sparse_mode=4, pre_tokens=100, next_tokens=3)
    shared["atten_mask"] = None
    check(query, key, value, **shared)


@pytest.mark.parametrize(
    "layout", ["BSH", "BSND", "BNSD", "BNSD_BSND", "BSH_BNSD", "BSND_BNSD", "BSND_NBSD", "BNSD_NBSD"]
)
@pytest.mark.parametrize("q_len", [1, 17])
def test_dense_layouts(layout: str, q_len: int) -> None:
    b, hq, hkv, d, keys = 2, 6, 2, 80, 133
    first = layout.partition("_")[0]

    def shaped(t: torch.Tensor) -> torch.Tensor:  # [B, S, N, D]
        return attention.join_heads(t, first).contiguous()

    query, key, value = (
        shaped(make(b, q_len, hq, d)),
        shaped(make(b, keys, hkv, d)),
        shaped(make(b, keys, hkv, d, seed=3)),
    )
    shared = {
        "num_heads": hq,
        "num_key_value_heads": hkv,
        "scale": 0.2,
        "input_layout": layout,
        "softmax_lse_flag": True,
    }
    check(query, key, value, **shared)
    check(query, key, value, **shared, actual_seq_lengths_kv=[33, 128])
    check(query, key, value, **shared, sparse_mode=3, atten_mask=TRIANGLE)
    mask = torch.rand(b, 1, q_len, 140) < 0.3
    mask[0, 0, 0] = True
    check(query, key, value, **shared, sparse_mode=1, atten_mask=mask)
    check(query, key, value, **shared, atten_mask=mask, pre_tokens=3, next_tokens=20)
    check(query, key, value, **shared, pse_shift=make(1, hq, q_len, keys))
    if q_len > 1:
        check(query, key, value, **shared, sparse_mode=4, pre_tokens=7, next_tokens=1, atten_mask=TRIANGLE)
        check(query, key, value, **shared, sparse_mode=1, atten_mask=mask[0, 0])


@pytest.mark.parametrize("layout", ["TND", "NTD", "NTD_TND", "TND_NTD"])
def test_packed_dense(layout: str) -> None:
    q_total, kv_total, hq, hkv, d = [3, 3, 40], [5, 25, 99], 4, 2, 64
    query, key, value = make(40, hq, d), make(99, hkv, d), make(99, hkv, d, seed=1)
    if layout[0] == "N":
        query, key, value = (t.transpose(0, 1).contiguous() for t in (query, key, value))
    shared = {
        "num_heads": hq,
        "num_key_value_heads": hkv,
        "scale": 0.125,
        "input_layout": layout,
        "softmax_lse_flag": True,
    }
    lengths = {"actual_seq_lengths": q_total, "actual_seq_lengths_kv": kv_total}
    check(query, key, value, **shared, **lengths)
    check(query, key, value, **shared, **lengths, sparse_mode=3, atten_mask=TRIANGLE[None, None].bool())


def test_cache_forms_agree() -> None:
    hkv, d, size, kv_lens = 2, 64, 16, [37, 5]
    cache = paged(kv_lens, hkv, d, size)
    key, value = cache.pop("key"), cache.pop("value")
    query = make(2, 6, 1, d)
    shared = dict(cache, num_heads=6, num_key_value_heads=hkv, scale=0.1, input_layout="BNSD")
    shared["actual_seq_lengths_kv"] = kv_lens
    flat, _ = check(query, key, value, **shared)

    def heads_first(t: torch.Tensor) -> torch.Tensor:
        return t.view(-1, size, hkv, d).transpose(1, 2).contiguous()

    def nz(t: torch.Tensor) -> torch.Tensor:
        return heads_first(t).view(-1, hkv, size, d // 16, 16).transpose(2, 3).contiguous()

    four, _ = check(query, heads_first(key), heads_first(value), **shared)
    five, _ = check(query, nz(key), nz(value), **shared)
    assert torch.equal(flat, four) and (flat.float() - five.float()).abs().max() <= 2**-8
    with pytest.raises(RuntimeError, match="heads before tokens"):
        run(query, key.view(-1, size, hkv, d), value.view(-1, size, hkv, d), **shared)


def test_same_bits_alone_and_in_a_batch() -> None:
    hq, hkv, d, size = 9, 3, 64, 128
    kv_lens = [33, 1025, 700, 5, 2100, 128]
    cache = paged(kv_lens, hkv, d, size)
    key, value = cache.pop("key"), cache.pop("value")
    shared = {
        "num_heads": hq,
        "num_key_value_heads": hkv,
        "scale": 0.125,
        "input_layout": "TND",
        "block_size": size,
        "sparse_mode": 3,
    }
    for q_lens in ([1] * 6, [1, 300, 2, 5, 40, 100]):
        total = torch.tensor(q_lens).cumsum(0).tolist()
        query = make(total[-1], hq, d)
        lengths = {
            "actual_seq_lengths": total,
            "actual_seq_lengths_kv": kv_lens,
            "block_table": cache["block_table"],
        }
        together, _ = run(query, key, value, **shared, **lengths, atten_mask=TRIANGLE)
        for b, end in enumerate(total):
            lengths = {"actual_seq_lengths": [q_lens[b]], "actual_seq_lengths_kv": [kv_lens[b]]}
            table = cache["block_table"][b : b + 1]
            alone, _ = run(
                query[end - q_lens[b] : end],
                key,
                value,
                **shared,
                **lengths,
                block_table=table,
                atten_mask=TRIANGLE,
            )
            assert torch.equal(alone, together[end - q_lens[b] : end])


def test_empty_and_out_form() -> None:
    cache = make(4, 16, 128)
    shared = {"num_heads": 2, "scale": 0.1, "input_layout": "TND", "block_size": 16}
    table = torch.zeros(0, 1, dtype=torch.int32)
    out, lse = run(
        make(0, 2, 64),
        cache,
        cache,
        **shared,
        actual_seq_lengths=[],
        actual_seq_lengths_kv=[],
        block_table=table,
    )
    assert out.shape == (0, 2, 64) and lse.shape == (0,)
    query, table = make(5, 2, 64).npu(), torch.tensor([[1, 2]], dtype=torch.int32).npu()
    cache = cache.npu()
    shared.update(actual_seq_lengths=[5], actual_seq_lengths_kv=[20], block_table=table)
    want, _ = FIA(query, cache, cache, **shared)
    out, lse = torch.empty_like(query), torch.empty(0, device="npu")
    space = torch.ops.npu._npu_fused_infer_attention_score_get_max_workspace(query, cache, cache, **shared)
    FIA.out(query, cache, cache, **shared, workspace=space, out=[out, lse])
    assert torch.equal(out, want)


def test_strided_operands() -> None:
    kv_lens, d = [20, 33], 64
    cache = paged(kv_lens, 2, d, 16)
    key, value, table = cache["key"], cache["value"], cache["block_table"]
    query = make(6, 4, d)
    shared = {
        "num_heads": 4,
        "num_key_value_heads": 2,
        "scale": 0.125,
        "input_layout": "TND",
        "block_size": 16,
        "actual_seq_lengths": [2, 6],
        "actual_seq_lengths_kv": kv_lens,
    }
    want, _ = check(query, key, value, **shared, block_table=table)
    both = torch.stack([key, value], 2).npu()  # [nb, bs, 2, width]: keys and values side by side
    fused = torch.cat([query, query, query], 1).npu()[:, 4:8]
    wide = torch.stack([table, table], -1).npu()[..., 0]
    assert torch.equal(FIA(fused, both[:, :, 0], both[:, :, 1], **shared, block_table=wide)[0].cpu(), want)
    spread = torch.stack([query, query], -1).npu()[..., 0]  # last dimension not contiguous
    assert torch.equal(FIA(spread, key.npu(), value.npu(), **shared, block_table=table.npu())[0].cpu(), want)


def test_captured_graph_takes_new_lengths() -> None:
    cache = make(8, 128, 3 * 64).npu()
    query, table = make(4, 9, 64).npu(), torch.arange(8, dtype=torch.int32).view(4, 2).npu()
    shared: dict[str, Any] = {
        "atten_mask": TRIANGLE.npu(),
        "block_table": table,
        "block_size": 128,
        "num_heads": 9,
        "num_key_value_heads": 3,
        "scale": 0.125,
        "input_layout": "TND",
        "sparse_mode": 3,
        "actual_seq_lengths": [1, 2, 3, 4],
    }
    largest = [256] * 4
    workspace = torch.ops.npu._npu_fused_infer_attention_score_get_max_workspace(
        query, cache, cache, **shared, actual_seq_lengths_kv=largest
    )
    out, lse = torch.empty_like(query), torch.empty(0, device="npu")

    def issue(kv_lens: list[int]) -> None:
        FIA.out(query, cache, cache, **shared, actual_seq_lengths_kv=kv_lens, workspace=workspace, out=[out, lse])

    graph, updates = torch.npu.NPUGraph(), torch.npu.Stream()
    with torch.npu.graph(graph):
        stream = torch.npu.current_stream()
        torch.npu.graph_task_group_begin(stream)
        issue([5, 6, 7, 8])
        handle = torch.npu.graph_task_group_end(stream)
    for kv_lens in ([5, 6, 7, 8], [50, 6, 200, 8], [1, 256, 3, 0]):
        with torch.npu.stream(updates):
            torch.npu.graph_task_update_begin(updates, handle)
            issue(kv_lens)
            torch.npu.graph_task_update_end(updates)
        updates.synchronize()
        graph.replay()
        assert torch.equal(out, FIA(query, cache, cache, **shared, actual_seq_lengths_kv=kv_lens)[0])
