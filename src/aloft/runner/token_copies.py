"""Sampled tokens on their way to the host: pinned places that are used again once everybody has read them."""

from __future__ import annotations

import numpy as np
import torch
from torch_npu import npu


class TokenCopy:
    """The tokens of one step, valid once ``ready`` has happened."""

    __slots__ = ("host", "numpy", "readers", "ready", "views")

    def __init__(self, max_num_reqs: int) -> None:
        self.host = torch.empty(max_num_reqs, 1, dtype=torch.int32, pin_memory=True)
        self.numpy: np.ndarray = self.host.numpy()[:, 0]
        self.ready: torch.Event = npu.Event()
        self.readers: list[None] = []  # a list, because pop() is atomic and readers may be other threads
        self.views: dict[int, torch.Tensor] = {}

    def view(self, count: int) -> torch.Tensor:
        """int32 ``[count, 1]``."""
        made = self.views.get(count)
        if made is None:
            made = self.views[count] = self.host[:count]
        return made

    def read(self) -> None:
        """One of the readers is done."""
        self.readers.pop()


class TokenCopies:
    """Hands out places: one that nobody waits for any more, else a new one."""

    def __init__(self, max_num_reqs: int, stream: npu.Stream) -> None:
        self.max_num_reqs = max_num_reqs
        self.stream = stream
        self.places: list[TokenCopy] = []

    def send(self, tokens: torch.Tensor, readers: int) -> TokenCopy:
        """Starts copying device tokens int32 ``[B, 1]``; the place is free again after ``readers`` calls of read()."""
        place = next((p for p in self.places if not p.readers), None)
        if place is None:
            place = TokenCopy(self.max_num_reqs)
            self.places.append(place)
        place.readers.extend([None] * readers)
        place.view(tokens.shape[0]).copy_(tokens, non_blocking=True)
        place.ready.record(self.stream)
        return place
