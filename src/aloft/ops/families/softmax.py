"""Cases shared by softmax and log_softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from aloft.ops.contract import Bad, Case
from aloft.ops.generate import Maker, layouts
from aloft.ops.rounding import FLOATS, rounded

DTYPES = FLOATS
TOLERANCE = rounded(1, 4e-6, 1e-6, "exponential and sums in any order")

_INF, _NAN = float("inf"), float("nan")


def value_cases(name: str, form: str) -> Iterator[Case]:
    """Forward calls ``form(x, dim, half_to_float=False)``."""
    make = Maker(name)
    shapes: dict[str, tuple[tuple[int, ...], int]] = {
        "aligned": ((4, 64), -1),
        "odd": ((3, 5, 67), 2),
        "middle dimension": ((3, 37, 5), 1),
        "first dimension": ((9, 130), 0),
        "one element": ((1, 1), -1),
        "seven elements": ((2, 7), -1),
        "scalar": ((), 0),
        "no rows": ((0, 64), -1),
        "no columns": ((3, 0), 0),
        "vocabulary": ((2, 49152), -1),
    }
    for dtype in DTYPES:
        for label, (shape, dim) in shapes.items():
            yield Case(f"{label}, {dtype}", (make.normal(shape, dtype, 4.0), dim, False), dtype=dtype, form=form)
        for label, x in layouts(make.normal((5, 48), dtype, 4.0)):
            yield Case(f"{label}, {dtype}", (x, -1, False), dtype=dtype, form=form)
    special = make.normal((6, 33))
    special[0, 3], special[1, 4], special[2, :], special[3, 5:] = _NAN, _INF, -_INF, -_INF
    special[4] *= 1e4
    yield Case("NaN, infinities and far values", (special, -1, False), form=form)


def gradient_cases(name: str, form: str, forward: Callable[[torch.Tensor, int], torch.Tensor]) -> Iterator[Case]:
    """Backward calls ``form(grad_output, output, dim, input_dtype)``."""
    make = Maker(f"{name}, gradient")
    for dtype in DTYPES:
        for label, shape, dim in (("odd", (3, 5, 67), -1), ("middle dimension", (3, 37, 5), 1), ("empty", (0, 8), -1)):
            output = forward(make.normal(shape, torch.float32, 2.0), dim).to(dtype)
            args = (make.normal(shape, dtype), output, dim, dtype)
            yield Case(f"gradient, {label}, {dtype}", args, dtype=dtype, form=form)


def bad_calls(form: str) -> Iterator[Bad]:
    """Calls either of the two must refuse."""
    x = Maker("softmax, bad").normal((4, 64))
    yield Bad("dim beyond the last", (x, 2, False), names="dim", form=form)
    yield Bad("dim before the first", (x, -3, False), names="dim", form=form)
    yield Bad("integers", (x.int(), -1, False), names="softmax", form=form)
