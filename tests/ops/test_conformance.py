"""The conformance run must be able to fail: each kind of wrong operator is made and caught."""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from aloft.ops import conformance
from aloft.ops.contract import Bad, Case, Contract, Tolerance
from aloft.ops.document import render
from aloft.ops.execute import run_contract
from aloft.ops.generate import Maker, sliced
from aloft.ops.registry import Registry, standard

HOST_TO_DEVICE = 1


@pytest.fixture(autouse=True)
def _contract_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets strict mode for its process where nothing is set; it must not do so for the other tests."""
    monkeypatch.setenv("ALOFT_CONTRACT", "warn")


def _double_it(x: torch.Tensor) -> torch.Tensor:
    return (x.cpu() * 2).to(x.device)


def _cases() -> list[Case]:
    make = Maker("fake")
    return [Case("contiguous", (make.normal((3, 5)),)), Case("strided", (sliced(make.normal((3, 5))),))]


def _fake(call: Callable[..., Any] | None, **changes: Any) -> Contract:
    contract = Contract(
        name="fake",
        schemas=("aten::neg",),
        formula="y = 2x",
        dtypes=(torch.float32,),
        limits=(),
        tolerance={torch.float32: Tolerance(1e-6, 0.0, "one rounding")},
        reference=lambda x: x * 2,
        cases=_cases,
        bad=list,
        source="made up",
        call=call,
    )
    return replace(contract, **changes)


def _write(address: int, data: bytes) -> None:
    acl = ctypes.CDLL("libascendcl.so")
    code = acl.aclrtMemcpy(
        ctypes.c_void_p(address), ctypes.c_size_t(len(data)), data, ctypes.c_size_t(len(data)), HOST_TO_DEVICE
    )
    assert code == 0


def test_a_right_operator_passes() -> None:
    report = run_contract(_fake(_double_it))
    assert (report.status, report.cases, report.passed) == ("passed", 2, 2), report.failures
    assert report.guarded_outputs == 2
    assert report.worst_error <= report.limit


def test_a_wrong_value_is_seen() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        y = x.cpu() * 2
        y[1, 2] += 1e-3
        return y.to(x.device)

    report = run_contract(_fake(wrong))
    assert report.status == "failed" and report.passed == 0
    assert "1 of 15 elements differ" in report.failures[0]
    assert report.worst_error == pytest.approx(1e-3, rel=0.01) and report.worst_ratio > 1


def test_json_has_numbers_only() -> None:
    report = run_contract(_fake(lambda x: (x.cpu() * float("nan")).to(x.device)))
    assert report.status == "failed"
    assert not math.isfinite(report.worst_error)
    parsed = json.loads(json.dumps([report.as_json()], allow_nan=False))[0]
    assert {"operator", "cases", "passed", "worst_error", "limit"} <= set(parsed)
    assert all(isinstance(parsed[name], (int, float)) for name in ("cases", "passed", "worst_error", "limit"))
    assert parsed["worst_error"] > 1e300


def test_a_wrong_reference_is_seen() -> None:
    contract = standard().get("npu_rms_norm")

    def off(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
        return contract.reference(x, gamma, epsilon * 2 + 1e-3)

    assert run_contract(replace(contract, reference=off)).status == "failed"


@pytest.mark.parametrize("where", ["behind", "before"])
def test_a_write_outside_the_output_is_seen(where: str) -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        y = _double_it(x)
        start = y.data_ptr()
        _write(start + y.numel() * 4 if where == "behind" else start - 4, b"\0\0\0\0")
        return y

    report = run_contract(_fake(writes))
    assert report.status == "failed"
    assert all("output 0: 4 bytes" in text and where in text for text in report.failures), report.failures


@pytest.mark.parametrize(("elements", "place"), [(-1, "first at -1"), (15, "first at +15")])
def test_a_write_outside_an_input_is_seen(elements: int, place: str) -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        _write(x.data_ptr() + 4 * elements, b"\0\0\0\0")
        return _double_it(x)

    report = run_contract(_fake(writes, cases=lambda: _cases()[:1]))
    assert report.status == "failed" and "argument self" in report.failures[0] and place in report.failures[0]


def test_a_write_between_strided_elements_is_seen() -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        _write(x.data_ptr() + 4, b"\0\0\0\0")
        return _double_it(x)

    report = run_contract(_fake(writes, cases=lambda: _cases()[1:]))
    assert "1 elements outside it were written" in report.failures[0]


def test_an_undeclared_change_of_an_input_is_seen() -> None:
    def changes(x: torch.Tensor) -> torch.Tensor:
        y = _double_it(x)
        _write(x.data_ptr(), b"\0\0\0\0")
        return y

    report = run_contract(_fake(changes))
    assert "which is not declared" in report.failures[0]


def test_a_declared_change_is_compared() -> None:
    def in_place(x: torch.Tensor) -> torch.Tensor:
        return x.copy_(x.cpu() * 2)

    def reference(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)

    assert run_contract(_fake(in_place, reference=reference, mutates=("self",))).status == "passed"
    stale = run_contract(_fake(lambda x: x, reference=reference, mutates=("self",)))
    assert any("argument self" in text for text in stale.failures)


def test_prepared_operands_reach_the_call() -> None:
    seen = []

    def prepare(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        seen.append(args[0].shape)
        return (args[0].clone(),), {**kwargs, "factor": 2}

    def call(x: torch.Tensor, factor: int) -> torch.Tensor:
        return (x.cpu() * factor).to(x.device)

    assert run_contract(_fake(call, prepare=prepare)).status == "passed"
    assert seen == [(3, 5), (3, 5)]


def test_shape_dtype_count_and_device_are_checked() -> None:
    wrong = {
        "shape": lambda x: _double_it(x).view(5, 3),
        "dtype": lambda x: (x.cpu() * 2).half().to(x.device),
        "2 outputs": lambda x: (_double_it(x), _double_it(x)),
        "is on cpu": lambda x: x.cpu() * 2,
    }
    for text, call in wrong.items():
        report = run_contract(_fake(call))
        assert report.status == "failed" and text in report.failures[0], (text, report.failures)


def test_refusals() -> None:
    def picky(x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 1:
            raise ValueError("x must have two dimensions")
        if x.dim() == 3:
            raise KeyError("x")
        return _double_it(x)

    bad = [
        Bad("one dimension", (torch.zeros(3),), names="X"),
        Bad("another name", (torch.zeros(3),), names="gamma"),
        Bad("accepted", (torch.zeros(3, 3),), names="x"),
        Bad("another error", (torch.zeros(1, 1, 1),), names="x"),
        Bad("a limit", (torch.zeros(3, 3),), names="x", strict=True),
    ]
    report = run_contract(_fake(picky, bad=lambda: bad), strict=False)
    assert (report.cases, report.passed, report.refusals) == (6, 3, 4)
    assert [text.split(":")[0] for text in report.failures] == ["another name", "accepted", "another error"]
    assert run_contract(_fake(picky, bad=lambda: bad), strict=True).cases == 7


def test_an_exception_is_a_result() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("code 161002")

    report = run_contract(_fake(broken))
    assert report.status == "failed" and report.failures[0] == "contiguous: RuntimeError: code 161002"


def test_a_missing_operator_is_a_result() -> None:
    report = run_contract(_fake(None, schemas=("npu::no_such_operator",)))
    assert report.status == "missing" and report.cases == 0


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    known = Registry()
    known.register(_fake(_double_it))
    assert conformance.main(["--json"], known) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["operator"] == "fake" and row["cases"] == row["passed"] == 2
    assert row["worst_error"] <= row["limit"]
    known.register(_fake(lambda x: x, name="broken", schemas=("aten::abs",)))
    assert conformance.main([], known) == 1
    assert "1 of 2 operators passed" in capsys.readouterr().out
    assert conformance.main(["fake"], known) == 0
    assert conformance.main(["fkae"], known) == 2
    assert "did you mean fake" in capsys.readouterr().err
    assert conformance.main(["--list"], known) == 0
    assert capsys.readouterr().out.split()[-2:] == ["broken", "fake"]
    known.register(_fake(None, name="absent", schemas=("npu::no_such_operator",), optional=True))
    assert conformance.main(["absent"], known) == 0


def test_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = Registry()
    known.register(standard().get("npu_rms_norm"))
    path = tmp_path / "docs" / "ops.md"
    assert conformance.main(["--check", "--document", str(path)], known) == 1
    assert conformance.main(["--write", "--document", str(path)], known) == 0
    assert conformance.main(["--check", "--document", str(path)], known) == 0
    text = path.read_text()
    assert text == render(known.all())
    assert "npu::npu_rms_norm(Tensor input, Tensor gamma, float epsilon=9.9999999999999995e-07)" in text
    path.write_text(text.replace("mean", "sum"))
    assert conformance.main(["--check", "--document", str(path)], known) == 1
    assert "stale" in capsys.readouterr().err
