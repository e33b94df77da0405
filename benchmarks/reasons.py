"""What bounds a figure that misses its target: one sentence, computed from the rows and limits of the same report."""

from __future__ import annotations

from typing import Any

from bounds import UNITS
from words import number, share

Report = dict[str, Any]
NOTHING = "the report has no rows of its parts"


def value(report: Report, figure: str, **where: Any) -> float | None:
    """aloft's value of a figure in 16 bits, or one that is nobody's, such as an import."""
    for row in report["rows"]:
        fits = row["engine"] in ("aloft", "") and row["precision"] in ("16-bit", "")
        if fits and row["figure"] == figure and all(row[key] == wanted for key, wanted in where.items()):
            return float(row["value"])
    return None


def why(row: dict[str, Any], line: dict[str, Any], most: float | None, report: Report) -> str:
    """The sentence.

    row, line: aloft's row, and its ratio line (or nothing). most: what would reach the target, in milliseconds a step
    or prompt for decode and prefill, else in the row's unit; None where it is not known.
    """
    figure = row["figure"]
    if figure in ("decode", "step_operators"):
        return _step(row, line, most, report)
    if figure == "prefill":
        return _prefill(row, line, most, report)
    if figure == "step_outside_operators":
        return _parts(report, row, "ms", {name: f"step_{name}" for name in ("runner", "scheduler", "engine")})
    if figure == "server_start":
        imports = {"importing torch with npu": "import_torch_with_npu", "importing vllm": "import_vllm"}
        return _parts(report, row, "s", {**imports, "an engine's start": "engine_start"}, "the rest", tuple(imports))
    if figure == "time_to_first_token":
        return _first_token(row, line, report)
    if figure == "engine_start":
        return _beside(report, row, {"its imports, not in it,": "engine_imports", "first use": "engine_first_use"})
    if figure.startswith("route_overhead_"):
        native = f"route_overhead_add_{figure.rpartition('_')[2]}"
        return _beside(report, row, {"add, an operator with a kernel of its own,": native})
    return NOTHING


def unit(kind: str, report: Report) -> str:
    """`bf16_amx at 5,093 GFLOP/s`: what the limit of a ratio line was reckoned with."""
    names = ("read_bandwidth", "read_bandwidth_huge") if kind == "memory" else UNITS.get(kind, ())
    limits = [entry for name in names if (entry := report.get("roofline", {}).get(name))]
    if not limits:
        return kind
    best = max(limits, key=lambda entry: entry["value"])
    return f"{best['figure']} at {number(best['value'])} {best['unit']}"


def _of(part: float, whole: float, name: str = "ms") -> str:
    return f"{number(part)} {name} ({share(part / whole)})"


def _wanted(most: float | None, name: str) -> str:
    return "" if most is None else f" where {number(most)} {name} are wanted"


def _limit(line: dict[str, Any], whole: float, report: Report) -> str:
    least = line["bound_share"] * whole
    return f"the limit ({line['bound']}: {unit(line['bound'], report)}) is {_of(least, whole)}"


def _step(row: dict[str, Any], line: dict[str, Any], most: float | None, report: Report) -> str:
    """A decode step: its limit, and what operators and host take beyond that."""
    alone = row["figure"] == "step_operators"
    whole = row["value"] if alone else 1e3 * row["batch"] / row["value"]
    words = [f"{'its operators take' if alone else 'a step takes'} {number(whole)} ms{_wanted(most, 'ms')}"]
    least = 0.0
    if line.get("bound_share"):
        least = line["bound_share"] * whole
        words.append(_limit(line, whole, report))
    where = {key: row[key] for key in ("model", "batch", "prompt")}
    if alone:
        words += [f"{number(whole - least)} ms are above it"] if least else []
        return "; ".join(words)
    operators = value(report, "step_operators", **where)
    host = value(report, "step_outside_operators", **where)
    if operators is None or host is None:
        words += [f"{number(whole - least)} ms are above it, not split in this report"] if least else []
        return "; ".join(words)
    beside = max(operators + host - whole, 0.0)
    words.append(f"profiled apart, operators take {_of(operators, whole)} and the host {_of(host, whole)}")
    words[-1] += f", {number(beside)} ms of it beside operators" if beside else ""
    if least:
        above = number(max(operators - least, 0.0))
        words.append(f"above the limit are {above} ms of operators and {number(host - beside)} ms of the host")
    return "; ".join(words)


def _prefill(row: dict[str, Any], line: dict[str, Any], most: float | None, report: Report) -> str:
    whole = 1e3 * row["prompt"] / row["value"]
    words = [f"a prompt takes {number(whole)} ms{_wanted(most, 'ms')}"]
    if line.get("bound_share"):
        words.append(_limit(line, whole, report))
    if line.get("fma_share"):
        words.append(f"{share(line['fma_share'])} of {unit('fma', report)}")
    if line.get("best_peer_value"):
        words.append(f"{line['best_peer']} takes {number(1e3 * row['prompt'] / line['best_peer_value'])} ms")
    return "; ".join(words)


def _parts(
    report: Report, row: dict[str, Any], name: str, parts: dict[str, str], rest: str = "", free: tuple[str, ...] = ()
) -> str:
    """Parts of a whole; the largest that counts is named at the end. free: parts that the target takes off."""
    found = {}
    for words, figure in parts.items():
        place = {key: row[key] for key in ("model", "batch", "prompt")} if figure.startswith("step_") else {}
        if (part := value(report, figure, **place)) is not None:
            found[words] = part
    if not found:
        return NOTHING
    whole = row["value"]
    if rest:
        found[rest] = max(whole - sum(found.values()), 0.0)
    words = ", ".join(f"{words} {_of(part, whole, name)}" for words, part in found.items())
    most = max((words for words in found if words not in free), key=lambda words: found[words])
    beyond = " beyond imports" if free else ""
    return f"of {number(whole)} {name}: {words}; the most{beyond} is {most}"


def _first_token(row: dict[str, Any], line: dict[str, Any], report: Report) -> str:
    """Prompt and step as the engine alone takes them; the rest is the server's and the first step's."""
    whole, words = 1e3 * row["value"], []
    left = whole
    lengths = sorted(each["prompt"] for each in report["rows"] if each["figure"] == "prefill")
    if lengths and (rate := value(report, "prefill", model=row["model"], prompt=lengths[0])):
        taken = 1e3 * row["prompt"] / rate
        left -= taken
        words.append(f"{row['prompt']} tokens at the rate of prefill {lengths[0]} take {_of(taken, whole)}")
    if token := value(report, "server_token", model=row["model"]):
        step = value(report, "decode_step", model=row["model"], batch=1, prompt=row["prompt"])
        more = f", its engine's step {number(step)} ms" if step else ""
        left -= token
        words.append(f"one token through the server {_of(token, whole)}{more}")
    if not words:
        return NOTHING
    words.append(f"the remaining {_of(left, whole)} are in neither")
    if line.get("best_peer_value"):
        words.append(f"{line['best_peer']} takes {number(1e3 * line['best_peer_value'])} ms in all")
    return f"of {number(whole)} ms: " + "; ".join(words)


def _beside(report: Report, row: dict[str, Any], others: dict[str, str]) -> str:
    """Figures that say something of one that has no parts."""
    where = {"model": row["model"]}
    found = {words: value(report, figure, **where) for words, figure in others.items()}
    words = [f"{words} {_of(each, row['value'], row['unit'])}" for words, each in found.items() if each is not None]
    return f"beside {number(row['value'])} {row['unit']}: {', '.join(words)}" if words else NOTHING
