"""Why vLLM did not start, as the one sentence that is in its tracebacks and logs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from aloft.cli.errors import UserError
from aloft.errors import PlatformUnavailable, UnsupportedVersion

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
# What stands before an exception's line: the process, the rank, the log's level, date and place.
_PREFIX = re.compile(r"^(?:\([A-Za-z][^)]*pid=\d+\) ?)?(?:[A-Z]+ \d\d-\d\d [\d:]+ \[[^]]*\] ?)?(?:\[rank\d+\]: ?)?")
_WRAPPED = re.compile(r"Value error, (.*?)(?: \[type=\w+|$)", re.DOTALL)
_EXCEPTION = re.compile(r"^((?:\w+\.)*([A-Z]\w*)): (\S.*)$")
_REFUSED = re.compile(r"^(?:aloft|vllm(?: serve)?|\S+\.py(?: serve)?)(?:: error)?: (.+)$")
# Of consequences only; the reason is above them.
_NO_REASON = ("Engine core initialization failed", "EngineCore encountered an issue", "cancelled")


def sentence(text: str) -> str:
    """An error's text without pydantic's "1 validation error for ...: Value error, X [type=...]" around X."""
    found = _WRAPPED.search(text)
    return (found.group(1) if found else text).strip()


def of_log(text: str) -> str | None:
    """The reason in the last lines of a server that ended; None where none is to be found.

    The server's own process and its engine may both have ended with an exception, one of which is the other's
    consequence: aloft's errors come first, then pydantic's, then the last one that is not just a consequence.
    """
    lines = [_PREFIX.sub("", _COLOR.sub("", line)) for line in text.splitlines()]
    last = None
    for line in reversed(lines):
        if found := _EXCEPTION.match(line):
            if found.group(1).startswith("aloft.errors."):
                return sentence(found.group(3))
            if (
                last is None
                and found.group(2).endswith(("Error", "Exception"))
                and not found.group(3).startswith(_NO_REASON)
            ):
                last = found.group(3)
        elif last is None and (said := _WRAPPED.search(line)) and line.startswith("  "):
            last = said.group(1)
        elif last is None and (refused := _REFUSED.match(line)):
            last = refused.group(1)
    if last is not None and re.match(r"\d+ validation errors? for ", last):
        last = next((said.group(1) for line in lines if (said := _WRAPPED.search(line))), last)
    return None if last is None else sentence(last)


@contextmanager
def told() -> Iterator[None]:
    """Around the making of an engine in this process: what a user can mend is one sentence.

    With VLLM_LOGGING_LEVEL=DEBUG exceptions stay as they are, traces and all.

    Raises:
        UserError: in the place of the errors that vLLM and aloft report mistakes with.
    """
    try:
        yield
    except (ValueError, OSError, PlatformUnavailable, UnsupportedVersion) as error:
        if os.environ.get("VLLM_LOGGING_LEVEL", "").upper() == "DEBUG":
            raise
        raise UserError(sentence(str(error))) from error
