"""The benchmark's arithmetic and its workers, without any engine."""

from __future__ import annotations

import http.server
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

import files  # noqa: E402
import plan  # noqa: E402
import servers  # noqa: E402
import session  # noqa: E402
import table  # noqa: E402
import targets  # noqa: E402
import workers  # noqa: E402
from bounds import Cost, Roofline, Shape, bf16_bytes, stored_layer_bytes  # noqa: E402
from engines import CLASSES, Kind  # noqa: E402
from results import Samples, ratios, row  # noqa: E402

SHAPE = Shape(hidden=576, inner=1536, layers=30, heads=9, kv_heads=3, head_dim=64, vocabulary=49152)
MODELS = {"SmolLM2-135M": SHAPE}
SMOL = plan.Session("SmolLM2-135M", "16-bit", (512,), (plan.Decode(8, 32, 4),))
ALOFT, LLAMA, LLAMA16 = Kind("aloft", "bf16"), Kind("llama_cpp", "f16"), Kind("llama_cpp", "bf16")


def roofline() -> Roofline:
    roof = Roofline(2)
    roof.samples = {
        ("read_bandwidth", "GB/s"): [9.0, 10.0, 50.0],
        ("read_bandwidth_huge", "GB/s"): [20.0],
        ("fma_fp32_avx2", "GFLOP/s"): [100.0],
        ("fma_fp32_avx512", "GFLOP/s"): [200.0],
        ("bf16_amx", "GFLOP/s"): [1000.0],
        ("int8_exact_amx", "GOP/s"): [2000.0],
    }
    return roof


def test_weights_are_those_of_the_model() -> None:
    assert SHAPE.layer_weights == 30 * (576 * 576 * 2 + 576 * 192 * 2 + 3 * 576 * 1536)
    assert SHAPE.layer_weights + SHAPE.output_weights == 134_479_872  # 134.5 million, less 35,136 of the norms
    assert SHAPE.cache_bytes(2) == 30 * 2 * 192 * 2


def test_a_step_is_bound_by_memory_then_by_arithmetic() -> None:
    roof = roofline()
    weights = SHAPE.layer_weights + SHAPE.output_weights
    assert roof.bandwidth == 20e9 and roof.fma == 200e9
    bf16, fp32 = Cost.of("bf16"), Cost.of("fp32")
    assert SHAPE.decode_bound(bf16, 1, 0, roof).seconds == pytest.approx(bf16_bytes() * weights / 20e9)
    assert SHAPE.decode_bound(fp32, 1, 0, roof).seconds == pytest.approx(4 * weights / 20e9)
    assert SHAPE.decode_bound(bf16, 1, 4096, roof).seconds == pytest.approx(
        (bf16_bytes() * weights + 4096 * SHAPE.cache_bytes(2)) / 20e9
    )
    batch = SHAPE.decode_bound(fp32, 32, 0, roof)
    assert batch.seconds == pytest.approx(64 * weights / 200e9) and batch.what == "fma"
    assert SHAPE.decode_bound(bf16, 32, 0, roof).what == "memory"
    tokens = 512
    layers, rest = 2 * SHAPE.layer_weights * tokens, 2 * SHAPE.output_weights + 2 * tokens * tokens * 30 * 9 * 64
    whole = SHAPE.prefill_bound(bf16, tokens, roof)
    assert whole.seconds == pytest.approx((layers + rest) / 1000e9) and whole.what == "bf16"
    split = SHAPE.prefill_bound(Cost.of("w4a8"), tokens, roof)
    assert split.seconds == pytest.approx(layers / 2000e9 + rest / 1000e9) and split.what == "int8"
    assert SHAPE.decode_bound(bf16, 1, 0, Roofline(2)).seconds == 0  # nothing measured, nothing said


