"""`aloft profile` on a tiny model: the operators of a step are all there, and the parts make up the whole."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny

from aloft.cli import start_phases

LAYERS = tiny.LAYERS
PREFILL, BATCH, STEPS = 48, 3, 5


def profile(model: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aloft.cli.main", "profile", str(model), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


# A timer that slows the host, as CANN's does, on streams that work beside it: every step is run twice.
SLOWING = """
import sys
from aloft.runtime import timing
class Slowing(timing.VirtualTimer):
    slows_host, note = True, "a stand-in"
timing.operator_timer = Slowing
from aloft.cli.main import main
sys.exit(main())
"""


def report_of(result: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.strip().splitlines()[-1])


def calls(step: dict[str, Any]) -> dict[str, float]:
    return {entry["name"]: entry["calls"] / step["steps"] for entry in step["operators"]}


def test_json(model: Path) -> None:
    sizes = ("--prefill", str(PREFILL), "--batch", str(BATCH), "--steps", str(STEPS), "--prompt", "16")
    result = profile(model, "--json", *sizes)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.strip().splitlines()[-1])
    prefill, decode = report["steps"]
    assert "virtual" in report["device"] and report["notes"] == []
    assert prefill["what"] == f"prefill of {PREFILL} tokens" and prefill["steps"] == 1
    assert decode["what"] == f"decode step, batch {BATCH}, after 16 tokens" and decode["steps"] == STEPS
    for step in (prefill, decode):
        assert sum(step["parts"].values()) == pytest.approx(step["seconds"])
        assert step["beside_host"] == {} and step["note"] == ""
        assert step["parts"]["operators"] * step["steps"] == pytest.approx(
            sum(entry["seconds"] for entry in step["operators"])
        )
        assert min(step["parts"][name] for name in ("operators", "scheduler", "detokenizer")) > 0
        found = calls(step)
        assert any(name.startswith("aclnnFusedInferAttentionScore") for name in found) or "aloft::" in str(found)
    products = ("aclnnMm", "aclnnMatmulWeightNz", "aloft::attention_input", "aloft::mlp_block")
    matmuls = [entry for entry in prefill["operators"] if entry["name"] in products]
    weights = LAYERS * tiny.HIDDEN * (tiny.HEADS + 2 * tiny.KV_HEADS) * tiny.HEAD_DIM
    weights += LAYERS * (tiny.HEADS * tiny.HEAD_DIM * tiny.HIDDEN + 3 * tiny.HIDDEN * 192)
    # every layer's products over all tokens, the output matrix over the last one
    assert sum(entry["operations"] for entry in matmuls) == 2 * PREFILL * weights + 2 * tiny.HIDDEN * 320


def test_table_of_eager_steps(model: Path, tmp_path: Path) -> None:
    bare = shutil.copytree(model, tmp_path / "bare", ignore=shutil.ignore_patterns("*token*", "special*"))
    result = profile(bare, "--prefill", "8", "--prompt", "8", "--steps", "9", "--eager")
    assert result.returncode == 0, result.stderr
    for text in ("prefill of 8 tokens", "decode step, batch 1", "GFLOP/s", "scheduler", "outside operators", "eager"):
        assert text in result.stdout
    # without a tokenizer there is no text to make: some microseconds of keeping the ids
    text = [float(line.split()[1]) for line in result.stdout.splitlines() if line.startswith("detokenizer")]
    assert len(text) == 2 and max(text) < 1


def test_steps_run_twice_where_timing_slows_the_host(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALOFT_STREAMS", "async")
    sizes = ("--prefill", str(PREFILL), "--batch", str(BATCH), "--steps", str(STEPS), "--prompt", "16")
    command = [sys.executable, "-c", SLOWING, "profile", str(model), "--json", *sizes]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout.strip().splitlines()[-1])
    assert report["notes"][0] == "a stand-in" and "beside the host" in report["notes"][1]
    for step in report["steps"]:
        assert sum(step["parts"].values()) == pytest.approx(step["seconds"])
        assert min(step["parts"].values()) >= 0 and not any("operator" in name for name in step["parts"])
        assert step["beside_host"]["operators"] * step["steps"] == pytest.approx(
            sum(entry["seconds"] for entry in step["operators"])
        )
        attention = [n for name, n in calls(step).items() if name.endswith("_attention") or "AttentionScore" in name]
        assert sum(attention) == LAYERS  # of one run, not of both


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = profile(tmp_path / "nothing")
    assert result.returncode == 1
    assert result.stderr.strip() == f"aloft: There is no folder {tmp_path / 'nothing'}; give the folder of a model."


def test_the_engine_is_the_one_that_is_asked_for(model: Path) -> None:
    flags = ("--max-num-batched-tokens", "20", "--block-size", "32", "--kv-cache-dtype", "fp8")
    config = ("--additional-config", '{"fusion_level": "none", "kv_fp8_window": 0}')
    sizes = ("--prefill", str(PREFILL), "--prompt", "8", "--steps", "2")
    report = report_of(profile(model, "--json", *sizes, *flags, *config))
    prefill, decode = report["steps"]
    assert prefill["what"] == f"prefill of {PREFILL} tokens in steps of 20"
    assert calls(prefill)["aloft::fp8_attention"] == LAYERS * 3 and calls(decode)["aloft::fp8_attention"] == LAYERS
    assert calls(decode)["aclnnSwiGlu"] == LAYERS  # an operator of its own: nothing is fused
    assert report["settings"]["flags"]["block_size"] == 32


def test_start(model: Path) -> None:
    report = report_of(profile(model, "--start", "--json", "--additional-config", '{"num_threads": 1}'))
    phases = {phase["name"]: phase for phase in report["phases"]}
    assert set(phases) == set(start_phases.PHASES)
    assert sum(phase["seconds"] for phase in report["phases"]) == pytest.approx(report["seconds"])
    assert min(phase["seconds"] for phase in report["phases"]) > 0
    assert phases[start_phases.REST]["seconds"] < 0.05 * report["seconds"]
    for phase in report["phases"]:
        assert sum(phase["imports"].values()) <= phase["seconds"] * (1 + 1e-9)
    assert phases[start_phases.TORCH]["imports"]["torch"] > 0.1
    assert phases[start_phases.TORCH_NPU]["imports"]["torch_npu"] > 0.02
    assert phases[start_phases.VLLM]["imports"]["transformers"] > 0.1
    assert phases[start_phases.PLUGINS]["imports"]["aloft"] > 0.01
    assert "torch_npu" not in phases[start_phases.TORCH]["imports"]


def test_a_start_that_is_refused_is_one_sentence(model: Path) -> None:
    result = profile(model, "--start", "--block-size", "7")
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr == "aloft: --block-size must be a multiple of 16 from 16 to 256, not 7.\n"
