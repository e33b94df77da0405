"""`aloft run`: start any torch_npu program on the virtual NPU."""

from __future__ import annotations

import os
import shutil
import sys
from typing import NoReturn

from aloft.cli.errors import UserError
from aloft.runtime.choice import missing_libraries


def run(command: list[str], devices: int | None, soc: str | None) -> NoReturn:
    """Replace this process by the command, with the virtual NPU forced.

    The environment's own programs come first on PATH, so that `python` is the one aloft is installed in.
    """
    if not command:
        raise UserError("Name the program to run: aloft run -- python script.py")
    if missing := missing_libraries():
        raise UserError(f"The virtual NPU is not built here ({missing}); see `aloft doctor`.")
    environment = dict(os.environ, ALOFT_RUNTIME="virtual")
    if devices is not None:
        environment["ALOFT_DEVICES"] = str(devices)
    if soc is not None:
        environment["ALOFT_SOC"] = soc
    environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    program = shutil.which(command[0], path=environment["PATH"])
    if program is None:
        raise UserError(f"{command[0]!r} is not a program on PATH.")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program, command, environment)