def test_quantized_weights_count_their_own_bytes_and_unit(tmp_path: Path) -> None:
    roof = roofline()
    layers, head = SHAPE.layer_weights, SHAPE.output_weights
    for weights, each, of_head in (
        ("w8a8-dynamic", 1.0, bf16_bytes()),
        ("w8a8-dynamic-head8", 1.0, 1.0),
        ("w4a8-head8", 0.5, 1.0),
        ("w8a16", 1.0, bf16_bytes()),
    ):
        least = SHAPE.decode_bound(Cost.of(weights), 1, 0, roof).seconds
        assert least == pytest.approx((layers * each + head * of_head) / 20e9)
    assert SHAPE.decode_bound(Cost.of("w4a8", 0.6), 1, 0, roof).seconds == pytest.approx(
        (layers * 0.6 + head * bf16_bytes()) / 20e9
    )
    assert {Cost.of(name).unit for name in ("w8a16", "w4a16", "bf16")} == {"bf16"}
    header = {"model.layers.0.a": [0, 24], "lm_head.weight": [24, 40], "model.layers.1.b": [40, 45]}
    words = json.dumps({name: {"data_offsets": place} for name, place in header.items()}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(words).to_bytes(8, "little") + words)
    assert stored_layer_bytes(tmp_path) == 29


def test_ratios_name_the_best_peer() -> None:
    samples = Samples()
    for kind, values in ((ALOFT, (90.0, 110.0, 100.0)), (LLAMA, (40.0,)), (LLAMA16, (50.0,))):
        for value in values:
            samples.add(SMOL, kind, "decode", 8, 32, "tok/s", value)
    samples.add(SMOL, ALOFT, "engine_start", 0, 0, "s", 3.0)
    samples.add(SMOL, LLAMA, "engine_start", 0, 0, "s", 1.5)
    samples.add(SMOL, ALOFT, "prefill", 1, 512, "tok/s", 7.0)
    samples.add(SMOL, ALOFT, "engine_imports", 0, 0, "s", 7.0)  # not compared
    rows = samples.rows()
    assert {"figure", "model", "engine", "precision", "batch", "prompt", "value", "unit"} <= set(rows[0])
    assert rows[0]["value"] == 100 and (rows[0]["min"], rows[0]["max"], rows[0]["runs"]) == (90, 110, 3)
    decode, start, prefill = ratios(rows, {"SmolLM2-135M": SHAPE}, roofline())
    assert (decode["best_peer"], decode["best_peer_value"], decode["ratio"]) == ("llama_cpp bf16", 50.0, 2.0)
    least = SHAPE.decode_bound(Cost.of("bf16"), 8, 32, roofline())
    assert decode["bound_share"] == pytest.approx(least.seconds / (8 / 100))
    assert decode["peers"] == {"llama_cpp bf16": 50.0, "llama_cpp f16": 40.0} and decode["bound"] == "memory"
    work = 16 * (SHAPE.layer_weights + SHAPE.output_weights) + 4 * 8 * 32 * 30 * 9 * 64
    assert decode["fma_share"] == pytest.approx(work / 200e9 / (8 / 100))
    assert (start["best_peer"], start["ratio"], start["bound_share"]) == ("llama_cpp f16", 0.5, None)
    assert (prefill["best_peer"], prefill["ratio"]) == (None, None)


def test_each_form_of_a_class_has_a_line_the_best_first() -> None:
    samples = Samples()
    sitting = plan.Session("SmolLM2-135M", "4-bit", (512,), ())
    for weights, value in (("w4a8", 90.0), ("w4a8-head8", 120.0)):
        samples.add(sitting, Kind("aloft", weights), "decode", 1, 32, "tok/s", value)
    for weights, value in (("q4_0", 40.0), ("q4_0-repacked", 100.0)):
        samples.add(sitting, Kind("llama_cpp", weights), "decode", 1, 32, "tok/s", value)
    best, other = ratios(samples.rows(), {"SmolLM2-135M": SHAPE}, roofline(), {("SmolLM2-135M", "w4a8"): 0.6})
    assert (best["weights"], best["ratio"], best["best_peer"]) == ("w4a8-head8", 1.2, "llama_cpp q4_0-repacked")
    assert (other["weights"], other["ratio"]) == ("w4a8", 0.9)
    assert other["peers"] == {"llama_cpp q4_0-repacked": 100.0, "llama_cpp q4_0": 40.0}
    least = SHAPE.decode_bound(Cost.of("w4a8", 0.6), 1, 32, roofline()).seconds
    assert other["bound_share"] == pytest.approx(least * 90)


