"""What `aloft profile` hands on to the engine, and what it refuses before one is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import aloft

from aloft.cli.engine_flags import EngineFlags
from aloft.cli.errors import UserError
from aloft.cli.profile import Settings, overlaps


def test_what_is_left_out_is_not_said() -> None:
    assert EngineFlags().arguments() == {} and EngineFlags().told() == ""
    flags = EngineFlags({"fusion_level": "none"}, block_size=32)
    assert flags.arguments() == {"additional_config": {"fusion_level": "none"}, "block_size": 32}
    assert flags.told() == ", fusion_level none, block_size 32"


def test_nothing_runs_ahead_in_a_profile() -> None:
    flags = EngineFlags({"lm_head": "int8", "run_ahead": False}, quantization="ascend").without_run_ahead()
    assert flags.additional_config == {"lm_head": "int8", "run_ahead": False} and flags.quantization == "ascend"
    assert EngineFlags().without_run_ahead().arguments() == {"additional_config": {"run_ahead": False}}
    with pytest.raises(UserError, match="run_ahead stays off in a profile"):
        EngineFlags({"run_ahead": True}).without_run_ahead()


@pytest.mark.parametrize(
    ("depth", "eager", "beside", "overlapped"),
    [
        (None, False, False, False),
        (None, False, True, True),
        (None, True, True, False),
        (0, False, True, True),
        (1, False, True, False),
        (2, False, False, True),
        (2, True, True, True),
    ],
)
def test_steps_overlap_as_told(
    depth: int | None, eager: bool, beside: bool, overlapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aloft.cli.profile.computes_beside_host", lambda: beside)
    flags = EngineFlags({} if depth is None else {"pipeline_depth": depth})
    assert overlaps(Settings(Path("m"), "bfloat16", 1, 1, 1, 1, eager, flags)) is overlapped


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--additional-config", '{"fusion_lvel": 1}'], "'fusion_lvel' is unknown; did you mean 'fusion_level'?"),
        (["--additional-config", '{"lm_head": 8}'], "additional_config lm_head must be of type str, not 8."),
        (["--additional-config", '{"run_ahead": true}'], "run_ahead stays off in a profile: what runs beside"),
        (["--kv-cache-dtype", "int8"], "--kv-cache-dtype must be auto, bfloat16, fp8 or fp8_e4m3, not int8."),
        (["--start", "--steps", "3"], "--steps is for steps: leave it out."),
        (["--repeat", "3"], "--repeat is for --start only."),
    ],
)
def test_mistakes_are_told_at_once(arguments: list[str], told: str, tmp_path: Path) -> None:
    result = aloft("profile", str(tmp_path), *arguments)
    assert result.returncode == 1 and told in result.stderr
    assert result.stderr.startswith("aloft: ") and result.stderr.count("\n") == 1 and result.stdout == ""
