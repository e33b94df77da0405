"""The commands and their options are a frozen set: growing it is a decision."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from commands import aloft

from aloft import __version__
from aloft.cli.main import app

FROZEN = {
    "serve": {"--host", "--port", "--ask/--no-ask"},
    "run": {"--devices", "--soc"},
    "ops": set(),
    "doctor": {"--json"},
    "demo-model": {"--to"},
    "demo": {"--prompt", "--max-tokens"},
    "chat": {"--host", "--port"},
    "profile": {
        "model",
        "--batch",
        "--prompt",
        "--prefill",
        "--steps",
        "--dtype",
        "--eager",
        "--quantization",
        "--kv-cache-dtype",
        "--block-size",
        "--max-num-batched-tokens",
        "--additional-config",
        "--start",
        "--repeat",
        "--json",
    },
    "quantize": {
        "model",
        "out",
        "--scheme",
        "--calib",
        "--embedding",
        "--format",
        "--algorithm",
        "--group-size",
        "--symmetric/--asymmetric",
        "--kv",
        "--target-bits",
        "--seed",
        "--samples",
        "--length",
        "--max-loss",
        "--tune",
        "--tune-samples",
        "--report/--no-report",
        "--overwrite",
    },
    "eval": {
        "model",
        "--text",
        "--reference",
        "--tokens",
        "--window",
        "--additional-config",
        "--candidates",
        "--save",
        "--quantization",
        "--kv-cache-dtype",
        "--json",
    },
    "version": set(),
}


def test_frozen() -> None:
    group = typer.main.get_command(app)
    found = {}
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        found[name] = {
            "/".join([*parameter.opts, *parameter.secondary_opts])
            for parameter in command.params
            if parameter.name != "help"
        }
    assert found == FROZEN


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], (None, [])),
        (["--max-model-len", "512"], (None, ["--max-model-len", "512"])),
        (["/m", "--port", "8001", "--max-model-len", "512"], ("/m", ["--max-model-len", "512"])),
        (["--port", "8001", "/m", "--enforce-eager"], ("/m", ["--enforce-eager"])),
    ],
)
def test_serve_knows_the_model_from_an_option_value(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: tuple[str | None, list[str]]
) -> None:
    calls = []
    monkeypatch.setattr("aloft.cli.serve.serve", lambda model, host, port, rest, ask: calls.append((model, rest)) or 0)
    with pytest.raises(SystemExit) as ended:
        app(["serve", *arguments])
    assert ended.value.code == 0 and calls == [expected]


def test_version() -> None:
    assert aloft("version").stdout == aloft("--version").stdout == f"{__version__}\n"


def test_starting_the_command_imports_nothing_heavy() -> None:
    program = (
        "import sys; import aloft.cli.main; "
        "print([m for m in ('torch', 'numpy', 'httpx', 'vllm', 'transformers', 'gguf') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_run_forces_the_virtual_npu_in_this_environment() -> None:
    program = (
        "import os, sys\n"
        "print(*[os.environ.get(n) for n in ('ALOFT_RUNTIME', 'ALOFT_DEVICES', 'ALOFT_SOC')], *sys.argv[1:])"
    )
    result = aloft("run", "--devices", "2", "--soc", "910B1", "--", "python", "-c", program, "--devices", "9")
    assert result.returncode == 0, result.stderr
    # Options after the program's name are the program's.
    assert result.stdout.split() == ["virtual", "2", "910B1", "--devices", "9"]
    assert aloft("run", "--", "python", "-c", "raise SystemExit(7)").returncode == 7


def test_run_refuses() -> None:
    for arguments, sentence in (
        (["run"], "Name the program to run"),
        (["run", "--", "no-such-program"], "'no-such-program' is not a program on PATH"),
    ):
        result = aloft(*arguments)
        assert result.returncode == 1 and sentence in result.stderr and "Traceback" not in result.stderr
    result = aloft("run", "--", "python", ALOFT_LIB_DIR="/nonexistent")
    assert result.returncode == 1 and "aloft doctor" in result.stderr
