"""What the benchmark says of its figures: reasons for missed targets, several runs in one report, README.md's table."""

from __future__ import annotations

import copy
import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path.append(str(BENCHMARKS))

import files  # noqa: E402
import merge  # noqa: E402
import plan  # noqa: E402
import reasons  # noqa: E402
import table  # noqa: E402
import targets  # noqa: E402
from bounds import Roofline, Shape  # noqa: E402
from results import ratios, row  # noqa: E402
from words import number  # noqa: E402

SHAPE = Shape(hidden=576, inner=1536, layers=30, heads=9, kv_heads=3, head_dim=64, vocabulary=49152)
SMOL = "SmolLM2-135M"
MACHINE = {"cpu": "A CPU", "cores": 2, "isa": ["avx2"], "memory_gib": 24}
Report = dict[str, Any]


def entry(figure: str, value: float, unit: str = "tok/s", engine: str = "aloft", **more: Any) -> dict[str, Any]:
    place = {"model": SMOL, "precision": "16-bit", "weights": "bf16", "batch": 1, "prompt": 32}
    return row(figure, [value], unit, engine=engine, **(place | more))


def report(day: int, rows: list[dict[str, Any]], **more: Any) -> Report:
    """A run's report, as run.py makes it."""
    roof = Roofline(2)
    roof.samples = {("read_bandwidth", "GB/s"): [20.0, 20.0 + day], ("fma_fp32_avx2", "GFLOP/s"): [400.0]}
    made: Report = {
        "date": f"2026-01-0{day}T00:00:00+00:00",
        "command": "python benchmarks/run.py",
        "commit": f"c{day}",
        "machine": MACHINE,
        "versions": {"python": "3"},
        "threads": 2,
        "roofline": {name: row(name, values, unit) for (name, unit), values in roof.samples.items()},
        "missing": {},
        "agreement": {},
        "rows": rows,
        "ratios": ratios(rows, {SMOL: SHAPE}, roof),
        "seconds": 10,
        "file": f"{day}.json",
    }
    return made | more


def written(folder: Path, *reports: Report) -> list[Path]:
    paths = [folder / f"in-{number}.json" for number, _ in enumerate(reports)]
    for path, each in zip(paths, reports, strict=True):
        path.write_text(json.dumps(each))
    return paths


def value(made: Report, figure: str, engine: str, **more: Any) -> dict[str, Any]:
    (found,) = [
        each
        for each in made["rows"]
        if (each["figure"], each["engine"]) == (figure, engine) and more.items() <= each.items()
    ]
    return found


def test_later_rows_win_and_know_their_run(tmp_path: Path) -> None:
    old = report(1, [entry("decode", 90), entry("decode", 40, engine="openvino"), entry("prefill", 7, prompt=512)])
    new = report(2, [entry("decode", 99), entry("decode", 50, engine="openvino"), row("import_vllm", [4.0], "s")])
    made = merge.merge(written(tmp_path, new, old))  # dates count, not the order of the names
    assert [run["file"] for run in made["reports"]] == ["1.json", "2.json"]
    fields = {"file", "date", "commit", "command", "machine", "versions", "roofline", "seconds"}
    assert all(fields <= set(run) for run in made["reports"])
    assert value(made, "decode", "aloft")["value"] == 99 and value(made, "decode", "aloft")["report"] == 1
    assert value(made, "prefill", "aloft")["report"] == 0 and value(made, "import_vllm", "")["report"] == 1
    lines = {line["figure"]: line for line in made["ratios"]}
    assert lines["decode"]["ratio"] == 99 / 50 and lines["decode"]["report"] == 1 and lines["prefill"]["report"] == 0
    assert made["roofline"]["read_bandwidth"]["report"] == 1 and made["commit"] == "c2" and made["seconds"] == 20


def test_a_ratio_is_one_runs_own(tmp_path: Path) -> None:
    """It does not get better by leaving out who was best, nor by putting two runs' values together."""
    whole = report(1, [entry("decode", 90), entry("decode", 80, engine="openvino"), entry("decode", 9, engine="slow")])
    partial = report(2, [entry("decode", 100), entry("decode", 10, engine="slow")])
    alone = report(3, [entry("decode", 110)])
    made = merge.merge(written(tmp_path, whole, partial, alone))
    (line,) = made["ratios"]
    assert (line["aloft"], line["best_peer_value"], line["ratio"], line["report"]) == (90, 80, 90 / 80, 0)
    assert value(made, "decode", "aloft")["value"] == 110
    (target,) = [each for each in made["targets"] if each["file"]]
    assert target["file"] == "1.json" and target["seen"].startswith("1.12 x openvino bf16")
    again = report(4, [entry("decode", 120), entry("decode", 60, engine="openvino")])
    (line,) = merge.merge(written(tmp_path, whole, partial, alone, again))["ratios"]
    assert (line["ratio"], line["report"]) == (2.0, 3)


