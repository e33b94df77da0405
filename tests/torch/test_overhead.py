"""What the generic route costs a call over the CPU operator itself. The bound is far above what is wanted: machines
that run tests are busy; `make bench` measures it."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch


def microseconds(work: Callable[[], object], calls: int = 2000) -> float:
    for _ in range(100):
        work()
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls * 1e6


def test_overhead(record_property: Callable[[str, object], None]) -> None:
    a, b, out = torch.ones(16), torch.ones(16), torch.empty(16)
    x, y, to = a.npu(), b.npu(), out.npu()
    rows: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "out=": (lambda: torch.add(a, b, out=out), lambda: torch.add(x, y, out=to)),
        "in place": (lambda: a.mul_(b), lambda: x.mul_(y)),
        "functional": (lambda: torch.add(a, b), lambda: torch.add(x, y)),
    }
    bounds = {"out=": 20.0, "in place": 20.0, "functional": 40.0}
    with torch.no_grad():
        for name, (host, device) in rows.items():
            # Interleaved: other processes come and go.
            over = median(microseconds(device) - microseconds(host) for _ in range(7))
            record_property(f"overhead of {name} in microseconds", round(over, 2))
            print(f"{name}: {over:.2f} us over the CPU operator")
            assert over < bounds[name], name
