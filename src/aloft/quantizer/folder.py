"""What the folder of a checkpoint in the making holds: nothing, a run to go on with, or what must not be lost."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aloft.quantization.formats import REPORT

if TYPE_CHECKING:
    from aloft.quantizer.run import Settings

WORK = ".aloft-quantize"  # below the checkpoint's folder while the run is unfinished
_OPTIONS = {"group": "group-size"}  # where a setting's name is not the option's
_MADE = (
    "model-*.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "quant_model_description*.json",
    REPORT,
)


def unfinished(work: Path) -> dict[str, Any] | None:
    """The state an interrupted run left; None where there is none, or it had not finished a block."""
    state = work / "state.json"
    return json.loads(state.read_text()) if state.is_file() else None


def require_free(out: Path, held: dict[str, Any] | None, settings: Settings) -> None:
    """Refuses a folder with files of others, with a checkpoint, or with a run of other settings (``held``).

    Raises:
        ValueError: as said; names what is there and the ways out.
    """
    if held is not None and (out / WORK).is_dir():
        blocks = "1 block" if held["done"] == 1 else f"{held['done']} blocks"
        raise ValueError(
            f"{out} holds an unfinished run {_difference(held.get('settings'), settings)} ({blocks} done): "
            "its own command continues it; name another folder, or discard it with --overwrite"
        )
    if (out / REPORT).is_file():
        raise ValueError(
            f"{out} is not empty but holds a finished checkpoint: name another folder, or replace it with --overwrite"
        )
    if any(out.iterdir()) and not (out / WORK).is_dir():  # else: interrupted before its first state
        raise ValueError(f"{out} is not empty: name another folder")


def clear(out: Path) -> None:
    """Removes what this tool writes, where it has written; files of others stay (and are refused then)."""
    if not (out / WORK).is_dir() and not (out / REPORT).is_file():
        return
    for pattern in _MADE:
        for file in out.glob(pattern):
            file.unlink()
    shutil.rmtree(out / WORK, ignore_errors=True)
    (out / WORK).mkdir()  # still this tool's folder, whatever else of the checkpoint lies there


def _difference(held: dict[str, Any] | None, settings: Settings) -> str:
    """In words: the settings in which another run differs from these."""
    if held is None:
        return "with other settings"
    said = dataclasses.asdict(settings)
    unlike = [
        f"--{_OPTIONS.get(name, name).replace('_', '-')} {_said(held.get(name))} instead of {_said(value)}"
        for name, value in said.items()
        if held.get(name) != value
    ]
    return f"with {', '.join(unlike)}" if unlike else "with another model, calibration text or version of aloft"


def _said(value: object) -> str:
    return "left out" if value is None else str(value)
