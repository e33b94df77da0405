"""The thread pool and instruction-set choice of libaloft_kernels, called as C from fresh processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from aloft.runtime.choice import library_folder

LIBRARY = library_folder() / "libaloft_kernels.so"
PRELUDE = f"""
import ctypes, os, threading, time
lib = ctypes.CDLL({str(LIBRARY)!r})
lib.aloftKernelsError.restype = lib.aloftKernelsIsa.restype = ctypes.c_char_p
Body = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
run_parallel = lib._ZN5aloft6detail12run_parallelEllPFvPvllES1_
run_parallel.argtypes = [ctypes.c_int64, ctypes.c_int64, Body, ctypes.c_void_p]
def loop(count, grain=1, pause=0.0):
    ranges, threads = [], set()
    def body(_, begin, end):
        ranges.append((begin, end))
        threads.add(threading.get_native_id())
        time.sleep(pause)
    run_parallel(count, grain, Body(body), None)
    return sorted(ranges), threads
def covers(ranges, count, grain):
    edges = [0]
    for begin, end in ranges:
        assert begin == edges[-1] and begin % grain == 0 and end > begin, ranges
        assert end - begin >= grain or end == count, ranges
        edges.append(end)
    assert edges[-1] == count, ranges
"""


def child(code: str, **environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ALOFT_")}
    done = subprocess.run(
        [sys.executable, "-S", "-c", PRELUDE + textwrap.dedent(code)],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_ranges_cover_once_and_use_all_threads() -> None:
    child(
        """
        for count in (0, 1, 2, 7, 16, 100, 1001):
            for grain in (1, 3, 16, 500):
                ranges, _ = loop(count, grain)
                covers(ranges, count, grain) if count else None
                assert bool(ranges) == (count > 0)
        for _ in range(3):
            ranges, threads = loop(12, 1, 0.02)
            assert len(threads) == 3, threads
        """,
        ALOFT_THREADS="3",
    )


def test_set_threads_nested_and_concurrent_callers() -> None:
    child(
        """
        assert lib.aloftNumThreads() == 2
        assert lib.aloftSetNumThreads(0) == -1 and lib.aloftSetNumThreads(1025) == -1
        assert lib.aloftSetNumThreads(1) == 0 and len(loop(8, 1, 0.001)[1]) == 1
        assert lib.aloftSetNumThreads(4) == 0 and len(loop(64, 1, 0.005)[1]) == 4
        inner = []
        def body(_, begin, end):
            for i in range(begin, end):
                ranges, threads = loop(50, 1)
                inner.append((ranges, len(threads)))
        run_parallel(8, 1, Body(body), None)
        assert inner == [([(0, 50)], 1)] * 8, inner     # nested: serial, whole
        total = []
        def caller():
            for _ in range(200):
                ranges, _ = loop(40, 1)
                covers(ranges, 40, 1)
                total.append(1)
        threads = [threading.Thread(target=caller) for _ in range(4)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert len(total) == 800
        """,
        ALOFT_THREADS="2",
    )


@pytest.mark.parametrize("place_left", [False, True])
def test_guests_take_part_and_every_index_is_computed_once(place_left: bool) -> None:
    out = child(
        f"""
        import random
        Done = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)
        help_loops = lib._ZN5aloft10help_loopsEPFbPvES0_
        help_loops.argtypes, help_loops.restype = [Done, ctypes.c_void_p], ctypes.c_bool
        leave_place = lib._ZN5aloft11leave_placeEb
        leave_place.argtypes, leave_place.restype = [ctypes.c_bool], None
        over, helped, never = [], [], Done(lambda _: False)
        done = Done(lambda _: bool(over))
        def guest():
            helped.append(threading.get_native_id())
            while not help_loops(done, None): pass
        guests = [threading.Thread(target=guest) for _ in range(2)]
        [g.start() for g in guests]
        leave_place({place_left})
        numbers, seen = random.Random(3), set()
        for i in range(1000):
            if i % 100 == 0:
                assert lib.aloftSetNumThreads(numbers.choice((1, 2, 3, 8))) == 0
            count, grain = numbers.randrange(1, 300), numbers.randrange(1, 30)
            ranges, threads = loop(count, grain)
            covers(ranges, count, grain)
            seen |= threads
        # Two threads: the place of one is left to whoever helps, so of the pool's own there is none.
        lib.aloftSetNumThreads(2)
        own = set()
        for _ in range(20):
            own |= loop(16, 1, 0.001)[1]
        own -= {{threading.get_native_id(), *helped}}
        assert bool(own) != {place_left}, own
        assert not seen.isdisjoint(helped)
        inner = []
        def body(_, begin, end): inner.append(help_loops(never, None))   # not from within a loop
        run_parallel(8, 1, Body(body), None)
        assert inner and not any(inner), inner
        over.append(1)
        [g.join() for g in guests]
        assert help_loops(never, None) is False     # nothing to do: it comes back
        print("fine")
        """,
        ALOFT_THREADS="3",
    )
    assert out == "fine"


def test_workers_sleep_when_idle_and_wake() -> None:
    out = child(
        """
        loop(8)
        time.sleep(0.05)
        before = time.process_time(); time.sleep(0.5); spent = time.process_time() - before
        assert spent < 0.05, spent
        print(len(loop(16, 1, 0.005)[1]))
        """,
        ALOFT_THREADS="4",
    )
    assert out == "4"


def test_forked_child_has_its_own_pool() -> None:
    out = child(
        """
        loop(8, 1, 0.005)
        pid = os.fork()
        if pid == 0:
            os._exit(10 + len(loop(16, 1, 0.01)[1]))
        status = os.waitpid(pid, 0)[1]
        print(os.waitstatus_to_exitcode(status), len(loop(16, 1, 0.01)[1]))
        """,
        ALOFT_THREADS="3",
    )
    assert out == "13 3"


def test_default_is_what_the_process_may_use() -> None:
    code = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nprint(lib.aloftNumThreads())"
    assert child(code) == "1"
    assert 1 <= int(child("print(lib.aloftNumThreads())")) <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("ALOFT_THREADS", "0", "ALOFT_THREADS must be a whole number from 1 to 1024, got '0'"),
        ("ALOFT_THREADS", "two", "got 'two'"),
        ("ALOFT_SPIN_US", "-1", "ALOFT_SPIN_US must be a whole number"),
        ("ALOFT_ISA", "sse9", "ALOFT_ISA must be portable, avx2, avx512 or amx, got 'sse9'"),
    ],
)
def test_wrong_environment_is_named(name: str, value: str, text: str) -> None:
    out = child("for _ in range(2): error = lib.aloftKernelsError().decode()\nprint(error)", **{name: value})
    assert text in out


def test_isa_can_be_lowered() -> None:
    code = "print(lib.aloftKernelsIsa().decode(), lib.aloftKernelsError())"
    assert child(code, ALOFT_ISA="portable") == "portable None"
