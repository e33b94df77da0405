"""Contracts are found by file name, loaded when asked for, and unique."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from aloft.ops.contract import EXACT, Case, Contract, Tolerance
from aloft.ops.generate import Maker, layouts, shifted, sliced, transposed
from aloft.ops.registry import Registry, overloads, standard


def _contract(name: str = "negate", schema: str = "aten::neg") -> Contract:
    return Contract(
        name=name,
        schemas=(schema,),
        formula="y = -x",
        dtypes=(torch.float32,),
        limits=(),
        tolerance={torch.float32: EXACT},
        reference=torch.neg,
        cases=lambda: [Case("one", (torch.ones(1),))],
        bad=list,
        source="arithmetic",
    )


def test_names_need_no_import() -> None:
    known = standard()
    assert "npu_rms_norm" in known.names()
    sys.modules.pop("aloft.ops.contracts.npu_rms_norm", None)
    standard().names()
    assert "aloft.ops.contracts.npu_rms_norm" not in sys.modules
    assert known.get("npu_rms_norm").schemas == ("npu::npu_rms_norm",)


def test_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"npu_rmsnorm.*did you mean npu_rms_norm"):
        standard().get("npu_rmsnorm")


def test_duplicate_name_is_refused() -> None:
    known = Registry()
    known.register(_contract())
    with pytest.raises(ValueError, match="already has a contract"):
        known.register(_contract())
    with pytest.raises(ValueError, match="already has a contract"):
        standard().register(_contract("npu_rms_norm"))


def test_duplicate_schema_is_refused() -> None:
    known = Registry()
    known.register(_contract())
    with pytest.raises(ValueError, match=r"aten::neg.*'negate' and 'minus'"):
        known.register(_contract("minus"))


@pytest.mark.parametrize("change", [{"schemas": ()}, {"schemas": ("neg",)}, {"formula": " "}, {"source": ""}])
def test_incomplete_contract_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="contract negate"):
        replace(_contract(), **change)


def test_every_contract_is_well_formed() -> None:
    for contract in standard().all():
        cases, bad = list(contract.cases()), list(contract.bad())
        assert cases, contract.name
        labels = [each.label for each in cases] + [each.label for each in bad]
        assert len(set(labels)) == len(labels), f"{contract.name}: labels repeat"
        assert bad, f"{contract.name}: no call that must be refused"
        assert {case.dtype for case in cases} >= set(contract.dtypes), f"{contract.name}: a dtype has no case"


def test_cases_are_the_same_every_time() -> None:
    contract = standard().get("npu_rms_norm")
    for first, second in zip(contract.cases(), contract.cases(), strict=True):
        for a, b in zip(first.args, second.args, strict=True):
            assert torch.equal(a.nan_to_num(), b.nan_to_num()) and a.stride() == b.stride()


def test_overloads() -> None:
    assert [str(each) for each in overloads("aten::neg")] == ["aten.neg.default"]
    assert [str(each) for each in overloads("aten::sort.stable")] == ["aten.sort.stable"]
    assert overloads("aten::no_such_operator") == []
    assert overloads("aten::neg.no_such_overload") == []


def test_layouts_keep_values() -> None:
    t = Maker("layouts").normal((3, 5))
    assert {label for label, _ in layouts(t)} == {"shifted", "strided", "row-padded", "column-major"}
    for _, view in layouts(t):
        assert torch.equal(view, t)
    assert not sliced(t).is_contiguous() and not transposed(t).is_contiguous()
    assert shifted(t).storage_offset() == 1
    assert list(layouts(torch.empty(0, 3))) == []


def test_distinct_has_no_ties() -> None:
    values = Maker("distinct").distinct((4, 200), torch.bfloat16)
    assert all(len(set(row.tolist())) == 200 for row in values)
    with pytest.raises(ValueError, match="256"):
        Maker("distinct").distinct((300,), torch.bfloat16)


def test_tolerance_lookup() -> None:
    loose, tight = Tolerance(1e-2, 0, "a"), Tolerance(1e-6, 0, "b")
    contract = replace(_contract(), tolerance={torch.float32: tight, (torch.float32, 1): loose})
    case = Case("x", ())
    assert contract.tolerance_of(case, torch.float32, 0) is tight
    assert contract.tolerance_of(case, torch.float32, 1) is loose
    assert contract.tolerance_of(case, torch.int64, 0) is EXACT
    assert contract.tolerance_of(replace(case, tolerance=loose), torch.float32, 0) is loose
    with pytest.raises(ValueError, match="no tolerance for output 0"):
        contract.tolerance_of(case, torch.float16, 0)
