"""How figures and values are written."""

from __future__ import annotations

from typing import Any


def number(value: float | None) -> str:
    """Three digits that matter."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def share(value: float | None) -> str:
    """As a percentage."""
    return "" if value is None else f"{100 * value:.0f} %"


def what(line: dict[str, Any]) -> str:
    """`decode, batch 8, after 32 tokens`."""
    words = {"step_operators": "operators of a decode step"}.get(line["figure"], line["figure"].replace("_", " "))
    if line["figure"] == "prefill":
        return f"{words} {line['prompt']}"
    if line["batch"]:
        words += f", batch {line['batch']}"
    return words + (f", after {line['prompt']} tokens" if line["prompt"] else "")


def engine(row: dict[str, Any]) -> str:
    """`llama_cpp f16`."""
    return f"{row['engine']} {row.get('weights', '')}".strip()
