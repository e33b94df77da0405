"""Every operator of torch's own table, on the NPU as on the CPU: functional, in-place and out= forms, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opinfo import (
    HALVES,
    OPERATORS,
    assert_same,
    assert_same_outcome,
    attempt,
    copied,
    in_float,
    is_random,
    name,
    samples,
    to_npu,
)
from torch.utils._pytree import tree_leaves

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64)
by_operator = pytest.mark.parametrize("op", OPERATORS, ids=name)


@pytest.fixture(autouse=True)
def quiet(recwarn: pytest.WarningsRecorder) -> None:
    """Deprecations of torch's own samples are not ours."""


@by_operator
def test_functional(op: Any) -> None:
    for dtype in DTYPES:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for sample in samples(op, dtype, 3 if dtype == torch.float32 else 1):
            inputs, args, kwargs = to_npu((sample.input, sample.args, sample.kwargs))
            want, refused = attempt(op, sample.input, *sample.args, **sample.kwargs)
            got, error = attempt(op, inputs, *args, **kwargs)
            wide = in_float(op, sample) if dtype in HALVES and refused is None else None
            assert_same_outcome(op, want, refused, got, error, wide)


@by_operator
def test_in_place(op: Any) -> None:
    if op.inplace_variant is None:
        pytest.skip("has no in-place form")
    for dtype in (torch.float32, torch.int64):
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for sample in samples(op, dtype, 2):
            if not isinstance(sample.input, torch.Tensor) or sample.broadcasts_input:
                continue
            inputs, args, kwargs = to_npu((sample.input, sample.args, sample.kwargs))
            target = sample.input.clone()
            want, refused = attempt(op.inplace_variant, target, *sample.args, **sample.kwargs)
            memory = inputs.data_ptr()
            got, error = attempt(op.inplace_variant, inputs, *args, **kwargs)
            if assert_same_outcome(op, want, refused, got, error):
                assert got.data_ptr() == memory
                assert_same(target, inputs, values=not is_random(op))


@by_operator
def test_out(op: Any) -> None:
    if not op.supports_out:
        pytest.skip("has no out= form")
    for sample in samples(op, torch.float32, 2) if torch.float32 in op.supported_dtypes("cpu") else ():
        want, refused = attempt(op, sample.input, *copied(sample.args), **copied(sample.kwargs))
        if refused is not None or not tree_leaves(want):
            continue
        inputs, args, kwargs = to_npu((sample.input, sample.args, sample.kwargs))
        kwargs.pop("out", None)
        single = isinstance(want, torch.Tensor)
        wanted = [want.resolve_conj()] if single else tree_leaves(want)
        if not all(isinstance(w, torch.Tensor) for w in wanted):
            continue
        for fitting in (True, False):  # right shapes are filled in place, empty ones are resized
            outs = [torch.empty_like(w, device="npu") if fitting else w.new_empty(0, device="npu") for w in wanted]
            memory = [o.data_ptr() for o in outs]
            got, error = attempt(op, inputs, *args, **kwargs, out=outs[0] if single else tuple(outs))
            if isinstance(error, TypeError):
                break  # the Python signature of this overload has no out=
            if error is not None:
                _, refused = attempt(op, sample.input, *copied(sample.args), **copied(sample.kwargs),
                                     out=outs[0].cpu() if single else tuple(o.cpu() for o in outs))  # fmt: skip
                assert type(refused) is type(error), f"CPU: {refused!r}; NPU: {error!r}"
                continue
            assert_same(wanted, outs, values=not is_random(op))
            gotten = tree_leaves(got) if got is not None else []  # a few list operators return nothing
            assert all(g.data_ptr() == o.data_ptr() for g, o in zip(gotten, outs, strict=False))
            if fitting:
                assert memory == [o.data_ptr() for o in outs]


@by_operator
def test_gradient(op: Any) -> None:
    if not op.supports_autograd or torch.float32 not in op.supported_backward_dtypes("cpu") or is_random(op):
        pytest.skip("has no gradient to compare")
    for sample in samples(op, torch.float32, 1, requires_grad=True):
        inputs, args, kwargs = to_npu((sample.input, sample.args, sample.kwargs))
        want, refused = attempt(op, sample.input, *sample.args, **sample.kwargs)
        if refused is not None:
            continue
        got = op(inputs, *args, **kwargs)
        pairs = [
            (w, g)
            for w, g in zip(tree_leaves(want), tree_leaves(got), strict=True)
            if isinstance(w, torch.Tensor) and w.requires_grad
        ]
        if not pairs:
            continue
        leaves = [t for t in tree_leaves((sample.input, sample.args, sample.kwargs)) if _wants_gradient(t)]
        on_npu = [t for t in tree_leaves((inputs, args, kwargs)) if _wants_gradient(t)]
        grads = [torch.ones_like(w) for w, _ in pairs]
        wanted, refused = attempt(torch.autograd.grad, [w for w, _ in pairs], leaves, grads, allow_unused=True)
        gotten, error = attempt(
            torch.autograd.grad, [g for _, g in pairs], on_npu, [g.npu() for g in grads], allow_unused=True
        )
        assert_same_outcome(op, wanted, refused, gotten, error)


def _wants_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
