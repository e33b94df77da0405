"""Times of operators on CANN, with stand-ins: tables after three versions' documented columns, a fake profiler."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aloft.runtime import timing
from aloft.runtime.cann_tables import OUTPUT, read
from aloft.runtime.cann_timing import CannTimer
from aloft.runtime.timing import OperatorTime, TimingUnavailable

# CANN 6.3: no device, Block Dim, a step; shapes with commas in quotes.
FIRST = """\
Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim,Input Shapes,Output Shapes
1,MatMulV2_12,MatMulV2,AI_CORE,1688006075000001.25\t,10.5\t,0\t,24,"1,576;576,576","1,576"
1,MatMulV2_31,MatMulV2,AI_CORE,1688006075000021.25\t,20\t,0\t,24,"1,576;576,576","1,576"
,RmsNorm_2,RmsNorm,AI_VECTOR_CORE,1688006075000042.0\t, 4.25 ,N/A,1,"1,576","1,576;1,1"
"""
# CANN 8.2: device, model, task, stream and state; a collective without a state.
SECOND = """\
Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),\
Block Dim,Mix Block Dim,HF32 Eligible,Input Shapes
0,4294967295,7,2,aclnnMm_MatMulCommon_MatMulV2,MatMulV2,dynamic,AI_CORE,1774670741777000.0,420.5,0.02,8,0,YES,"1,2"
0,4294967295,8,2,aclnnMm_MatMulCommon_MatMulV2,MatMulV2,dynamic,AI_CORE,1774670741777500.0,79.5,0.02,8,0,YES,"1,2"
0,4294967295,9,5,hcom_allReduce__571_0_1,hcom_allReduce_,N/A,COMMUNICATION,1774670741778000.0,300,0,0,N/A,N/A,N/A
0,4294967295,9,5,hcom_allReduce__571_1_1,hcom_allReduce_,N/A,COMMUNICATION,1774670741779000.0,100,0,0,N/A,N/A,N/A
"""
# torch_npu 2.13: Block Num; level 0 has no types.
THIRD = """\
Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Num
1,aclnnAdd_AddAiCore_Add,N/A,N/A,1774670741777000.0,2.5,0.0,8
1,Swish7,N/A,N/A,1774670741777003.0,N/A,0.0,8
"""
TYPES = """\
Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)
0,MatMulV2,AI_CORE,10,300.0\t,10,30,50,75.0
0,RmsNorm,AI_VECTOR_CORE,4,100.0\t,20,25,30,25.0
"""
NONE_LEFT = "no \\*/ASCEND_PROFILER_OUTPUT in .*found "


def written(folder: Path, text: str | bytes, file: str = "kernel_details.csv", run: str = "host_7_ascend_pt") -> Path:
    output = folder / run / OUTPUT
    output.mkdir(parents=True, exist_ok=True)
    (output / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def rounded(times: list[OperatorTime]) -> dict[str, tuple[int, float]]:
    assert all(entry.bytes == entry.operations == 0 for entry in times)
    return {entry.name: (entry.calls, round(entry.seconds * 1e6, 6)) for entry in times}


@pytest.mark.parametrize("mark", ["", "\N{ZERO WIDTH NO-BREAK SPACE}"], ids=["plain", "with a byte order mark"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_rows_are_added_up_by_operator(tmp_path: Path, mark: str, end: str) -> None:
    times = read(written(tmp_path, mark + FIRST.replace("\n", end)))
    assert rounded(times) == {"MatMulV2": (2, 30.5), "RmsNorm": (1, 4.25)}
    assert [entry.name for entry in times] == ["MatMulV2", "RmsNorm"]
    assert times.seconds == pytest.approx(34.75e-6)
    assert times.note == ""


def test_names_are_the_aclnn_functions_where_there_are_some(tmp_path: Path) -> None:
    times = read(written(tmp_path, SECOND))
    assert rounded(times) == {"aclnnMm_MatMulCommon_MatMulV2": (2, 500.0), "hcom_allReduce_": (2, 400.0)}


def test_rows_without_a_time_are_told(tmp_path: Path) -> None:
    times = read(written(tmp_path, THIRD))
    assert rounded(times) == {"aclnnAdd_AddAiCore_Add": (1, 2.5)}
    assert times.note == "1 of 2 rows have no time and are left out."


def test_a_name_stands_in_for_a_type_that_is_not_known(tmp_path: Path) -> None:
    times = read(written(tmp_path, THIRD.replace("003.0,N/A", "003.0,1") + "1,N/A,N/A,N/A,0,3,0,1\n"))
    assert rounded(times) == {"(without a name)": (1, 3), "aclnnAdd_AddAiCore_Add": (1, 2.5), "Swish7": (1, 1)}


@pytest.mark.parametrize(
    ("unit", "seconds"), [("ns", 1e-9), ("us", 1e-6), ("\xb5s", 1e-6), ("\u03bcs", 1e-6), ("ms", 1e-3)]
)
def test_the_unit_is_the_columns(tmp_path: Path, unit: str, seconds: float) -> None:
    (entry,) = read(written(tmp_path, f"Duration({unit}),Type\n7,Add\n"))
    assert entry == OperatorTime("Add", 1, pytest.approx(7 * seconds), 0, 0)


def test_several_runs_and_devices(tmp_path: Path) -> None:
    """A column is found in each file anew; with one device its number is not worth a word."""
    written(tmp_path, SECOND, run="host_7_ascend_pt")
    written(tmp_path, SECOND, run="host_8_ascend_pt")
    assert rounded(read(tmp_path))["hcom_allReduce_"] == (4, 800)
    written(tmp_path, THIRD, run="host_9_ascend_pt")
    assert rounded(read(tmp_path)) == {
        "aclnnMm_MatMulCommon_MatMulV2 (device 0)": (4, 1000),
        "hcom_allReduce_ (device 0)": (4, 800),
        "aclnnAdd_AddAiCore_Add (device 1)": (1, 2.5),
    }


def test_the_statistic_serves_where_there_are_no_kernels(tmp_path: Path) -> None:
    times = read(written(tmp_path, TYPES, "op_statistic.csv"))
    assert rounded(times) == {"MatMulV2": (10, 300), "RmsNorm": (4, 100)}
    assert "op_statistic.csv" in times.note and "without collectives" in times.note
    written(tmp_path, FIRST)
    assert rounded(read(tmp_path))["MatMulV2"] == (2, 30.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column Name or Type, no column Duration\\(us\\); its columns: none"),
        ("Name,Type\na,b\n", "kernel_details.csv has no column Duration\\(us\\); its columns: Name, Type"),
        ("Name,Duration(weeks)\na,1\n", "has no column Duration\\(us\\)"),
        ("Op,Duration(us)\na,1\n", "has no column Name or Type; its columns: Op, Duration"),
        ("Name,Duration(us)\na,1\nb,fast\n", "kernel_details.csv, line 3: Duration is 'fast'"),
        ("Name,Duration(us)\na,-1\n", "line 2: Duration is '-1'"),
        ("Name,Duration(us)\na,nan\n", "line 2: Duration is 'nan'"),
        ("Name,Duration(us)\n\na,N/A\nb\n", "no operator with a time \\(2 rows without one\\)"),
        ("Name,Duration(us)\n", "no operator with a time \\(0 rows"),
        (b"Name,Duration(us)\n" + b"a" * 200_000 + b",1\n", "kernel_details.csv cannot be read: field larger"),
    ],
)
def test_unusable_tables(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(TimingUnavailable, match=message):
        read(written(tmp_path, text))


def test_a_statistic_without_its_count(tmp_path: Path) -> None:
    with pytest.raises(TimingUnavailable, match=r"op_statistic\.csv has no column Count; its columns: OP Type"):
        read(written(tmp_path, "OP Type,Total Time(us)\nAdd,1\n", "op_statistic.csv"))


def test_missing_folders_and_files_are_named_with_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(TimingUnavailable, match=NONE_LEFT + "nothing"):
        read(tmp_path)
    (tmp_path / "host_7_ascend_pt" / "FRAMEWORK").mkdir(parents=True)
    with pytest.raises(TimingUnavailable, match=NONE_LEFT + "host_7_ascend_pt, host_7_ascend_pt/FRAMEWORK"):
        read(tmp_path)
    written(tmp_path, "[]", "trace_view.json")
    with pytest.raises(
        TimingUnavailable, match=r"no kernel_details.csv and no op_statistic.csv .*found trace_view.json"
    ):
        read(tmp_path)


class FakeProfiler:
    """What is used of `torch_npu.profiler`, with its names; writes `text` where the real one would."""

    ProfilerLevel = SimpleNamespace(Level1="Level1")
    AiCMetrics = SimpleNamespace(AiCoreNone="ACL_AICORE_NONE")
    ExportType = SimpleNamespace(Text="text")
    ProfilerActivity = SimpleNamespace(CPU="cpu", NPU="npu")

    def __init__(self, text: str | None) -> None:
        self.text = text
        self.folder: Path | None = None
        self.events: list[str] = []

    def _ExperimentalConfig(self, **options: Any) -> dict[str, Any]:
        return options

    def tensorboard_trace_handler(self, folder: str, *, analyse_flag: bool) -> Callable[[], None]:
        assert analyse_flag
        self.folder = Path(folder)

        def analyse() -> None:
            print("[INFO] profiler.py: Start parsing profiling data")
            multiprocessing.set_start_method("fork", force=True)
            if self.text is not None:
                written(Path(folder), self.text)

        return analyse

    def profile(self, *, activities: list[str], experimental_config: Any, on_trace_ready: Any) -> Any:
        assert activities == ["cpu", "npu"]
        assert experimental_config == {
            "profiler_level": "Level1", "aic_metrics": "ACL_AICORE_NONE", "export_type": "text"
        }  # fmt: skip
        outer = self

        class Session:
            def __enter__(self) -> None:
                outer.events.append("start")

            def __exit__(self, *error: object) -> None:
                outer.events.append("stop")
                on_trace_ready()

        return Session()


@pytest.fixture
def msprof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "bin" / "msprof"
    command.parent.mkdir()
    command.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(command.parent))
    for name in ("PROFILER_SAMPLECONFIG", "PROFILING_MODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("msprof")
def test_a_block_is_timed_and_nothing_is_left_behind(capsys: pytest.CaptureFixture[str]) -> None:
    profiler = FakeProfiler(SECOND)
    before = multiprocessing.get_start_method(allow_none=True)
    with CannTimer(profiler).times() as times:
        profiler.events.append("work")
        assert not times
    assert profiler.events == ["start", "work", "stop"]
    assert rounded(times)["hcom_allReduce_"] == (2, 400)
    assert profiler.folder is not None and not profiler.folder.exists()
    assert multiprocessing.get_start_method(allow_none=True) == before
    printed = capsys.readouterr()
    assert printed.out == "" and "Start parsing" in printed.err


@pytest.mark.usefixtures("msprof")
def test_the_folder_is_removed_whatever_happens() -> None:
    profiler = FakeProfiler(None)
    with pytest.raises(TimingUnavailable, match=NONE_LEFT + "nothing"), CannTimer(profiler).times():
        pass
    assert not profiler.folder.exists()
    with pytest.raises(KeyError, match="work"), CannTimer(profiler).times():
        raise KeyError("work")
    assert not profiler.folder.exists() and profiler.events[-1] == "stop"


@pytest.mark.usefixtures("msprof")
def test_another_profiler_than_the_one_known() -> None:
    profiler = FakeProfiler(SECOND)
    profiler.AiCMetrics = SimpleNamespace()
    with pytest.raises(TimingUnavailable, match=r"2\.13\.0.*AiCoreNone"), CannTimer(profiler).times():
        raise AssertionError("not reached")
    refusing = FakeProfiler(SECOND)
    refusing.tensorboard_trace_handler = lambda *_, **__: None
    with pytest.raises(TimingUnavailable, match="refused the folder"), CannTimer(refusing).times():
        raise AssertionError("not reached")


@pytest.mark.usefixtures("msprof")
@pytest.mark.parametrize("name", ["PROFILER_SAMPLECONFIG", "PROFILING_MODE"])
def test_under_another_profiler(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "dynamic")
    with pytest.raises(TimingUnavailable, match=f"{name} is set"):
        CannTimer(FakeProfiler(SECOND))


@pytest.mark.usefixtures("msprof")
def test_no_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu.profiler", None)
    with pytest.raises(TimingUnavailable, match=r"torch_npu\.profiler cannot be imported: "):
        CannTimer()
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(TimingUnavailable, match=r"msprof .*not on PATH"):
        CannTimer(FakeProfiler(SECOND))


def test_the_timer_is_the_runtimes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "virtual", lambda: True)
    assert not timing.operator_timer().slows_host and timing.operator_timer().note == ""
    monkeypatch.setattr(timing, "virtual", lambda: False)
    monkeypatch.setattr("aloft.runtime.cann_timing.shutil.which", lambda name: None)
    with pytest.raises(TimingUnavailable, match="msprof"):
        timing.operator_timer()
    assert CannTimer.slows_host and "NOT been tried on hardware" in CannTimer.note
