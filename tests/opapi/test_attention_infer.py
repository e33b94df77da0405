"""npu_fused_infer_attention_score on the virtual NPU against its float64 reference."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401

from aloft.ops import attention
from aloft.runtime.choice import library_folder

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
TOLERANCE = {BF16: 2**-8, F16: 2**-11, F32: 3e-6}
TRIANGLE = torch.triu(torch.ones(2048, 2048, dtype=torch.int8), 1)
FIA = torch.ops.npu.npu_fused_infer_attention_score


@pytest.fixture
def strict():
    library = ctypes.CDLL(str(library_folder() / "libopapi.so"))
    before = library.aloftSetContract(None)
    assert library.aloftSetContract(b"strict") == 0
    yield
    library.aloftSetContract([b"strict", b"warn", b"off"][before])


def make(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def on_device(value: Any) -> Any:
    return value.npu() if isinstance(value, torch.Tensor) else value


def run(*args: Any, op: Any = FIA, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = op(*map(on_device, args), **{k: on_device(v) for k, v in kwargs.items()})
    return out.cpu(), lse.cpu()


def wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def check(*args: torch.Tensor, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs the operator and compares; the log-sum-exp too, when asked for."""
    want, want_lse = attention.fused_infer(*map(wide, args), **{k: wide(v) for k, v in kwargs.items()})
    sink = kwargs.pop("learnable_sink", None)
    if sink is None:
        out, lse = run(*args, **kwargs)
    else:
        names = {
            "actual_seq_lengths": "actual_seq_qlen",
            "actual_seq_lengths_kv": "actual_seq_kvlen",
            "num_heads": "num_query_heads",
            "scale": "softmax_scale",
            "softmax_lse_flag": "return_softmax_lse",
        }
        kwargs = {names.get(k, k): v for k, v in kwargs.items()}
        op = torch.ops.npu.npu_fused_infer_attention_score_v2
        out, lse = run(*args, op=op, learnable_sink=sink, **kwargs)
    assert out.shape == want.shape and out.dtype == args[0].dtype
    bound = TOLERANCE[args[0].dtype] * max(1.0, want.abs().max().item() if want.numel() else 0.0)
    assert out.numel() == 0 or (out.double() - want).abs().max() <= bound
    if want_lse.numel():
        assert lse.shape == want_lse.shape and lse.dtype == F32
        same = (lse.double() == want_lse) | ((lse.double() - want_lse).abs() <= 3e-6 * want_lse.abs().clamp(min=1))
        assert same.all()
    else:
        assert lse.shape == (0,)
    return out, lse


