"""npu_fused_infer_attention_score with rotary parts of their own (MLA) and with sinks."""

from __future__ import annotations

import pytest
import torch
import torch_npu  # noqa: F401
from fused_infer import BF16, TRIANGLE, check, make, paged


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
