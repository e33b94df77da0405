"""`aloft doctor`: what of this environment works, what does not, and how to mend it."""

from __future__ import annotations

import json

from aloft import __version__
from aloft.cli.checks import CHECKS, Check, run_check
from aloft.runtime.choice import device_line

_MARK = {"ok": "ok  ", "warn": "WARN", "fail": "FAIL"}


def doctor(json_output: bool) -> int:
    """Run every check and print the results; 0 where none failed, else 1.

    JSON: `{"version", "ok", "device", "checks": [{"name", "status", "found", "fix"}]}` with status `ok`, `warn` or
    `fail` and `fix` empty where nothing is to be done. `device` is empty where ALOFT_RUNTIME is wrong.
    """
    results = []
    for check in CHECKS:
        result = run_check(check)
        results.append(result)
        if not json_output:
            _print(result)
    ok = all(result.status != "fail" for result in results)
    try:
        device = device_line()
    except ValueError:
        device = ""
    if json_output:
        report = {"version": __version__, "ok": ok, "device": device, "checks": [r.as_dict() for r in results]}
        print(json.dumps(report, indent=2))
    else:
        print(f"\n{'Ready' if ok else 'Not ready'}: aloft {__version__}{', ' + device if device else ''}")
    return 0 if ok else 1


def _print(result: Check) -> None:
    print(f"{_MARK[result.status]}  {result.name:<12} {result.found}", flush=True)
    if result.fix:
        print(f"{'':<19}-> {result.fix}", flush=True)