def test_merging_again_changes_nothing(tmp_path: Path) -> None:
    reports = []
    for day in (1, 2, 3):
        rows = [entry("decode", 90 + day), entry("decode", 40, engine="openvino"), entry("step_runner", day, "ms")]
        online = [{"engine": "aloft bf16", "rate": "4/s", "completed": day}]
        reports.append(report(day, rows, online=online))
    paths = written(tmp_path, *reports)
    made = merge.merge(paths)
    first, both = tmp_path / "first.json", tmp_path / "both.json"
    first.write_text(json.dumps(merge.merge(paths[:2])))
    assert merge.merge([first, paths[2]]) == made
    both.write_text(json.dumps(made))
    assert merge.merge([both]) == merge.merge([both, paths[0], paths[2]]) == made
    assert made["online"] == [{"engine": "aloft bf16", "rate": "4/s", "completed": 3, "report": 2}]


def test_forms_of_a_class_keep_the_best_first(tmp_path: Path) -> None:
    common = {"precision": "4-bit"}
    old = report(1, [entry("decode", 50, weights="w4a8", **common), entry("prefill", 5, weights="w4a8", **common)])
    new = report(2, [entry("decode", 90, weights="w4a8-head8", **common)])
    lines = merge.merge(written(tmp_path, old, new))["ratios"]
    assert [line["weights"] for line in lines if line["figure"] == "decode"] == ["w4a8-head8", "w4a8"]


def test_what_some_run_measured_is_not_missing(tmp_path: Path) -> None:
    left = f"{plan.LEFT_OUT} (--engines)"
    title = f"{SMOL} 16-bit"
    old = report(
        1,
        [entry("decode", 90), entry("decode", 40, engine="openvino"), entry("decode", 4, engine="dies")],
        missing={
            title: {"gone bf16": "not installed", "later bf16": "not installed", "dies bf16": "failed in begin: no"},
            "sessions": {f"{SMOL} 16-bit": left, f"{SMOL} fp32": left},
            "other figures": {"route": left, "imports": left},
        },
    )
    rows = [entry("decode", 99), entry("decode", 1, engine="later"), row("import_vllm", [1.0], "s")]
    new = report(
        2,
        rows,
        missing={title: {"openvino bf16": left, "decode, batch 1, after 32 tokens": "too long", "prefill 128": left}},
    )
    missing = merge.merge(written(tmp_path, old, new))["missing"]
    assert missing[title] == {"gone bf16": "not installed", "dies bf16": "failed in begin: no", "prefill 128": left}
    assert missing["sessions"] == {f"{SMOL} fp32": left} and missing["other figures"] == {"route": left}


def test_merge_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    good = report(1, [entry("decode", 90)])
    for change, words in (
        ({"machine": MACHINE | {"cpu": "Another"}}, r"in-0\.json and in-1\.json .*cpu is 'A CPU' and 'Another'"),
        ({"machine": MACHINE | {"isa": []}}, "isa"),
        ({"threads": 4}, r"in-0\.json and in-1\.json .*threads"),
        ({"surprise": 1}, r"in-1\.json has unknown fields: surprise; known: .*rows"),
        ({"incomplete": "ended by SystemExit 143"}, r"in-1\.json is of a run that was ended"),
        ({"rows": [{"figure": "decode"}]}, r"a row of in-1\.json lacks batch, engine"),
        ({"ratios": [good["ratios"][0] | {"guess": 1}]}, r"a ratio of in-1\.json has unknown fields: guess"),
    ):
        with pytest.raises(ValueError, match=words):
            merge.merge(written(tmp_path, good, report(2, good["rows"]) | change))
    lacking = {key: each for key, each in good.items() if key != "seconds"}
    with pytest.raises(ValueError, match=r"in-0\.json lacks seconds"):
        merge.merge(written(tmp_path, lacking))
    (tmp_path / "no.json").write_text("{")
    with pytest.raises(ValueError, match=r"no\.json cannot be read"):
        merge.merge([tmp_path / "no.json"])
    (tmp_path / "no.json").write_text("{}")
    with pytest.raises(ValueError, match=r"no\.json is no report"):
        merge.merge([tmp_path / "no.json"])


