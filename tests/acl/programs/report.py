"""Runs the checks of a program one after the other and prints what became of each, for tests/acl/running.py."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable

_checks: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    _checks.append(function)
    return function


def main() -> None:
    import torch  # loads torch_npu and the virtual NPU

    results = {}
    for function in _checks:
        try:
            function()
            torch.npu.synchronize()
            results[function.__name__] = ""
        except BaseException:
            results[function.__name__] = traceback.format_exc()
    sys.stdout.flush()
    print("RESULTS " + json.dumps(results), flush=True)
