"""What `aloft profile` prints of times that another runtime has, and where it refuses; the engine is a stand-in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aloft.cli import profile
from aloft.cli.errors import UserError
from aloft.runtime.cann_timing import CannTimer
from aloft.runtime.timing import OperatorTime, OperatorTimes, TimingUnavailable

SETTINGS = profile.Settings(Path("models/some"), "bfloat16", 1, 32, 16, 512, eager=False)
CLOCKS = {"execute": 2.0, "sample": 1.0, "schedule": 0.5, "update": 0.25, "detokenize": 0.25}


def times() -> OperatorTimes:
    found = OperatorTimes(
        [OperatorTime("aclnnMm_MatMulCommon_MatMulV2", 32, 6.0, 0, 0), OperatorTime("Add", 16, 2, 0, 0)]
    )
    found.note = "Something is left out."
    return found


def test_parts_add_up_with_operators_in_the_hosts_time_or_beside_it() -> None:
    inline = profile.parts_of(5.0, CLOCKS, 2.5)
    assert inline["operators"] == 2.5 and inline["runner outside operators"] == 0.5
    beside = profile.parts_of(5.0, CLOCKS, None)
    assert not any("operator" in name for name in beside) and beside["runner"] == 3.0
    assert sum(inline.values()) == sum(beside.values()) == 5.0
    assert min(beside.values()) >= 0


@pytest.fixture
def _on_cann(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "computes_beside_host", lambda: True)
    monkeypatch.setattr(profile, "device_line", lambda: "npu:0, CANN")
    timer = CannTimer.__new__(CannTimer)  # without asking for CANN
    monkeypatch.setattr("aloft.runtime.timing.operator_timer", lambda: timer)
    parts = {name: seconds / 16 for name, seconds in profile.parts_of(5.0, CLOCKS, None).items()}
    measured = [profile.Measured("decode step", 16, 5.0 / 16, parts, {"operators": 0.5}, times())]
    monkeypatch.setattr(profile, "_measured", lambda settings, given: measured)


@pytest.mark.usefixtures("_on_cann")
def test_tables_say_what_the_times_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert profile.profile(SETTINGS, as_json=False) == 0
    text = capsys.readouterr().out
    assert text.startswith("npu:0, CANN; some, bfloat16") and "NOT been tried on hardware" in text
    assert "second run of as many steps" in text and "no part of that sum" in text
    rows = {line[:44].strip(): line[44:].split() for line in text.splitlines()}
    assert rows["aclnnMm_MatMulCommon_MatMulV2"] == ["2.0", "375.000", "75.0%"]  # nothing known of bytes
    assert rows["beside the host: operators"] == ["500.000", "160.0%"]
    assert rows["runner"] == ["187.500", "60.0%"] and "runner outside operators" not in rows
    assert "Something is left out." in text


@pytest.mark.usefixtures("_on_cann")
def test_json_has_the_same_form_on_both_runtimes(capsys: pytest.CaptureFixture[str]) -> None:
    assert profile.profile(SETTINGS, as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["device"] == "npu:0, CANN" and len(report["notes"]) == 2
    (step,) = report["steps"]
    assert sum(step["parts"].values()) == pytest.approx(step["seconds"])
    assert step["beside_host"]["operators"] * step["steps"] == sum(entry["seconds"] for entry in step["operators"])
    assert step["note"] == "Something is left out." and step["operators"][0]["calls"] == 32


@pytest.mark.parametrize("where", ["operator_timer", "_measured"])
def test_a_profiler_that_cannot_be_used_is_a_sentence(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise TimingUnavailable("msprof is not on PATH.")

    monkeypatch.setattr("aloft.runtime.timing.operator_timer", refuse if where == "operator_timer" else lambda: None)
    monkeypatch.setattr(profile, "_measured", refuse)
    with pytest.raises(UserError, match=r"^msprof is not on PATH\.$"):
        profile.profile(SETTINGS, as_json=False)