def test_the_command_writes_a_report_others_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = written(tmp_path, report(1, [entry("decode", 90)]), report(2, [entry("prefill", 500, prompt=512)]))
    out = tmp_path / "latest.json"
    monkeypatch.setattr(sys, "argv", ["merge.py", *map(str, paths), "--out", str(out)])
    merge.main()
    made = files.read(out)
    page = out.with_suffix(".md").read_text()
    assert "run 1: 2026-01-01, commit c1, `1.json`" in page and "| prefill 512 | 500 tok/s |" in page
    assert targets.found(targets.TARGETS[0], made)["file"] == "1.json"  # type: ignore[index]
    part = table.readme_part(made)
    assert "decode, batch 1, after 32 tokens | 90.0 tok/s |  | none |  | " in part and "`2.json`" in part
    assert "read_bandwidth 20.5 to 21.0 GB/s (4)" in part
    monkeypatch.setattr(sys, "argv", ["merge.py", str(paths[0]), str(tmp_path / "none.json")])
    with pytest.raises(SystemExit, match=r"none\.json"):
        merge.main()


def test_committed_reports_can_be_merged() -> None:
    reports = [file for file in files.dated() if file.name >= "2026-11-30"]
    made = merge.merge([files.latest(), *reports])
    assert len(made["reports"]) >= 12 and {"8-bit", "4-bit", "16-bit"} <= {each["precision"] for each in made["rows"]}
    for line in made["ratios"]:
        run = made["reports"][line["report"]]
        assert line["bound_share"] is None or line["bound"], run["file"]
    assert "latest.json" not in {run["file"] for run in made["reports"]}, "a copy has its report's name"


def test_reasons_are_reckoned_from_the_same_report() -> None:
    steps = {"step_runner": 2.0, "step_scheduler": 0.5, "step_engine": 1.5, "step_outside_operators": 4.0}
    rows = [
        entry("decode", 50.0),
        entry("decode", 100.0, engine="openvino"),
        entry("step_operators", 17.0, "ms"),
        *(entry(figure, each, "ms") for figure, each in steps.items()),
        entry("prefill", 512 / 2.0, prompt=512),
        entry("prefill", 512 / 1.0, engine="openvino", prompt=512),
        entry("server_start", 40.0, "s", batch=0, prompt=0),
        entry("engine_start", 10.0, "s", batch=0, prompt=0),
        entry("engine_imports", 5.0, "s", batch=0, prompt=0),
        row("import_torch_with_npu", [3.0], "s"),
        row("import_vllm", [7.0], "s"),
        entry("time_to_first_token", 0.5, "s"),
        entry("time_to_first_token", 0.1, "s", engine="llama_cpp"),
        entry("server_token", 25.0, "ms"),
        row("route_overhead_hypot_out", [2.0], "us", engine="aloft"),
        row("route_overhead_add_out", [1.9], "us", engine="aloft"),
    ]
    run = report(1, rows)
    found = {(each["figure"], each["batch"]): each for each in targets.entries([run]) if each["file"]}
    assert all(each["file"] == "1.json" for each in found.values())
    step = found["decode", 1]["bound"]
    (line,) = [line for line in run["ratios"] if line["figure"] == "decode"]
    least = 20.0 * line["bound_share"]
    # 1.1 times the peer is 9.09 ms; 75 % of the bound is a looser wish than that
    assert step.startswith("a step takes 20.0 ms where 9.09 ms are wanted")
    assert f"the limit (memory: read_bandwidth at 20.5 GB/s) is {number(least)} ms ({100 * least / 20:.0f} %)" in step
    assert "operators take 17.0 ms (85 %) and the host 4.00 ms (20 %), 1.00 ms of it beside operators" in step
    assert step.endswith(f"above the limit are {number(17 - least)} ms of operators and 3.00 ms of the host")
    assert f"{number(17 - least)} ms are above it" in found["step_operators", 1]["bound"]
    host = found["step_outside_operators", 1]["bound"]
    assert (
        host == "of 4.00 ms: runner 2.00 ms (50 %), scheduler 0.50 ms (12 %), engine 1.50 ms (38 %); the most is runner"
    )
    prefill = found["prefill", 1]["bound"]
    # 1.4 times the peer is 714 ms; 65 % of FMA asks for more
    assert prefill.startswith("a prompt takes 2,000 ms where 453 ms are wanted; the limit (bf16: fma_fp32_avx2 at 400")
    assert "of fma_fp32_avx2 at 400 GFLOP/s" in prefill and prefill.endswith("openvino bf16 takes 1,000 ms")
    start = found["server_start", 0]["bound"]
    assert "importing vllm 7.00 s (18 %), an engine's start 10.0 s (25 %), the rest 20.0 s (50 %)" in start
    assert start.endswith("the most beyond imports is the rest")
    assert found["engine_start", 0]["bound"] == "beside 10.0 s: its imports, not in it, 5.00 s (50 %)"
    first = found["time_to_first_token", 1]["bound"]
    assert first.startswith("of 500 ms: 32 tokens at the rate of prefill 512 take 125 ms (25 %); one token through the")
    assert "the remaining 350 ms (70 %)" in first and first.endswith("llama_cpp bf16 takes 100 ms in all")
    assert "add, an operator with a kernel of its own, 1.90 us" in found["route_overhead_hypot_out", 0]["bound"]
    page = "\n".join(targets.section(run))
    assert all(f": {each['bound']}." in page for each in found.values()), (
        "every one of these is missed, with its reason"
    )


