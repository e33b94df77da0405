"""Rows and ratios of a report, from samples.

rows:   {figure, model, engine, precision, batch, prompt, value, unit} and weights (what the engine was given), runs,
        min, max; value is the median
ratios: {figure, model, precision, batch, prompt, aloft, best_peer, best_peer_value, ratio, bound_share}; a ratio above
        1 means that aloft is ahead, also where less is better; bound_share is the time the machine's limits leave (see
        bounds.py) over the time aloft takes (of step_operators: over what the operators of a decode step take). Beside
        them: weights (aloft's; where a class has several forms each has a
        line, the best of a figure first), bound (memory, or the unit of the products), fma_share (of the float32 FMA
        peak alone), peers (the value of every other engine)

In a merged report (merge.py) each of them has report: its run's place in `reports`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from bounds import Cost, Roofline, Shape
from engines import Kind
from plan import Session

Row = dict[str, Any]
LESS_IS_BETTER = ("s", "ms", "MiB")
COMPARED = ("prefill", "prefill_batch", "decode", "engine_start", "peak_memory")
COMPARED += ("time_to_first_token", "server_token", "server_start")
ALONE = ("step_operators",)  # aloft's only, beside its bound
BOUND = ("decode", "prefill", *ALONE)


def row(figure: str, values: list[float], unit: str, **more: Any) -> Row:
    """A row: the median of the values, with their number and range."""
    base = {"figure": figure, "model": "", "engine": "", "precision": "", "batch": 0, "prompt": 0}
    spread = {"runs": len(values), "min": min(values), "max": max(values)}
    return {**base, **more, "value": statistics.median(values), "unit": unit, **spread}


class Samples:
    """Values as they are measured."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str, str, str, str, int, int, str], list[float]] = {}

    def add(self, session: Session, kind: Kind, figure: str, batch: int, prompt: int, unit: str, value: float) -> None:
        """Note one value."""
        key = (figure, session.model, kind.engine, session.precision, kind.precision, batch, prompt, unit)
        self._values.setdefault(key, []).append(value)

    def rows(self) -> list[Row]:
        """One row a figure."""
        return [
            row(figure, values, unit, model=model, engine=engine, precision=precision, weights=weights, batch=batch,
                prompt=prompt)
            for (figure, model, engine, precision, weights, batch, prompt, unit), values in self._values.items()
        ]  # fmt: skip


def ratios(
    rows: Iterable[Row],
    shapes: dict[str, Shape],
    roof: Roofline,
    layer_bytes: dict[tuple[str, str], float] | None = None,
) -> list[Row]:
    """aloft against the best other engine, for every figure that both have.

    layer_bytes: (model, aloft's weights) -> bytes of a weight of the layers as stored, where it is known.
    """
    groups: dict[tuple[str, str, str, int, int], list[Row]] = {}
    for entry in rows:
        if entry["figure"] in COMPARED + ALONE:
            key = tuple(entry[name] for name in ("figure", "model", "precision", "batch", "prompt"))
            groups.setdefault(key, []).append(entry)  # type: ignore[arg-type]
    found = []
    for (figure, model, precision, batch, prompt), entries in groups.items():
        less = entries[0]["unit"] in LESS_IS_BETTER
        mine = [entry for entry in entries if entry["engine"] == "aloft"]
        peers = [entry for entry in entries if entry["engine"] != "aloft"]
        peers = sorted(peers, key=lambda entry: entry["value"], reverse=not less)
        for entry in sorted(mine, key=lambda entry: entry["value"], reverse=not less):
            weights, own = entry.get("weights", ""), entry["value"]
            line: Row = {"figure": figure, "model": model, "precision": precision, "batch": batch, "prompt": prompt}
            line |= {"aloft": own, "best_peer": None, "best_peer_value": None, "ratio": None, "bound_share": None}
            line |= {"weights": weights, "peers": {_name(peer): peer["value"] for peer in peers}}
            if peers:
                value = peers[0]["value"]
                line |= {"best_peer": _name(peers[0]), "best_peer_value": value}
                line["ratio"] = value / own if less else own / value
            if model in shapes and figure in BOUND:
                line |= _bound(line, shapes[model], Cost.of(weights, (layer_bytes or {}).get((model, weights))), roof)
            line["unit"] = entry["unit"]
            found.append(line)
    return found


def _name(entry: Row) -> str:
    return f"{entry['engine']} {entry.get('weights', '')}".strip()


def _bound(line: Row, shape: Shape, cost: Cost, roof: Roofline) -> Row:
    prefill = line["figure"] == "prefill"
    rows = line["prompt"] if prefill else line["batch"]
    taken = line["aloft"] / 1e3 if line["figure"] in ALONE else rows / line["aloft"]
    least = shape.prefill_bound(cost, rows, roof) if prefill else shape.decode_bound(cost, rows, line["prompt"], roof)
    work = sum(seconds * roof.peak(kind) for kind, seconds in least.parts.items())
    return {
        "bound_share": least.seconds / taken if least.seconds else None,
        "bound": least.what,
        "fma_share": work / roof.fma / taken if roof.fma and work else None,
    }
