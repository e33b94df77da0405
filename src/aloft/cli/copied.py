"""The output of a child process: passed on as it comes, its end remembered."""

from __future__ import annotations

import os
import threading
from typing import IO

_REMEMBERED = 1 << 18


class Copied:
    """Copies a child's pipes to this process's standard output and error until they close, in threads."""

    def __init__(self, output: IO[bytes], errors: IO[bytes]) -> None:
        self._ends = [bytearray(), bytearray()]
        self._threads = [
            threading.Thread(target=self._copy, args=(source, to, end), daemon=True)
            for source, to, end in ((output, 1, self._ends[0]), (errors, 2, self._ends[1]))
        ]
        for thread in self._threads:
            thread.start()

    def text(self, within_s: float = 2.0) -> str:
        """The last of the output, then the last of the errors; waits a moment for what is still in the pipes."""
        for thread in self._threads:
            thread.join(within_s)
        return "\n".join(bytes(end).decode(errors="replace") for end in self._ends)

    @staticmethod
    def _copy(source: IO[bytes], to: int, end: bytearray) -> None:
        open_ = True
        while part := os.read(source.fileno(), 1 << 16):
            end += part
            del end[:-_REMEMBERED]
            try:
                while open_ and part:
                    part = part[os.write(to, part) :]
            except OSError:  # nobody reads what this command says; the child must not stall for that
                open_ = False
