"""Layers keep their bfloat16 weights compact, unless told not to; nothing they compute changes."""

from __future__ import annotations

import pytest
import torch
import torch_npu  # noqa: F401

from aloft import config
from aloft.layers import linear
from aloft.ops.compact import compact


@pytest.mark.parametrize("wanted", [True, False])
def test_layer_and_head(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_settings", lambda: config.parse({"compact_weights": wanted}))
    torch.manual_seed(0)
    weight = (torch.randn(640, 192) / 14).bfloat16()
    fresh = linear.pack(weight.npu())
    possible = compact(fresh) > 0  # on this processor
    method, head = linear.NzLinearMethod(), linear.NzEmbeddingMethod()
    layer, table = torch.nn.Module(), torch.nn.Module()
    for module, how in ((layer, method), (table, head)):
        module.weight = torch.nn.Parameter(weight.npu(), requires_grad=False)
        how.process_weights_after_loading(module)
    for rows in (1, 4, 9, 40):
        x = torch.randn(rows, 192).bfloat16().npu()
        want = torch.nn.functional.linear(x, weight.npu())
        assert torch.equal(method.apply(layer, x), want)
        assert torch.equal(head.apply(table, x), want)
    # compacting what is compact does nothing, what is not does something
    for packed in (layer.weight.data, table.aloft_head.weight):
        assert (compact(packed) == 0) == (wanted or not possible)
        assert torch.equal(packed.cpu(), weight.t())


def test_the_first_rows_of_a_matrix_are_not_taken_for_one() -> None:
    weight = (torch.randn(256, 384) / 14).bfloat16()
    packed = linear.pack(weight.t().contiguous().npu())
    assert compact(packed[:128]) == 0
    assert torch.equal(packed.cpu(), weight)
