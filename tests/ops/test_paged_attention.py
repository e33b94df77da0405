"""The composite of documented operators behind aloft::paged_attention on CANN, against the contract's reference."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch_npu  # noqa: F401

from aloft.ops import paged_attention
from aloft.ops.compare import compare
from aloft.ops.contracts.paged_attention import CONTRACT
from aloft.ops.execute import reference_outputs

CASES = list(CONTRACT.cases())


@pytest.mark.parametrize("case", CASES[::2], ids=lambda case: case.label)
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_composite(case, device):  # type: ignore[no-untyped-def]
    def move(value):  # type: ignore[no-untyped-def]
        return value.to(device) if isinstance(value, torch.Tensor) else value

    got = paged_attention.composite(*map(move, case.args), **{k: move(v) for k, v in case.kwargs.items()})
    for index, (value, want) in enumerate(zip(got, reference_outputs(CONTRACT, case).outputs, strict=True)):
        comparison = compare(value.cpu(), want, CONTRACT.tolerance_of(case, value.dtype, index))
        assert not comparison.problem, comparison.problem


def test_ensure_defines_the_operator_where_nothing_else_does() -> None:
    program = """
import torch
from aloft.ops import paged_attention
assert not hasattr(torch.ops.aloft, "paged_attention")
paged_attention.ensure()
paged_attention.ensure()
q, cache, table = torch.ones(2, 2, 4), torch.ones(1, 4, 1, 4), torch.zeros(1, 1, dtype=torch.int32)
out = torch.empty(2, 2, 4)
result, lse = torch.ops.aloft.paged_attention(q, cache, cache, table, [2], [3], 1, 1.0, out=out)
assert result is out and out.eq(1).all() and lse.shape == (0,)
_, lse = torch.ops.aloft.paged_attention(q, cache, cache, table, [2], [3], 1, 1.0, return_lse=True)
assert lse.shape == (2, 2)
"""
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
