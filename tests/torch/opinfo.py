"""Runs torch's own operator samples on the CPU and on the NPU and compares.

Both sides start from the same values. A sample that raises on the CPU must raise the same type on the NPU.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

# Each sample would look for its test on the stack: five sixths of the time of these tests.
common_utils.extract_test_fn = lambda: None

# Results depend on a generator: only that they run, and their geometry, is compared.
RANDOM = ("rand", "dropout", "bernoulli", "multinomial", "normal", "exponential", "uniform", "cauchy", "geometric",
          "empty", "rrelu", "lowrank", "fractional_max_pool", "scaled_dot_product", "multi_head_attention_forward")  # fmt: skip  # noqa: E501
# Any order of equal elements is right: their last result is an index.
TIES = ("topk", "sort", "argsort")
HALVES = (torch.float16, torch.bfloat16)
# Sparse layouts are refused; as_strided reaches outside its argument, tensor_split wants host indices.
SKIPPED = ("sparse.", "to_sparse", "as_strided.partial_views", "as_strided_copy", "tensor_split")
OPERATORS = [op for op in op_db if not f"{op.name}.{op.variant_test_name}".startswith(SKIPPED)]


def name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def to_npu(values: Any) -> Any:
    """The same arguments on the NPU: tensors (gradient flag kept), and devices named among them."""

    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.detach().npu().requires_grad_(value.requires_grad)
        if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
            return "npu"
        return value

    return tree_map(one, values)


def copied(values: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), values)


def samples(op: Any, dtype: torch.dtype, count: int, **options: Any) -> list[Any]:
    torch.manual_seed(0)
    return list(islice(op.sample_inputs("cpu", dtype, **options), count))


def is_random(op: Any) -> bool:
    return any(word in op.name for word in RANDOM)


def attempt(function: Any, *args: Any, **kwargs: Any) -> tuple[Any, Exception | None]:
    try:
        return function(*args, **kwargs), None
    except Exception as error:
        return None, error


def in_float(op: Any, sample: Any) -> Any:
    """The operator on the CPU with 16-bit floats widened to float32; None where it does not take that."""

    def widen(value: torch.Tensor) -> torch.Tensor:
        return value.float() if value.dtype in HALVES else value

    inputs, args, kwargs = tree_map_only(torch.Tensor, widen, (sample.input, sample.args, sample.kwargs))
    return attempt(op, inputs, *args, **kwargs)[0]


def assert_same(want: Any, got: Any, values: bool = True) -> None:
    """Equal structure, dtypes and shapes; tensors on the NPU; and equal values unless told otherwise."""
    wanted, gotten = tree_leaves(want), tree_leaves(got)
    assert len(wanted) == len(gotten)
    for w, g in zip(wanted, gotten, strict=True):
        if not isinstance(w, torch.Tensor):
            assert w == g or w != w or not values, (w, g)
            continue
        assert g.device.type == "npu"
        assert (w.dtype, w.shape, w.is_conj(), w.is_neg()) == (g.dtype, g.shape, g.is_conj(), g.is_neg())
        if values:
            torch.testing.assert_close(g.cpu(), w, equal_nan=True)


def assert_same_outcome(
    op: Any, want: Any, refused: Exception | None, got: Any, error: Exception | None, wide: Any = None
) -> bool:
    """True when both sides gave a result, which is then equal; to `wide` where the CPU rounds at every step."""
    if refused is not None:
        assert type(error) is type(refused), f"CPU: {refused!r}; NPU: {error!r}, {got!r}"
        return False
    if error is not None:
        raise error
    if op.name in TIES:
        *want, at = want if isinstance(want, tuple) else (want,)
        *got, found = got if isinstance(got, tuple) else (got,)
        assert (at.dtype, at.shape) == (found.dtype, found.shape)
    try:
        assert_same(want, got, values=not is_random(op))
    except AssertionError:
        if wide is None:
            raise
        pairs = zip(tree_leaves(wide), tree_leaves(got), strict=True)
        assert_same([w.to(g.dtype) if isinstance(w, torch.Tensor) else w for w, g in pairs], got)
    return True
