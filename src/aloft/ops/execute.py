"""Runs the cases of one contract on a device and judges the results."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from aloft.ops.compare import compare
from aloft.ops.contract import Bad, Case, Contract, Masked
from aloft.ops.guard import GuardedOperand, OutputArena
from aloft.ops.registry import overloads

_REFUSALS = (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError)


@dataclass
class Report:
    """What the conformance run found for one operator.

    `status`: "passed", "failed", or "missing" (this runtime's torch has no such operator). `worst_error` is the
    absolute error of the element nearest to (or farthest beyond) its `limit`; `worst_ratio` is one over the other.
    """

    operator: str
    status: str = "passed"
    cases: int = 0
    passed: int = 0
    refusals: int = 0
    worst_error: float = 0.0
    limit: float = 0.0
    worst_ratio: float = 0.0
    guarded_outputs: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """A JSON-ready dict. JSON has no infinity: an infinite error (a NaN, a wrong shape) is the largest float."""
        largest = sys.float_info.max
        return {k: largest if isinstance(v, float) and not v <= largest else v for k, v in vars(self).items()}


def run_contract(contract: Contract, device: str = "npu", strict: bool = True) -> Report:
    """Runs every case and every refusal of `contract` on `device`.

    `strict`: the runtime refuses what hardware would refuse, so the refusals marked strict are tried too.
    """
    report = Report(contract.name)
    started = time.perf_counter()
    if contract.call is None and not overloads(contract.schemas[0]):
        report.status = "missing"
        report.failures.append(f"{contract.schemas[0]} is not registered in this process")
        return report
    for case in contract.cases():
        report.cases += 1
        try:
            problems = _run_case(contract, case, torch.device(device), report)
        except Exception as error:  # whatever an operator throws is a result here
            problems = [f"{type(error).__name__}: {_first_lines(error)}"]
        if problems:
            report.failures += [f"{case.label}: {problem}" for problem in problems]
        else:
            report.passed += 1
    for bad in contract.bad():
        if bad.strict and not strict:
            continue
        report.cases += 1
        report.refusals += 1
        problem = _run_bad(contract, bad, torch.device(device))
        if problem:
            report.failures.append(f"{bad.label}: {problem}")
        else:
            report.passed += 1
    report.seconds = time.perf_counter() - started
    if report.failures or not report.cases:
        report.status = "failed"
    return report


def _run_case(contract: Contract, case: Case, device: torch.device, report: Report) -> list[str]:
    expected = reference_outputs(contract, case)
    large = sum(_nbytes(value, case.dtype) for value in expected.outputs)
    operands: dict[int, GuardedOperand] = {}
    args = _map_tensors(case.args, lambda t: _guarded(t, operands, device))
    kwargs = _map_tensors(dict(case.kwargs), lambda t: _guarded(t, operands, device))
    if contract.prepare is not None:
        args, kwargs = contract.prepare(args, kwargs)
    arena = OutputArena(device, large if large > 1 << 20 else 0)
    result = _callable(contract, case.form)(*args, **kwargs)
    torch.npu.synchronize()  # type: ignore[attr-defined]
    outputs = as_outputs(result)
    problems = []
    storages = {operand.view.untyped_storage().data_ptr() for operand in operands.values()}
    for output in outputs:
        if output is None or output.untyped_storage().data_ptr() in storages:
            continue
        report.guarded_outputs += output.untyped_storage().nbytes() > 0 and arena.covers(output)
        problems += [f"output {_place(outputs, output)}: {text}" for text in arena.violations(output)]
    for name, tensor, reference in expected.arguments:
        operand = operands[id(tensor)]
        mutated = name in expected.mutated
        problems += [f"argument {name}: {text}" for text in operand.violations(mutated)]
        if mutated:
            tolerance = contract.tolerance_of(case, tensor.dtype, -1)
            _judge(report, problems, f"argument {name}", compare(operand.value(), reference, tolerance))
    problems += _judge_outputs(contract, case, report, outputs, expected.outputs)
    return problems


def _judge_outputs(
    contract: Contract,
    case: Case,
    report: Report,
    outputs: Sequence[torch.Tensor | None],
    expected: Sequence[torch.Tensor | Masked | None],
) -> list[str]:
    if len(outputs) != len(expected):
        return [f"{len(outputs)} outputs, the reference has {len(expected)}"]
    problems: list[str] = []
    for index, (output, want) in enumerate(zip(outputs, expected, strict=True)):
        if want is None:
            continue
        if output is None:
            problems.append(f"output {index} is not there")
            continue
        value = want.value if isinstance(want, Masked) else want
        dtype: torch.dtype | None = case.dtype if value.dtype.is_floating_point else value.dtype
        if case.returns is not None:
            dtype = case.returns[index]
        if dtype is not None and output.dtype != dtype:
            problems.append(f"output {index} has dtype {output.dtype}, it must be {dtype}")
            continue
        if output.device.type != "npu":
            problems.append(f"output {index} is on {output.device}")
            continue
        tolerance = contract.tolerance_of(case, output.dtype, index)
        _judge(report, problems, f"output {index}", compare(output.cpu(), want, tolerance))
    return problems


def _judge(report: Report, problems: list[str], what: str, comparison: Any) -> None:
    if comparison.problem:
        problems.append(f"{what}: {comparison.problem}")
    if comparison.ratio > report.worst_ratio or (report.worst_ratio == 0 and comparison.limit > report.limit):
        report.worst_error, report.limit = comparison.error, comparison.limit
        report.worst_ratio = comparison.ratio


def _run_bad(contract: Contract, bad: Bad, device: torch.device) -> str | None:
    args = _map_tensors(bad.args, lambda t: t.to(device))
    kwargs = _map_tensors(dict(bad.kwargs), lambda t: t.to(device))
    try:
        if contract.prepare is not None:
            args, kwargs = contract.prepare(args, kwargs)
        _callable(contract, bad.form)(*args, **kwargs)
        torch.npu.synchronize()  # type: ignore[attr-defined]
    except _REFUSALS as error:
        if bad.names.lower() not in str(error).lower():
            return f"refused, but the message does not name {bad.names!r}: {_first_lines(error)}"
        return None
    except Exception as error:
        return f"refused with {type(error).__name__} instead of a RuntimeError or ValueError: {_first_lines(error)}"
    return "accepted, it must be refused"


@dataclass(frozen=True)
class Expected:
    """Reference outputs of a case, and (name, tensor of the case, reference value after the call) per argument."""

    outputs: tuple[torch.Tensor | Masked | None, ...]
    arguments: tuple[tuple[str, torch.Tensor, torch.Tensor], ...]
    mutated: frozenset[str]


def reference_outputs(contract: Contract, case: Case) -> Expected:
    """Calls the contract's reference on copies of the case's operands, widened to float64 unless it says otherwise."""
    copies: dict[int, torch.Tensor] = {}

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in copies:
            fresh = tensor.clone(memory_format=torch.contiguous_format)
            copies[id(tensor)] = fresh.double() if contract.widen and fresh.dtype.is_floating_point else fresh
        return copies[id(tensor)]

    reference = case.reference or contract.reference
    result = reference(*_map_tensors(case.args, copy), **_map_tensors(dict(case.kwargs), copy))
    names, mutated = _argument_names(contract, case)
    arguments = []
    for name, value in [*zip(names, case.args, strict=False), *case.kwargs.items()]:
        tensors: list[torch.Tensor] = []
        _map_tensors(value, lambda t, found=tensors: found.append(t) or t)  # type: ignore[misc]
        arguments += [(name, tensor, copies[id(tensor)]) for tensor in tensors]
    return Expected(as_outputs(result, masked=True), tuple(arguments), mutated)


def _argument_names(contract: Contract, case: Case) -> tuple[list[str], frozenset[str]]:
    """Names of the positional arguments, and of the arguments the call may change."""
    mutated = set(contract.mutates)
    found = overloads(case.form or contract.schemas[0])
    names: list[str] = []
    for overload in found:
        arguments = overload._schema.arguments
        if len(arguments) >= len(case.args) and not names:
            names = [argument.name for argument in arguments]
        mutated |= {each.name for each in arguments if each.alias_info is not None and each.alias_info.is_write}
    names += [f"#{index}" for index in range(len(names), len(case.args))]
    return names, frozenset(mutated)


def as_outputs(result: Any, masked: bool = False) -> tuple[Any, ...]:
    """The outputs of a call as a flat tuple of tensors and None."""
    if result is None:
        return ()
    if isinstance(result, torch.Tensor) or (masked and isinstance(result, Masked)):
        return (result,)
    if isinstance(result, (list, tuple)):
        flat: list[Any] = []
        for each in result:
            flat += [None] if each is None else as_outputs(each, masked)
        return tuple(flat)
    return (torch.as_tensor(result),)


def _callable(contract: Contract, form: str | None) -> Callable[..., Any]:
    if contract.call is not None and form is None:
        return contract.call
    namespace, _, rest = (form or contract.schemas[0]).partition("::")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    return getattr(packet, overload) if overload else packet


def _guarded(tensor: torch.Tensor, known: dict[int, GuardedOperand], device: torch.device) -> torch.Tensor:
    if id(tensor) not in known:
        known[id(tensor)] = GuardedOperand(tensor, device)
    return known[id(tensor)].view


def _map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_map_tensors(each, change) for each in value)
    if isinstance(value, Mapping):
        return {key: _map_tensors(each, change) for key, each in value.items()}
    return value


def _nbytes(value: torch.Tensor | Masked | None, dtype: torch.dtype) -> int:
    if value is None:
        return 0
    tensor = value.value if isinstance(value, Masked) else value
    return tensor.numel() * (dtype.itemsize if tensor.dtype.is_floating_point else tensor.element_size())


def _place(outputs: Sequence[Any], output: Any) -> int:
    return next(index for index, each in enumerate(outputs) if each is output)


def _first_lines(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