def test_operators_alone_are_beside_their_bound() -> None:
    common = {"model": "SmolLM2-135M", "precision": "16-bit", "weights": "bf16", "batch": 1, "prompt": 32}
    least = SHAPE.decode_bound(Cost.of("bf16"), 1, 32, roofline()).seconds
    (line,) = ratios([row("step_operators", [2e3 * least], "ms", engine="aloft", **common)], MODELS, roofline())
    assert line["bound_share"] == pytest.approx(0.5) and line["bound"] == "memory"
    assert line["best_peer"] is line["ratio"] is None
    assert table.what(line) == "operators of a decode step, batch 1, after 32 tokens"


def report_of(**values: float) -> dict[str, Any]:
    """aloft's decode at batch 32 and llama.cpp's, Python's milliseconds of a step, a server's start and the imports."""
    common = {"model": "SmolLM2-135M", "precision": "16-bit", "weights": "bf16", "batch": 32, "prompt": 32}
    rows = [
        row("decode", [values["decode"]], "tok/s", engine="aloft", **common),
        row("decode", [100.0], "tok/s", engine="llama_cpp", **common),
        row("step_outside_operators", [values["host"]], "ms", engine="aloft", **common),
        row("server_start", [values["server"]], "s", engine="aloft", **(common | {"batch": 0, "prompt": 0})),
        row("import_torch_with_npu", [1.0], "s"),
        row("import_vllm", [4.0], "s"),
    ]
    return {"rows": rows, "ratios": ratios(rows, MODELS, roofline()), "date": "2026-01-02", "missing": {}}


def test_targets_say_what_holds() -> None:
    good, bad = report_of(decode=250.0, host=2.5, server=12.9), report_of(decode=199.0, host=3.1, server=13.1)
    for report, wanted in ((good, "yes"), (bad, "**no**")):
        lines = [line for line in targets.section(report) if line.startswith("|")]
        assert len(lines) == 2 + 3
        found = {line.split(" | ")[0][2:]: line.split(" | ")[3] for line in lines[2:]}
        names = (
            "step outside operators, batch 32, after 32 tokens",
            "server start, beyond import torch with npu and import vllm",
        )
        assert {found[name] for name in names} == {wanted}
    # the ratio is met, its share of the FMA peak is not
    (decode,) = [line for line in targets.section(good) if line.startswith("| decode")]
    assert "2.50 x llama_cpp bf16" in decode and "| **no** |" in decode
    both = targets.entries([bad | {"file": "new.json"}, good | {"file": "old.json"}])
    assert len(both) == len(targets.TARGETS)
    assert sum(entry["seen"] == "not measured" for entry in both) == len(targets.TARGETS) - 3
    assert {entry["file"] for entry in both} == {"new.json", ""}


def test_committed_reports_have_the_fields_that_others_read() -> None:
    report = files.read(files.latest())
    for each in report["rows"]:
        assert {"figure", "model", "engine", "precision", "batch", "prompt", "value", "unit"} <= set(each)
    ratio = {"figure", "model", "precision", "batch", "prompt"}
    ratio |= {"aloft", "best_peer", "best_peer_value", "ratio", "bound_share"}
    for each in report["ratios"]:
        assert ratio <= set(each)
        assert each["best_peer"] is None or each["ratio"] == pytest.approx(
            each["best_peer_value"] / each["aloft"]
            if each["unit"] in ("s", "ms", "MiB")
            else each["aloft"] / each["best_peer_value"]
        )
    assert {"decode", "prefill"} <= {each["figure"] for each in report["ratios"]}


def test_engines_that_a_quick_run_leaves_out_are_named() -> None:
    left = plan.quick().sessions[0].left_out
    assert "vllm_cpu bf16" in left and "transformers bf16" in left and "aloft bf16" not in left
    assert not any(sitting.left_out for sitting in plan.full().sessions)
    assert len(plan.quick().rates) >= 2 and len(plan.full().rates) >= 3


