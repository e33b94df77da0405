"""Graphs that are replayed beside the host's thread, which takes part in computing them once it has to wait for them.

The virtual NPU's inline streams compute in the thread that launches. While the host's own program runs, the other cores
have nothing to do; a graph launched beside it uses them.
"""

from __future__ import annotations

import ctypes
import functools

from torch_npu import npu


def available() -> bool:
    """Whether the runtime has this: the virtual NPU with inline streams and two threads or more to compute with."""
    library = _library()
    return library is not None and bool(library.aloftRunsBeside())


def free() -> bool:
    """Whether nothing runs beside the host now. ``available()`` must hold here and below."""
    library = _library()
    assert library is not None
    return bool(library.aloftBesideIsFree())


def replay(graph: npu.NPUGraph) -> int:
    """Replays a graph beside the calling thread where it can be, else as ever; returns the number to give it up by.

    Whatever is done with the stream or its device's memory afterwards waits until the graph is over, and raises what
    went wrong in it. A graph that waits for events, records them, draws random numbers, calls the program or holds task
    groups is replayed as ever, as is any while nothing is ``free()``.
    """
    library = _library()
    assert library is not None
    library.aloftRunNextBeside()
    graph.replay()
    return library.aloftBesideNumber()


def give_up(number: int) -> None:
    """The replay of that number, if it still runs, ends soon, whatever it has reached: it is not needed."""
    library = _library()
    assert library is not None
    library.aloftGiveUpBeside(number)


@functools.cache
def _library() -> ctypes.PyDLL | None:
    library = ctypes.PyDLL(None)  # the calls are short: the interpreter's lock is kept
    if not hasattr(library, "aloftRunsBeside"):
        return None  # CANN
    library.aloftRunsBeside.argtypes, library.aloftRunsBeside.restype = [], ctypes.c_int
    library.aloftRunNextBeside.argtypes, library.aloftRunNextBeside.restype = [], None
    library.aloftBesideIsFree.argtypes, library.aloftBesideIsFree.restype = [], ctypes.c_int
    library.aloftBesideNumber.argtypes, library.aloftBesideNumber.restype = [], ctypes.c_uint64
    library.aloftGiveUpBeside.argtypes, library.aloftGiveUpBeside.restype = [ctypes.c_uint64], None
    return library