def paged(lengths: list[int], heads: int, d: int, size: int, dtype: torch.dtype = BF16, d_v: int = 0) -> dict[str, Any]:
    """A cache whose blocks lie in no order, with a spare block full of NaN that nothing may read."""
    per = max(1, max((n + size - 1) // size for n in lengths))
    used = len(lengths) * per
    generator = torch.Generator().manual_seed(used)
    table = torch.randperm(used, generator=generator).view(len(lengths), per).to(torch.int32)
    key = make(used + 1, size, heads * d, dtype=dtype, seed=1)
    value = make(used + 1, size, heads * (d_v or d), dtype=dtype, seed=2)
    key[used], value[used] = math.nan, math.nan
    for row, n in zip(table, lengths, strict=True):
        row[(n + size - 1) // size :] = used
        if n % size:  # what lies behind the last token is garbage on real caches
            key[row[n // size], n % size :] = math.nan
            value[row[n // size], n % size :] = math.nan
    return {"key": key, "value": value, "block_table": table, "block_size": size}


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


@pytest.mark.parametrize("form", ["4-D", "3-D", "NZ"])
def test_mla_decode(form: str) -> None:
    heads, size, kv_lens = 16, 128, [1, 200]
    cache = paged(kv_lens, 1, 512, size)
    latent, rope = cache.pop("key"), make(*cache["value"].shape[:2], 64, seed=5)
    cache.pop("value")
    if form == "4-D":
        latent, rope = latent[:, None], rope[:, None]
    if form == "NZ":
        latent, rope = (t.unflatten(-1, (-1, 16)).transpose(1, 2)[:, None].contiguous() for t in (latent, rope))
    shared = dict(cache, num_heads=heads, num_key_value_heads=1, scale=192**-0.5, actual_seq_lengths_kv=kv_lens)
    query, q_rope = make(2, 1, heads, 512), make(2, 1, heads, 64)
    if form == "3-D":
        check(query, latent, latent, **shared, query_rope=q_rope, key_rope=rope, input_layout="BSND")
        check(query, latent, latent, **shared, query_rope=q_rope, key_rope=rope, input_layout="BSND_NBSD")
    flat = {
        "query_rope": q_rope.flatten(0, 1),
        "key_rope": rope,
        "actual_seq_lengths": [1, 2],
        "softmax_lse_flag": True,
    }
    check(query.flatten(0, 1), latent, latent, **shared, **flat, input_layout="TND_NTD")
    check(
        query.flatten(0, 1),
        latent,
        latent,
        **shared,
        **flat,
        input_layout="TND",
        sparse_mode=3,
        atten_mask=TRIANGLE,
    )


def test_mla_prefill() -> None:
    heads, total = 4, [3, 70]
    parts = {"query_rope": make(70, heads, 64), "key_rope": make(70, heads, 64, seed=1)}
    shared = {
        "num_heads": heads,
        "scale": 192**-0.5,
        "input_layout": "TND",
        "sparse_mode": 3,
        "atten_mask": TRIANGLE,
    }
    lengths = {"actual_seq_lengths": total, "actual_seq_lengths_kv": total, "softmax_lse_flag": True}
    query, key, value = make(70, heads, 128), make(70, heads, 128, seed=1), make(70, heads, 128, seed=2)
    out, _ = check(query, key, value, **parts, **shared, **lengths)
    whole, _ = check(
        torch.cat([query, parts["query_rope"]], -1),
        torch.cat([key, parts["key_rope"]], -1),
        value,
        **shared,
        **lengths,
    )
    assert torch.equal(out, whole)


def test_learnable_sink() -> None:
    query = torch.zeros(1, 1, 64, dtype=BF16)
    key, value = torch.zeros(2, 1, 64, dtype=BF16), torch.zeros(2, 1, 64, dtype=BF16)
    query[0, 0, 0] = key[0, 0, 0] = 1.0
    value[0, 0, 0] = value[1, 0, 1] = 1.0
    lengths = {
        "actual_seq_lengths": [1],
        "actual_seq_lengths_kv": [2],
        "input_layout": "TND",
        "softmax_lse_flag": True,
    }
    out, lse = check(query, key, value, **lengths, learnable_sink=torch.zeros(1, dtype=BF16))
    assert out[0, 0, :2].tolist() == pytest.approx([0.576117, 0.211942], abs=2e-3)
    assert lse.item() == pytest.approx(1.313262, abs=1e-6)
    q, k, v = make(50, 8, 64), make(300, 2, 64), make(300, 2, 64, seed=1)
    shared = {
        "num_heads": 8,
        "num_key_value_heads": 2,
        "input_layout": "TND",
        "sparse_mode": 4,
        "pre_tokens": 20,
        "next_tokens": 0,
    }
    lengths = {"actual_seq_lengths": [1, 50], "actual_seq_lengths_kv": [30, 300], "softmax_lse_flag": True}
    check(q, k, v, **shared, **lengths, scale=0.3, atten_mask=TRIANGLE, learnable_sink=make(8) * 3)


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


def refused(message: str, *args: torch.Tensor, **kwargs: Any) -> None:
    with pytest.raises(RuntimeError, match=message) as caught:
        run(*args, **kwargs)
    assert "161002" in str(caught.value)


def test_refusals() -> None:
    query, cache = make(6, 4, 64), make(4, 16, 128)
    table = torch.zeros(2, 2, dtype=torch.int32)
    good: dict[str, Any] = {
        "num_heads": 4,
        "num_key_value_heads": 2,
        "input_layout": "TND",
        "block_size": 16,
        "block_table": table,
        "actual_seq_lengths": [2, 6],
        "actual_seq_lengths_kv": [20, 30],
    }
    run(query, cache, cache, **good)
    refused("actual_seq_lengths must not decrease", query, cache, cache, **{**good, "actual_seq_lengths": [7, 6]})
    refused("actual_seq_lengths is 5, query has 6", query, cache, cache, **{**good, "actual_seq_lengths": [2, 5]})
    refused("actual_seq_lengths_kv has 3", query, cache, cache, **{**good, "actual_seq_lengths_kv": [20, 30, 1]})
    refused("negative", query, cache, cache, **{**good, "actual_seq_lengths_kv": [20, -1]})
    refused("needs 3", query, cache, cache, **{**good, "actual_seq_lengths_kv": [20, 33]})
    refused("block_table has 1 rows", query, cache, cache, **{**good, "block_table": table[:1]})
    refused("block_table must be int32", query, cache, cache, **{**good, "block_table": table.long()})
    refused(
        r"block_table\[1\]\[1\] is 4",
        query,
        cache,
        cache,
        **{**good, "block_table": torch.tensor([[0, 0], [0, 4]], dtype=torch.int32)},
    )
    refused("block_size", query, cache, cache, **{**good, "block_size": 32})
    refused("no multiple", query, cache, cache, **{**good, "num_key_value_heads": 3})
    refused("dtype of query", query, cache.half(), cache, **good)
    refused("key_antiquant_scale", query, cache.to(torch.int8), cache.to(torch.int8), **good)
    refused("sparse_mode 3 needs atten_mask", query, cache, cache, **good, sparse_mode=3)
    refused("compressed", query, cache, cache, **good, sparse_mode=3, atten_mask=TRIANGLE[:64, :64])
    refused("bool, int8 or uint8", query, cache, cache, **good, sparse_mode=3, atten_mask=TRIANGLE.float())
    refused("sparse_mode is 7", query, cache, cache, **good, sparse_mode=7)
    refused(
        "empty band",
        query,
        cache,
        cache,
        **good,
        sparse_mode=4,
        pre_tokens=-3,
        next_tokens=1,
        atten_mask=TRIANGLE,
    )
    q, k = make(1, 4, 600, 64), make(1, 4, 600, 64)
    row_mask = torch.zeros(1, 1, 1, 600, dtype=torch.bool)
    refused("atten_mask has the shape", q, k, k, num_heads=4, input_layout="BNSD", atten_mask=row_mask)


def test_strict_limits(strict: None) -> None:
    cache, table = make(4, 16, 2 * 80), torch.zeros(1, 2, dtype=torch.int32)
    shared: dict[str, Any] = {"num_heads": 2, "input_layout": "TND", "block_size": 16, "block_table": table}
    lengths = {"actual_seq_lengths": [6], "actual_seq_lengths_kv": [20]}
    refused("head sizes", make(6, 2, 80), cache, cache, **shared, **lengths)
    fine = make(4, 16, 2 * 64)
    run(make(6, 2, 64), fine, fine, **shared, **lengths)
    refused("float32", make(6, 2, 64).float(), fine.float(), fine.float(), **shared, **lengths)
    short = {"actual_seq_lengths": [6], "actual_seq_lengths_kv": [5]}
    refused(
        "5 keys for 6 queries",
        make(6, 2, 64),
        fine,
        fine,
        **shared,
        **short,
        sparse_mode=3,
        atten_mask=TRIANGLE,
    )
    wrong = TRIANGLE.clone()
    wrong[1024, 7] = 1
    refused("upper triangle", make(6, 2, 64), fine, fine, **shared, **lengths, sparse_mode=3, atten_mask=wrong)
    out, _ = run(
        make(2, 3, 2, 64),
        make(2, 3, 2, 64),
        make(2, 3, 2, 64),
        num_heads=2,
        input_layout="BSND",
        actual_seq_lengths=[2, 3],
    )
    assert out[0, 2].isnan().all() and not out[1].isnan().any()
