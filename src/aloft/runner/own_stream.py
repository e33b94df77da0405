"""The stream an engine's steps run on, whichever one the thread that steps it has selected.

An engine in the user's own process is stepped from within whatever the user's program does with streams and devices.
Replays, copies and the events that say they are over have to be of one stream all the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch_npu import _C, npu

_NOTHING = contextlib.nullcontext()


class OwnStream:
    """The stream that is selected when this is made."""

    def __init__(self, device: torch.device) -> None:
        """device: with an index."""
        self.device = device
        self.stream = npu.current_stream(device)
        self._handle = self.stream.npu_stream

    def selected(self) -> contextlib.AbstractContextManager[None]:
        """While inside, this stream and its device are the selected ones; what had been selected is ordered before
        and after what is launched inside."""
        index = self.device.index
        if _C._npu_getDeviceWithoutSet() == index and _C._npu_getCurrentRawStreamNoWait(index) == self._handle:
            return _NOTHING
        return self._instead()

    @contextlib.contextmanager
    def _instead(self) -> Iterator[None]:
        with npu.device(self.device):
            theirs = npu.current_stream()
            if theirs == self.stream:
                yield
                return
            self.stream.wait_stream(theirs)
            with npu.stream(self.stream):
                yield
            theirs.wait_stream(self.stream)
