"""Runs of the benchmark: what they leave out, when they end, what they write; with an engine that has no model."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

import clock  # noqa: E402
import plan  # noqa: E402
import run  # noqa: E402
import servers  # noqa: E402
import session  # noqa: E402
from bounds import Roofline  # noqa: E402
from engines import CLASSES, Kind  # noqa: E402
from results import Samples  # noqa: E402

ALOFT = Kind("aloft", "bf16")

# In the folder that takes the place of benchmarks/ for the workers: every engine is this one. Decoding three steps is
# what the plan's cases do; in the class that STUB_ENDS names it asks whoever measures to end.
ENGINE = """
import os, signal, time

class Engine:
    def __init__(self, precision):
        self.ends = precision == os.environ.get("STUB_ENDS")
        with open(os.environ["STUB_PIDS"], "a") as pids:
            pids.write(f"{os.getpid()}\\n")
    def begin(self, prompts):
        time.sleep(0.001)
        self.rows = len(prompts)
        return [[7]] * self.rows
    def decode(self, steps):
        time.sleep(0.001)
        if steps == 3 and self.ends:
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(60)
        return [[7] * steps] * self.rows
    def end(self):
        pass

def load(model, precision, max_batch, max_length, threads):
    assert threads == int(os.environ.get("STUB_THREADS", threads))
    return Engine(precision)
"""
DRIVER = """
import json, os, sys
from pathlib import Path
benchmarks, folder = Path(sys.argv[1]), Path(sys.argv[2])
sys.path.insert(0, str(benchmarks))
import bounds, files, host, models, plan, run, servers, workers
from engines import CLASSES, Kind
from results import row

def session(precision, peer):
    kinds = (CLASSES[precision][0], Kind("openvino", peer), Kind("transformers", "bf16", "nowhere"))
    return plan.Session("SmolLM2-135M", precision, (8,), (plan.Decode(1, 8, 3), plan.Decode(2, 8, 3)), 2, kinds=kinds)

def full():
    return plan.Plan([session("16-bit", "f16"), session("fp32", "f32")])

def quick():
    return plan.Plan([session("16-bit", "f16")], limit=float(os.environ.get("STUB_LIMIT", 300)))

def sampled(self, *command):
    for figure, value in (("read_bandwidth", 20.0), ("fma_fp32_avx2", 400.0)):
        self.samples.setdefault((figure, "GB/s"), []).append(value)

def alone(what, repeats, most=None):
    return [row("import_vllm", [4.0], "s")] if what == "imports" else []

plan.full, plan.quick = full, quick
bounds.build = lambda: None
bounds.Roofline._run = sampled
models.folder = lambda name: folder / "model"
models.gguf = lambda name, kind: folder / "model"
host.versions = lambda: {"python": "3"}
host.machine = lambda: {"cpu": "A CPU @ 1 GHz", "cores": 2, "isa": [], "memory_gib": 1}
workers.HERE, workers.PEERS = folder, folder / "peers"
run.measure = alone
servers.measure = lambda *_, clock: ([], [], dict(servers.WITHOUT_SERVER))
files.RESULTS = folder / "results"
sys.argv = ["run.py", *sys.argv[3:]]
run.main()
"""
CONFIG = {
    "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
    "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 8,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What stands in for benchmarks/, a model and the results."""
    engines = tmp_path / "engines"
    for place in (engines, tmp_path / "model", tmp_path / "results"):
        place.mkdir()
    (tmp_path / "worker.py").write_text((BENCHMARKS / "worker.py").read_text())
    for name, text in (("__init__", ""), ("aloft", ENGINE), ("openvino", ENGINE)):
        (engines / f"{name}.py").write_text(text)
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "driver.py").write_text(DRIVER)
    return tmp_path


