"""The clock of a start: every second in one phase, every import on its package, whichever way it came about."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from aloft.cli import clock as module
from aloft.cli.clock import Clock, TimedImports
from aloft.cli.start_phases import REST


class Time:
    """Stands still unless told to go on."""

    now = 10.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clocked = Time()
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=clocked.perf_counter))
    return clocked


def test_phases_exclude_those_within_and_add_up(time: Time) -> None:
    clock = Clock(began=4.0)
    clock.so_far("Python itself")
    time.now += 1
    with clock.phase("outer"):
        time.now += 2
        with clock.phase("inner"):
            time.now += 4
        time.now += 8
        clock.switch("behind")
        time.now += 16
        with pytest.raises(KeyError), clock.phase("inner"):
            time.now += 32
            raise KeyError
    time.now += 64
    assert clock.stop() == 133
    assert {phase: seconds for (phase, _), seconds in clock.seconds.items()} == {
        "Python itself": 6, "outer": 10, "inner": 36, "behind": 16, REST: 65,
    }  # fmt: skip


def test_imports_belong_to_the_phase_around_or_are_their_own(time: Time) -> None:
    clock = Clock(began=10.0)

    def takes(seconds: int) -> None:
        time.now += seconds

    def npu() -> None:
        takes(1)
        clock.importing("sympy", takes, None)(2)

    def torch() -> None:
        takes(4)
        clock.importing("torch_npu", npu, "autoload")()
        takes(8)

    with clock.phase("import torch"):
        clock.importing("torch", torch, None)()
        takes(16)
    assert clock.stop() == 31
    assert {key: seconds for key, seconds in clock.seconds.items() if seconds} == {
        ("import torch", "torch"): 12,
        ("import torch", ""): 16,
        ("autoload", "torch_npu"): 1,
        ("autoload", "sympy"): 2,
    }


def test_a_switch_within_an_import_stays(time: Time) -> None:
    clock = Clock(began=10.0)
    with clock.phase("before"):
        clock.importing("some", lambda: clock.switch("after"), None)()
        time.now += 1
    clock.stop()
    assert clock.seconds["after", ""] == 1


def test_other_threads_are_not_timed(time: Time) -> None:
    clock = Clock(began=10.0)
    work = clock.importing("some", lambda: setattr(time, "now", time.now + 1), "elsewhere")
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert clock.stop() == 1 and set(clock.seconds) == {(REST, "")}


def test_modules_are_found_and_made_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two packages one of which imports the other, beside another finder that asks all finders (as ours does)."""
    (tmp_path / "clocked_a").mkdir()
    (tmp_path / "clocked_a" / "__init__.py").write_text("import json.tool, clocked_b\nfrom clocked_a import part\n")
    (tmp_path / "clocked_a" / "part.py").write_text("here = __name__, __spec__.origin\n")
    (tmp_path / "clocked_b.py").write_text("import time\ntime.sleep(0.01)\n")
    monkeypatch.syspath_prepend(tmp_path)

    class AsksAll:
        @classmethod
        def find_spec(cls, name: str, path: object = None, target: object = None) -> object:
            others = (finder for finder in sys.meta_path if finder is not cls)
            return next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)

    clock = Clock(began=module.time.perf_counter())
    monkeypatch.setattr(sys, "meta_path", [TimedImports(clock, {"clocked_b": "b"}), AsksAll, *sys.meta_path])
    names = ("clocked_a", "clocked_a.part", "clocked_b")
    try:
        made = importlib.import_module("clocked_a")
        assert made.part.here == ("clocked_a.part", str(tmp_path / "clocked_a" / "part.py"))
        with pytest.raises(ModuleNotFoundError, match="clocked_c"):
            importlib.import_module("clocked_c")
    finally:
        for name in names:
            sys.modules.pop(name, None)
    clock.stop()
    assert set(clock.seconds) == {(REST, ""), (REST, "clocked_a"), ("b", "clocked_b")}
    assert clock.seconds["b", "clocked_b"] >= 0.01