def test_a_miss_without_parts_says_so_and_a_hit_needs_no_reason() -> None:
    slow = report(
        1, [entry("step_outside_operators", 9.0, "ms"), entry("decode", 50.0), entry("decode", 70.0, engine="b")]
    )
    found = {each["figure"]: each for each in targets.entries([slow]) if each["file"]}
    assert found["step_outside_operators"]["bound"] == reasons.NOTHING
    assert "not split in this report" in found["decode"]["bound"]
    fast = report(1, [entry("step_outside_operators", 0.1, "ms")])
    (hit,) = [each for each in targets.entries([fast]) if each["file"]]
    assert hit["holds"] is True and hit["bound"] == ""
    assert {"figure", "model", "batch", "prompt", "wanted", "seen", "holds", "bound", "file"} <= set(hit)


def test_rounding_does_not_turn_a_miss_into_a_hit() -> None:
    assert targets._seen(1.996, 2.0, "ratio") == "1.996 x" and targets._seen(1.99, 2.0, "ratio") == "1.99 x"
    assert targets._seen(2.004, 2.0, "ratio") == "2.00 x" and targets._seen(0.7496, 0.75, "bound_share") == "74.96 %"


def test_targets_have_a_place_of_their_own() -> None:
    places = [tuple(targets._place(target).values()) for target in targets.TARGETS]
    assert len(set(places)) == len(places), "a merged report finds a target's answer by its place"


def test_the_readme_has_room_for_everything(tmp_path: Path) -> None:
    """Of a report of every session: first token, starts, long and short prompts, Qwen3; thirty lines at most."""
    runs = []
    for day, sitting in enumerate(plan.full().sessions, 1):
        forms = ("bf16",) if sitting.precision in ("16-bit", "fp32") else ("one", "two", "three")
        common = {"model": sitting.model, "precision": sitting.precision}
        rows = [
            entry(figure, 9.0, unit, **common, weights=form, batch=batch, prompt=prompt)
            for form in forms
            for figure, unit, batch, prompt in (
                *(("prefill", "tok/s", 1, length) for length in sitting.prefill),
                *(("decode", "tok/s", case.batch, case.prompt) for case in sitting.decode),
                *((figure, "s", 0, 0) for figure in ("engine_start", "server_start")),
                ("time_to_first_token", "s", 1, 32),
                ("peak_memory", "MiB", 0, 0),
            )
        ]
        runs.append(report(day, rows, roofline={}))
    made = merge.merge(written(tmp_path, *runs))
    lines = [line for line in table.readme_part(made).splitlines() if line.startswith("| ")][1:]
    assert 25 <= len(lines) <= 30
    for words in ("prefill 128", "prefill 2048", "time to first token", "engine start", "server start"):
        assert any(f"{SMOL} | 16-bit | {words}" in line for line in lines), words
    assert sum("Qwen3" in line for line in lines) >= 5
    assert len({line.rsplit("|", 2)[1] for line in lines}) == 5, "the run of each line"


def test_missing_engines_are_together_where_the_reason_is_one() -> None:
    lines = table.not_measured({"a 16-bit": {"x": "left out", "y": "failed", "z": "left out"}, "b": {}})
    assert lines == ["* a 16-bit: x; z: left out", "* a 16-bit: y: failed"]


def test_a_file_is_never_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "RESULTS", tmp_path)
    now = datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC)
    names = []
    for label in ("", "", "morning", "morning"):
        file = files.unused(now, "a-cpu", label)
        file.write_text("{}")
        names.append(file.name)
    assert names == [
        "2026-01-02-a-cpu-0304.json",
        "2026-01-02-a-cpu-0304-2.json",
        "2026-01-02-a-cpu-morning.json",
        "2026-01-02-a-cpu-morning-2.json",
    ]
    (tmp_path / "2026-01-02-a-cpu.incomplete.json").write_text("{}")
    assert [file.name for file in files.dated()] == sorted(names)


def test_an_older_latest_has_the_name_of_its_report(tmp_path: Path) -> None:
    old = copy.copy(report(1, [entry("decode", 90)]))
    del old["file"]
    for name in ("latest.json", "2026-01-01-a-cpu.json", "other.json"):
        (tmp_path / name).write_text(json.dumps(old))
    assert files.read(tmp_path / "latest.json")["file"] == "2026-01-01-a-cpu.json"
    assert files.read(tmp_path / "other.json")["file"] == "other.json"
    os.unlink(tmp_path / "2026-01-01-a-cpu.json")
    assert files.read(tmp_path / "latest.json")["file"] == "latest.json"
