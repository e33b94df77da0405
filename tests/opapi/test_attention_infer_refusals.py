"""What npu_fused_infer_attention_score refuses, always or in strict mode."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401
from fused_infer import TRIANGLE, make, run

from aloft.runtime.choice import library_folder


@pytest.fixture
def strict():
    library = ctypes.CDLL(str(library_folder() / "libopapi.so"))
    before = library.aloftSetContract(None)
    assert library.aloftSetContract(b"strict") == 0
    yield
    library.aloftSetContract([b"strict", b"warn", b"off"][before])


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