def test_a_stream_gives_the_first_token_and_the_time_between_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stub(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            count = min(asked["max_tokens"], 5)
            for number in range(count):
                time.sleep(0.05 if number == 0 else 0.02)
                ends = "stop" if count < asked["max_tokens"] else "length"
                choice = {"text": "a", "finish_reason": ends if number == count - 1 else None}
                self.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(servers.models, "folder", lambda name: Path("a model"), raising=False)
    with http.server.HTTPServer(("127.0.0.1", 0), Stub) as stub:
        threading.Thread(target=stub.serve_forever, daemon=True).start()
        server = object.__new__(servers.Server)
        server.port = stub.server_port
        first, each = server.stream("hello", 5)
        assert first >= 0.05 and each >= 0.02
        assert server.stream("hello", 9)[1] == 0, "a text that ended early tells nothing of its tokens"
        stub.shutdown()


def test_an_engine_that_takes_one_token_at_a_time_is_left_out_of_batches(tmp_path: Path) -> None:
    kinds = (ALOFT, LLAMA)
    measured = session.Sitting(
        plan.Session("SmolLM2-135M", "4-bit", (7,), (), 3, kinds=kinds), Samples(), roofline(), tmp_path
    )
    measured.workers = dict.fromkeys(kinds)  # type: ignore[arg-type]
    measured._alone = {LLAMA}
    assert set(measured._order(1)) == set(kinds) and measured._order(8) == [ALOFT]


def test_a_guard_runs_while_a_figure_is_measured(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    guard = f"""sh -c 'trap "touch {ended}; exit 1" TERM; echo ready; while :; do sleep 0.05; done'"""
    sitting = session.Sitting(plan.Session("SmolLM2-135M", "4-bit", (), ()), Samples(), roofline(), tmp_path, guard)
    with sitting._around():
        assert not ended.exists()
    assert ended.exists()


def test_the_report_shows_what_is_missing() -> None:
    samples = Samples()
    samples.add(SMOL, ALOFT, "decode", 8, 32, "tok/s", 100.0)
    rows = samples.rows()
    report: dict[str, Any] = {
        "date": "2026-01-02T03:04:05",
        "commit": "abc",
        "machine": {"cpu": "A CPU", "cores": 2, "memory_gib": 24},
        "rows": rows,
        "ratios": ratios(rows, {}, Roofline(2)),
        "missing": {"SmolLM2-135M 16-bit": {"openvino f16": "not installed (make peers)"}},
    }
    page = table.markdown(report)
    assert "openvino f16: not installed (make peers)" in page
    assert "| SmolLM2-135M | 16-bit | decode, batch 8, after 32 tokens | 100 tok/s |  | none |  |  |" in page
    part = table.readme_part(report)
    assert part.startswith(table.BEGIN) and part.endswith(table.END) and "decode, batch 8" in part


def test_the_readme_has_the_latest_figures() -> None:
    table.check()


def test_plans_are_whole() -> None:
    for each in (plan.full(), plan.quick()):
        for sitting in each.sessions:
            assert sitting.kinds and sitting.rounds >= 3
            assert sitting.max_length <= 8192
    names = {(kind.engine, kind.precision) for kind in plan.quick().sessions[0].kinds}
    assert ("aloft", "bf16") in names and len(names) > 2
    assert {sitting.precision for sitting in plan.full().sessions} == set(CLASSES)


def test_every_engine_warms_up_alike_in_each_turn_of_prefill(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[Kind, str, list[list[int]]]] = []

    class Engine:
        def __init__(self, kind: Kind) -> None:
            self.kind = kind

        def ask(self, call: str, **arguments: Any) -> dict[str, Any]:
            if call == "begin":
                asked.append((self.kind, call, arguments["prompts"]))
            return {"seconds": float(len(asked))}

    # tests/models has that module's name
    monkeypatch.setattr(session.models, "VOCABULARY", {"SmolLM2-135M": 49_152}, raising=False)
    kinds = (ALOFT, LLAMA)
    samples, roof = Samples(), roofline()
    sampled = list[bool]()
    monkeypatch.setattr(roof, "sample", lambda arithmetic=False: sampled.append(arithmetic))
    measured = session.Sitting(
        plan.Session("SmolLM2-135M", "16-bit", (7,), (), 3, kinds=kinds), samples, roof, tmp_path
    )
    measured.workers = {kind: Engine(kind) for kind in kinds}  # type: ignore[misc]
    measured._prefill(7)
    assert sampled == [True, False, True], "arithmetic peaks of one moment would not do"
    each = plan.WARM_PREFILLS + plan.PREFILL_SAMPLES
    assert plan.WARM_PREFILLS >= 1 and plan.PREFILL_SAMPLES >= 2
    turns = [asked[start : start + each] for start in range(0, len(asked), each)]
    assert len(turns) == 3 * len(kinds)
    for first, second in zip(turns[::2], turns[1::2], strict=True):
        assert {kind for kind, _, _ in first} != {kind for kind, _, _ in second}
        assert [prompts for _, _, prompts in first] == [prompts for _, _, prompts in second]
    prompts = [tuple(prompts[0]) for turn in turns[::2] for _, _, prompts in turn]
    assert len(set(prompts)) == len(prompts) and {len(prompt) for prompt in prompts} == {7}
    rows = samples.rows()
    assert [entry["runs"] for entry in rows] == [3 * plan.PREFILL_SAMPLES] * 2
    counted = {place + 1 for place in range(len(asked)) if place % each >= plan.WARM_PREFILLS}
    assert {7 / entry["max"] for entry in rows} <= counted  # none of them is of a warm-up


def test_decoding_alone_has_its_bound_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Engine:
        def ask(self, call: str, **arguments: Any) -> dict[str, Any]:
            return {"seconds": 1.0}

    roof, sampled = Roofline(2), list[bool]()

    def sample(arithmetic: bool = False) -> None:
        sampled.append(arithmetic)
        roof.samples = roofline().samples

    monkeypatch.setattr(session.models, "VOCABULARY", {"SmolLM2-135M": 49_152}, raising=False)
    monkeypatch.setattr(roof, "sample", sample)
    sitting = plan.Session("SmolLM2-135M", "16-bit", (), (plan.Decode(1, 4, 2),), 3, kinds=(ALOFT,))
    measured = session.Sitting(sitting, Samples(), roof, tmp_path)
    measured.workers = {ALOFT: Engine()}  # type: ignore[dict-item]
    measured._decode(sitting.decode[0])
    assert sampled == [True, False, True]
    (line,) = [line for line in ratios(measured.samples.rows(), MODELS, roof) if line["figure"] == "decode"]
    assert line["bound_share"] and line["fma_share"]


def test_a_worker_says_what_went_wrong_and_sleeps_between_calls(tmp_path: Path) -> None:
    kind = Kind("nonesuch", "bf16")
    with workers.Worker(kind, tmp_path / "log") as worker:
        with pytest.raises(workers.WorkerFailed, match=r"ModuleNotFoundError.*nonesuch"):
            worker.ask("import_engine")
        memory = worker.ask("memory")
        assert memory["peak_mib"] >= memory["now_mib"] > 1
        status = Path(f"/proc/{worker.process_id}/status")
        end = time.monotonic() + 5
        while "stopped" not in status.read_text() and time.monotonic() < end:
            time.sleep(0.01)
        assert "stopped" in status.read_text()
        assert worker.ask("memory")["peak_mib"] > 1
        os.kill(worker.process_id, 9)
        with pytest.raises(workers.WorkerFailed, match="ended with status -9"):
            worker.ask("memory")


def test_a_missing_peer_has_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(workers, "PEERS", tmp_path)
    kind = Kind("openvino", "f16", "openvino")
    assert workers.missing(Kind("aloft", "bf16")) == ""
    assert workers.missing(kind) == "not installed (make peers)"
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino" / "failed").write_text("could not be installed: no wheel\n")
    assert workers.missing(kind) == "could not be installed: no wheel"