def drive(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """run.py's main, in a process of its own."""
    command = [sys.executable, str(folder / "driver.py"), str(BENCHMARKS), str(folder), *options]
    around = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")}
    around |= {"STUB_PIDS": str(folder / "pids"), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"} | environment
    return subprocess.run(command, env=around, capture_output=True, text=True, timeout=120, check=False)


def alive(folder: Path) -> list[str]:
    """Engines that have not ended."""
    return [pid for pid in (folder / "pids").read_text().split() if Path(f"/proc/{pid}").exists()]


def reports(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / "results").iterdir() if file.suffix == ".json")


def test_a_run_writes_its_report_and_the_latest(folder: Path) -> None:
    done = drive(folder, "--label", "First one", "--threads", "1", STUB_THREADS="1")
    assert done.returncode == 0, done.stderr
    first, latest = reports(folder)
    assert first.endswith("-a-first-one.json") and latest == "latest.json" and not alive(folder)
    report = json.loads((folder / "results" / first).read_text())
    assert report["file"] == first and report["threads"] == 1
    assert report["command"] == "python benchmarks/run.py --label 'First one' --threads 1"
    figures = {(row["figure"], row["precision"], row["engine"]) for row in report["rows"]}
    assert {("decode", "fp32", "aloft"), ("prefill", "16-bit", "openvino"), ("import_vllm", "", "")} <= figures
    assert report["roofline"]["fma_fp32_avx2"]["runs"] > 2
    missing = report["missing"]
    assert missing["SmolLM2-135M 16-bit"]["transformers bf16"] == "not installed (make peers)"
    assert "prefill 2048" in missing["SmolLM2-135M 16-bit"] and "openvino f16" in missing["servers"]
    decode = next(entry for entry in report["targets"] if entry["figure"] == "decode")  # after 32 tokens
    assert (decode["seen"], decode["holds"], decode["file"]) == ("not measured", None, "")
    page = (folder / "results" / first).with_suffix(".md").read_text()
    assert page.rstrip() in done.stdout and "Not measured" in page
    made = json.loads((folder / "results" / latest).read_text())
    assert [run["file"] for run in made["reports"]] == [first] and len(made["rows"]) == len(report["rows"])

    # another one on the same day: nothing is written over, and latest.json has both
    done = drive(folder, "--only-engines", "--classes", "fp32", "--threads", "1", "--figures", "decode-2-8")
    assert done.returncode == 0, done.stderr
    second = next(name for name in reports(folder) if name not in (first, latest))
    made = json.loads((folder / "results" / latest).read_text())
    assert [run["file"] for run in made["reports"]] == [first, second]
    wide = [row for row in made["rows"] if row["figure"] == "decode" and row["batch"] == 2]
    assert {(row["precision"], row["report"]) for row in wide} == {("16-bit", 0), ("fp32", 1)}
    missing = json.loads((folder / "results" / second).read_text())["missing"]
    assert missing["SmolLM2-135M fp32"]["prefill 8"] == f"{plan.LEFT_OUT} (--figures)"
    assert list(missing["sessions"]) == ["SmolLM2-135M 16-bit"] and "steps" in missing["other figures"]

    # on another machine, here with as many threads as it has, latest.json is begun anew
    done = drive(folder, "--only-engines", "--classes", "fp32", "--threads", "3")
    assert done.returncode == 0 and "latest.json is begun anew" in done.stderr, done.stderr
    assert len(json.loads((folder / "results" / latest).read_text())["reports"]) == 1 and len(reports(folder)) == 4


def test_a_run_that_is_ended_keeps_what_is_whole(folder: Path) -> None:
    before = '{"what was": "there"}'
    (folder / "results" / "latest.json").write_text(before)
    done = drive(folder, STUB_ENDS="fp32")
    assert done.returncode == 1 and "ended by SystemExit 143" in done.stderr
    assert reports(folder) == ["latest.json", "run.incomplete.json"] and not alive(folder)
    assert (folder / "results" / "latest.json").read_text() == before
    report = json.loads((folder / "results" / "run.incomplete.json").read_text())
    assert report["incomplete"] == "ended by SystemExit 143"
    assert {row["precision"] for row in report["rows"]} == {"16-bit"}, "a session counts when it is over"
    out = folder / "mine.json"
    assert drive(folder, "--out", str(out), STUB_ENDS="fp32").returncode == 1
    assert not out.exists() and json.loads((folder / "mine.incomplete.json").read_text())["rows"]


def test_a_run_ended_in_its_first_session_writes_nothing(folder: Path) -> None:
    done = drive(folder, STUB_ENDS="bf16")
    assert done.returncode == 143 and reports(folder) == [] and not alive(folder)


def test_a_quick_run_names_what_it_had_no_time_for(folder: Path) -> None:
    out = folder / "quick.json"
    done = drive(folder, "--quick", "--out", str(out), STUB_LIMIT="0.1")
    assert done.returncode == 0, done.stderr
    assert reports(folder) == [], "--out writes that file alone"
    missing = json.loads(out.read_text())["missing"]
    assert {"aloft bf16", "prefill 8", "decode, batch 2, after 8 tokens"} <= set(missing["SmolLM2-135M 16-bit"])
    assert list(missing["other figures"]) == ["imports", "route", "steps"]
    assert all(why.startswith(plan.LEFT_OUT) for why in missing["other figures"].values())
    assert list(missing["sessions"]) == ["SmolLM2-135M fp32"]


def test_a_plan_is_cut_to_what_was_asked_for() -> None:
    def cut(**asked: Any) -> list[plan.Session]:
        nothing = dict.fromkeys(("models", "classes", "engines", "figures", "rounds"))
        return run.chosen(plan.full(), argparse.Namespace(**(nothing | asked))).sessions

    assert cut() == plan.full().sessions
    assert {sitting.model for sitting in cut(models="SmolLM2-135M,Llama-1B-shape")} == {
        "SmolLM2-135M",
        "Llama-1B-shape",
    }
    assert {sitting.precision for sitting in cut(classes="fp32,4-bit")} == {"fp32", "4-bit"}
    kinds = {kind.name for sitting in cut(engines="aloft-bf16,openvino") for kind in sitting.kinds}
    assert kinds == {"aloft bf16", "openvino f16", "openvino q8_0", "openvino q4_0"}
    for option, name, valid in (
        ("models", "SmolLM", "SmolLM2-135M"),
        ("classes", "16bit", "16-bit"),
        ("engines", "nobody", "openvino-f16"),
        ("figures", "decode-3-7", "decode-8-32"),
    ):
        with pytest.raises(ValueError, match=rf"--{option} {name}: .*{valid}"):
            cut(**{option: name})
    with pytest.raises(ValueError, match="nothing is left"):
        cut(models="Llama-1B-shape", classes="16-bit")
    first = cut(figures="prefill-512,decode-8-32")[0]
    assert first.figures == ["prefill 512", "decode, batch 8, after 32 tokens"]
    assert "decode, batch 1, after 4096 tokens" in first.dropped and len(first.not_measured) == 8
    assert {(sitting.rounds, sitting.starts) for sitting in cut(rounds=7)} == {(7, 1)}
    left = replace(first, kinds=CLASSES["16-bit"][:1]).left_out
    assert "llama_cpp f16" in left and "aloft bf16" not in left


def test_a_measurement_that_takes_too_long_ends_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """
import subprocess, sys, time
if {slow}:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(child.pid, file=open({place!r}, "w"), flush=True)
    time.sleep(60)
print("words")
print('[{{"figure": "' + sys.argv[1] + '"}}]')
sys.exit({status})
"""
    monkeypatch.setattr(run, "HERE", tmp_path)
    place = tmp_path / "pid"
    for slow, status, wanted in ((False, 3, SystemExit), (False, 0, None), (True, 0, TimeoutError)):
        (tmp_path / "measure.py").write_text(program.format(place=str(place), slow=slow, status=status))
        if wanted:
            with pytest.raises(wanted, match="imports"):
                run.measure("imports", 1, 2.0 if slow else 30.0)
        else:
            assert run.measure("imports", 1) == [{"figure": "imports"}]
        if slow:
            end = time.monotonic() + 5
            while _runs(place.read_text().strip()) and time.monotonic() < end:
                time.sleep(0.01)
            assert not _runs(place.read_text().strip())


def _runs(pid: str) -> bool:
    try:
        return "zombie" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


class Steady:
    """A worker whose every answer takes a second."""

    def ask(self, call: str, **arguments: Any) -> dict[str, Any]:
        return {"seconds": 1.0, "tokens": [[1]]}

    def close(self) -> None:
        pass


def test_what_no_longer_fits_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = [0.0]
    monkeypatch.setattr(clock.time, "monotonic", lambda: now[0])
    watch = clock.Clock(100.0)
    assert watch.allows("steps") and watch.left() == 100 and not watch.over
    assert clock.Clock().allows("steps") and clock.Clock().left() is None and clock.Clock().cap(7.0) == 7.0
    monkeypatch.setattr(session.models, "VOCABULARY", {"SmolLM2-135M": 49_152}, raising=False)
    roof = Roofline(2)
    monkeypatch.setattr(roof, "sample", lambda arithmetic=False: now.__setitem__(0, now[0] + 30.0))
    cases = (plan.Decode(1, 4, 2), plan.Decode(8, 4, 2), plan.Decode(32, 4, 2))
    sitting = plan.Session("SmolLM2-135M", "16-bit", (7,), cases, 3, kinds=(ALOFT,))
    measured = session.Sitting(sitting, Samples(), roof, tmp_path, clock=watch)
    monkeypatch.setattr(measured, "_start", lambda kind, stack, keep: measured.workers.setdefault(kind, Steady()))
    monkeypatch.setattr(measured, "_note_memory", lambda kind, answer: None)
    measured.run()  # a round takes 30 s: three of the prefill leave too little for a case of decoding
    runs = {entry["figure"]: entry["runs"] for entry in measured.samples.rows()}
    assert runs == {"prefill": 3 * plan.PREFILL_SAMPLES}
    assert set(measured.missing) == {case.name for case in cases}
    assert all(why.startswith(plan.LEFT_OUT) and "100 seconds" in why for why in measured.missing.values())

    for figure, argument, wanted in (("decode", cases[0], 1), ("prefill", 7, plan.PREFILL_SAMPLES)):
        now[0] = 75.0
        measured = session.Sitting(sitting, Samples(), roof, tmp_path, clock=watch)
        measured.workers = {ALOFT: Steady()}  # type: ignore[dict-item]
        getattr(measured, f"_{figure}")(argument)  # what has begun has the time of one round
        assert [entry["runs"] for entry in measured.samples.rows() if entry["figure"] == figure] == [wanted]


def test_a_quick_run_has_the_time_it_promises() -> None:
    assert plan.quick().limit == plan.QUICK_SECONDS - plan.WRITING_SECONDS and plan.QUICK_SECONDS == 360
    assert plan.full().limit is None


def test_figures_a_session_leaves_out_have_their_reason() -> None:
    sittings = {sitting.title: sitting for sitting in plan.full().sessions}
    qwen = sittings["Qwen3-0.6B-shape 16-bit"].not_measured
    assert list(qwen) == ["decode, batch 32, after 1024 tokens"] and "4 GB" in qwen[next(iter(qwen))]
    assert sittings["SmolLM2-135M 16-bit"].not_measured == {}
    assert sittings["SmolLM2-135M fp32"].not_measured["prefill 128"] == plan.TOO_MANY
    assert plan.quick().sessions[0].not_measured["prefill 2048"] == f"{plan.LEFT_OUT} (--quick)"


def test_peers_without_a_server_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Stub:
        def __init__(self, kind: Kind, log: Path) -> None:
            self.kind = kind

        def wait(self, most: float) -> float:
            return 1.5

        def stream(self, prompt: str, tokens: int, most: float) -> tuple[float, float]:
            if self.kind.engine == "vllm_cpu":
                raise RuntimeError("no text came")
            return 0.2, 0.01

        def first_token(self, prompt: str, most: float) -> float:
            return 0.2

        awake = servers.Server.awake

        def signal(self, number: int) -> None:
            pass

        close = classmethod(lambda cls: None)

    asked: list[str] = []

    def bench(server: Stub, rate: float, requests: int, folder: Path, most: float | None) -> dict[str, Any]:
        asked.append(server.kind.engine)
        if rate == 4.0:
            raise RuntimeError("vllm bench serve: no")
        return {"engine": server.kind.name, "rate": servers.rate_words(rate)}

    monkeypatch.setattr(servers, "Server", Stub)
    monkeypatch.setattr(servers, "bench", bench)
    monkeypatch.setattr(servers, "prompts", lambda count: ["text"] * count)
    monkeypatch.setattr(servers.workers, "missing", lambda kind: "")
    engines = ["aloft", "vllm_cpu", "llama_cpp"]
    rows, online, missing = servers.measure(2, (4.0, float("inf")), 3, engines, tmp_path)
    assert {"openvino f16", "transformers bf16", "llama_cpp f16, vllm bench serve"} <= set(missing)
    assert "one request at a time" in missing["llama_cpp f16, vllm bench serve"]
    assert set(asked) == {"aloft", "vllm_cpu"} and len(online) == 2
    # a failure of one server costs its own figures only
    assert missing["aloft bf16, vllm bench serve at 4/s"] == "vllm bench serve: no"
    assert missing["vllm_cpu bf16, while idle"] == "no text came"
    tokens = [entry["engine"] for entry in rows if entry["figure"] == "server_token"]
    assert tokens == ["aloft", "llama_cpp"]
    assert [entry["engine"] for entry in rows if entry["figure"] == "time_to_first_token"] == engines
    none = servers.measure(2, (4.0,), 3, engines, tmp_path, clock.Clock(1.0))
    assert none[:2] == ([], []) and none[2]["aloft bf16"].startswith(plan.LEFT_OUT)


def test_engines_get_the_processors_of_this_process() -> None:
    narrow = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    for before, wanted in ((narrow, 1), ("", len(os.sched_getaffinity(0)))):
        command = [sys.executable, "-c", f"{before}import workers; print(workers.THREADS)"]
        environment = os.environ | {"PYTHONPATH": str(BENCHMARKS)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        assert int(done.stdout) == wanted
