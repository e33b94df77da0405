"""What a contract is made of: `Contract`, its cases and its tolerances."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Reference = Callable[..., Any]


@dataclass(frozen=True)
class Tolerance:
    """How far a value may be from the float64 reference: ``|value - reference| <= atol + rtol * |reference|``.

    Attributes:
        rtol: relative part.
        atol: absolute part, in the units of the output.
        why: where the two numbers come from (rounding steps, accumulation), in one sentence for the documentation.
    """

    rtol: float
    atol: float
    why: str

    @property
    def exact(self) -> bool:
        """True when the output must equal the reference."""
        return self.rtol == 0 and self.atol == 0


EXACT = Tolerance(0.0, 0.0, "values are moved or chosen, not computed")


@dataclass(frozen=True)
class Masked:
    """A reference output of which only a part is defined: `defined` is a bool tensor broadcastable to `value`."""

    value: torch.Tensor
    defined: torch.Tensor


@dataclass(frozen=True)
class Case:
    """One call. Tensors are CPU tensors in their final dtype; their strides are reproduced on the device.

    Attributes:
        label: what is special about it ("unaligned", "empty rows"), unique within the contract.
        args: positional arguments in schema order; tensors may also stand in lists or tuples.
        kwargs: keyword arguments.
        dtype: the dtype the case is about. Floating outputs must have it unless `returns` says otherwise.
        returns: dtypes of the outputs in order; None in a place means "not checked".
        tolerance: replaces the contract's tolerance for floating outputs (a long sum, for example).
        form: "namespace::name" or "namespace::name.overload" called instead of the contract's first schema.
        reference: replaces the contract's reference (forms that mean different things).
    """

    label: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    returns: tuple[torch.dtype | None, ...] | None = None
    tolerance: Tolerance | None = None
    form: str | None = None
    reference: Reference | None = None


@dataclass(frozen=True)
class Bad:
    """A call that must be refused with a RuntimeError, ValueError, IndexError or TypeError.

    Attributes:
        label: what is wrong with it.
        args, kwargs, form: as in `Case`.
        names: text the message must contain, in any case of letters: normally the argument's name.
        strict: refused only with ALOFT_CONTRACT=strict (a limit of the hardware that the host could compute).
    """

    label: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    names: str = ""
    strict: bool = False
    form: str | None = None


@dataclass(frozen=True)
class Contract:
    """The law of one operator.

    Attributes:
        name: the operator as users call it ("npu_rms_norm", "softmax"); also the name of the module that holds it.
        schemas: "namespace::name[.overload]" of each form covered; the schema text is read from the binary.
        formula: one line.
        dtypes: dtypes of the main operands.
        limits: short statements of what the operator takes; what ends up in the documentation.
        tolerance: by output dtype, or by (output dtype, output index) where one output differs. Integer and bool
            outputs are exact when absent.
        reference: ``reference(*args, **kwargs)`` on contiguous CPU tensors, floating ones widened to float64. Returns a
            tensor or a sequence of tensors, `Masked` or None (an output that is undefined or not there). It changes
            its arguments where the operator is in place.
        cases: yields the `Case`s, the same ones at every call.
        bad: yields the `Bad` calls.
        undefined: parts of the outputs that callers may not read.
        mutates: arguments changed in place though the schema does not declare it.
        source: where the facts come from.
        call: replaces the operator lookup, called with device tensors. What it allocates and frees on the way may be
            where the output lands, which looks like a write outside it: preparations belong into `prepare`.
        prepare: ``prepare(args, kwargs) -> (args, kwargs)`` on device operands before the guarded call (a format cast).
        widen: False to hand the reference the dtypes of the case instead of float64 (formulas that round in between).
        optional: True when a runtime may lack the operator without failing the conformance run.
    """

    name: str
    schemas: tuple[str, ...]
    formula: str
    dtypes: tuple[torch.dtype, ...]
    limits: tuple[str, ...]
    tolerance: Mapping[torch.dtype | tuple[torch.dtype, int], Tolerance]
    reference: Reference
    cases: Callable[[], Iterable[Case]]
    bad: Callable[[], Iterable[Bad]]
    source: str
    undefined: tuple[str, ...] = ()
    mutates: tuple[str, ...] = ()
    call: Callable[..., Any] | None = None
    prepare: Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]] | None = None
    widen: bool = True
    optional: bool = False

    def __post_init__(self) -> None:
        if not self.schemas:
            raise ValueError(f"contract {self.name}: schemas is empty, name at least one 'namespace::operator'")
        for schema in self.schemas:
            if "::" not in schema:
                raise ValueError(f"contract {self.name}: schema {schema!r} is not 'namespace::name[.overload]'")
        for text in ("formula", "source"):
            if not getattr(self, text).strip():
                raise ValueError(f"contract {self.name}: {text} is empty")

    def tolerance_of(self, case: Case, dtype: torch.dtype, index: int) -> Tolerance:
        """Tolerance of output `index` of dtype `dtype`. ValueError when a floating dtype has none."""
        floating = dtype.is_floating_point or dtype.is_complex
        if case.tolerance is not None and floating:
            return case.tolerance
        found = self.tolerance.get((dtype, index)) or self.tolerance.get(dtype)
        if found is None and floating:
            raise ValueError(f"contract {self.name}: no tolerance for output {index} of dtype {dtype}")
        return found or EXACT
