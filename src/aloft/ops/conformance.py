"""``aloft ops``: runs every operator that has a contract against its float64 reference on the present runtime."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from aloft.ops.execute import Report, run_contract
from aloft.ops.registry import Registry, standard

_DOCUMENT = Path("docs/ops.md")


def main(argv: Sequence[str] | None = None, registry: Registry | None = None) -> int:
    """Entry of ``aloft ops [--json] [--write | --check] [operator ...]``.

    Limits are checked as on hardware (ALOFT_CONTRACT=strict) unless the variable is set already. Returns the exit
    status: 0 when all is well, 1 for failures or a stale document, 2 for a mistake in the call.
    """
    options = _parser().parse_args(argv)
    os.environ.setdefault("ALOFT_CONTRACT", "strict")
    known = registry or standard()
    names = options.operators or known.names()
    try:
        contracts = [known.get(name) for name in names]
    except ValueError as error:
        print(f"aloft ops: {error}", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(names))
        return 0
    problem = _device_problem()
    if problem:
        print(f"aloft ops: {problem}", file=sys.stderr)
        return 2
    if options.write or options.check:
        return _document(known, options.document, options.check)
    strict = os.environ["ALOFT_CONTRACT"] == "strict"
    reports = []
    for contract in contracts:
        reports.append(run_contract(contract, strict=strict))
        if not options.json:
            _print_line(reports[-1])
    if options.json:
        print(json.dumps([report.as_json() for report in reports], indent=2))
    else:
        _print_summary(reports)
    return int(any(_counts_as_failure(report, known) for report in reports))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="aloft ops", description=__doc__)
    parser.add_argument("operators", nargs="*", metavar="operator", help="only these (default: all with a contract)")
    parser.add_argument("--json", action="store_true", help="print a JSON list, one object per operator")
    parser.add_argument("--list", action="store_true", help="print the operators' names and stop")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help="regenerate the document from the contracts")
    action.add_argument("--check", action="store_true", help="exit with 1 if the document is not what --write makes")
    parser.add_argument("--document", type=Path, default=_DOCUMENT, help="default: %(default)s")
    return parser


def _device_problem() -> str | None:
    """Why there is no npu device here, or None."""
    import torch

    try:
        import torch_npu  # noqa: F401
    except ImportError as error:
        return f"torch_npu cannot be imported ({error}); see `aloft doctor`"
    if not torch.npu.is_available():  # type: ignore[attr-defined]
        return "torch_npu sees no device; see `aloft doctor`"
    return None


def _document(known: Registry, path: Path, check: bool) -> int:
    from aloft.ops.document import render

    text = render(known.all())
    if not check:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"{path} written")
        return 0
    if path.exists() and path.read_text() == text:
        return 0
    print(f"{path} is stale: run `aloft ops --write` and commit the result", file=sys.stderr)
    return 1


def _counts_as_failure(report: Report, known: Registry) -> bool:
    if report.status == "missing":
        return not known.get(report.operator).optional
    return report.status != "passed"


def _print_line(report: Report) -> None:
    print(
        f"{report.status:8} {report.operator:42} {report.passed:4}/{report.cases:<4} "
        f"worst {report.worst_error:9.2e} of {report.limit:9.2e} ({report.worst_ratio:5.1%})  {report.seconds:6.2f} s",
        flush=True,
    )
    for failure in report.failures[:10]:
        print(f"           {failure}")
    if len(report.failures) > 10:
        print(f"           and {len(report.failures) - 10} more")


def _print_summary(reports: Sequence[Report]) -> None:
    passed = sum(report.status == "passed" for report in reports)
    cases, good = sum(report.cases for report in reports), sum(report.passed for report in reports)
    print(f"{passed} of {len(reports)} operators passed, {good} of {cases} cases")


if __name__ == "__main__":
    sys.exit(main())
