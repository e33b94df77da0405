"""The head in int8: exact products of what the rounding of weights and activations leaves."""

from __future__ import annotations

import pytest
import torch
import torch_npu  # noqa: F401

from aloft import config
from aloft.layers import linear
from aloft.ops import quant


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("mode", [0, 2])
def test_int8_head(dtype: torch.dtype, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_settings", lambda: config.parse({"lm_head": "int8", "weight_nz_mode": mode}))
    method, layer = linear.NzEmbeddingMethod(), torch.nn.Module()
    torch.manual_seed(0)
    table, x, bias = torch.randn(640, 192).to(dtype), torch.randn(5, 192).to(dtype), torch.randn(640).to(dtype)
    layer.weight = torch.nn.Parameter(table.npu(), requires_grad=False)
    method.process_weights_after_loading(layer)
    got = method.apply(layer, x.npu()).cpu()
    if dtype == torch.float32:  # the operators take 16-bit types
        assert torch.allclose(got, x @ table.T, atol=1e-4)
        return
    (rows, row_scale), (columns, scale) = quant.dynamic(x.float()), quant.dynamic(table.float())
    want = (rows.long() @ columns.long().T).float() * scale * row_scale[:, None]
    assert torch.equal(got, want.to(dtype))
    assert torch.equal(method.apply(layer, x.npu().view(5, 1, 192)).cpu()[:, 0], got)
    assert torch.equal(method.apply(layer, x.npu(), bias.npu()).cpu(), (want + bias.float()).to(dtype))
    assert 0.001 < (got.float() - x.float() @ table.float().T).std() / got.float().std() < 0.02
