"""`aloft profile`: where the time of a step goes, by operator and by part of the engine, on the present runtime.

On CANN this has not been tried on hardware.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from aloft.cli.engine_flags import EngineFlags, quiet
from aloft.cli.errors import UserError
from aloft.cli.reason import told
from aloft.runtime.capability import computes_beside_host
from aloft.runtime.choice import device_line

if TYPE_CHECKING:
    from aloft.runtime.timing import OperatorTimer, OperatorTimes

WARM_UP_STEPS = 3
BESIDE_HOST = (
    "The device works beside the host: the parts are the host's time, waiting for the device included, and add up to "
    "the step; operators are the device's time, added up over its streams, and no part of that sum."
)


@dataclass(frozen=True)
class Settings:
    """What to run."""

    model: Path
    dtype: str
    batch: int  # sequences that decode together
    prompt: int  # tokens each of them begins with
    steps: int  # decode steps timed
    prefill: int  # tokens of the prompt whose prefill is timed
    eager: bool
    flags: EngineFlags = field(default_factory=EngineFlags)


@dataclass(frozen=True)
class Measured:
    """One kind of step: seconds a step of every part, and the operators of all steps together."""

    what: str
    steps: int
    total: float
    parts: dict[str, float]  # add up to the total
    beside_host: dict[str, float]  # what went on while the host did something else: in no sum
    operators: OperatorTimes


class Stepped:
    """An engine in this process that is stepped by hand."""

    def __init__(self, settings: Settings, timer: OperatorTimer) -> None:
        from vllm import LLM

        from aloft.cli import profiled

        self._clocks, self._time_detokenizers = profiled.SECONDS, profiled.time_detokenizers
        self._text = (settings.model / "tokenizer.json").exists()
        self._timer = timer
        longest = max(settings.prefill, settings.prompt + WARM_UP_STEPS + runs(timer) * settings.steps) + 8
        arguments = settings.flags.without_run_ahead().arguments()
        arguments.setdefault("max_num_batched_tokens", max(2048, settings.prefill, settings.batch))
        overlapped = overlaps(settings)
        scheduler = profiled.TimedAsyncScheduler if overlapped else profiled.TimedScheduler
        with told():
            self._llm = LLM(
                model=str(settings.model),
                dtype=cast(Any, settings.dtype),
                max_model_len=longest,
                max_num_seqs=settings.batch,
                enable_prefix_caching=False,
                disable_log_stats=True,
                enforce_eager=settings.eager,
                skip_tokenizer_init=not self._text,
                worker_cls=f"{profiled.__name__}.TimedWorker",
                scheduler_cls=scheduler,
                async_scheduling=overlapped,
                **arguments,
            )
        self._engine = self._llm.llm_engine
        self._vocabulary = self._llm.model_config.get_vocab_size()
        self._random = random.Random(0)
        self._ids = itertools.count()
        self._made: dict[str, int] = {}

    def begin(self, batch: int, length: int, tokens: int) -> None:
        """Take `batch` random prompts; nothing runs yet."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        self._made = {}
        for _ in range(batch):
            name = str(next(self._ids))
            ids = [self._random.randrange(self._vocabulary // 2) for _ in range(length)]
            parameters = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=self._text)
            self._engine.add_request(name, TokensPrompt(prompt_token_ids=ids), parameters)
            self._made[name] = 0
        self._time_detokenizers(self._engine.output_processor)

    def until(self, tokens: int) -> None:
        """Step until every sequence has so many tokens."""
        while any(count < tokens for count in self._made.values()):
            assert self._engine.has_unfinished_requests(), "the sequences ended before they were long enough"
            for output in self._engine.step():
                self._made[output.request_id] = len(cast(Any, output).outputs[0].token_ids)

    def end(self) -> None:
        """Drop what is unfinished."""
        self._engine.abort_request(list(self._made))
        while self._engine.has_unfinished_requests():
            self._engine.step()

    def timed(self, what: str, steps: int, work: Callable[[], None]) -> Measured:
        """Run `work`, which takes `steps` steps, once or, where timing operators slows the host, twice.

        On the virtual NPU timing costs some hundredths of a microsecond an operator.

        Raises:
            TimingUnavailable: the operators' times cannot be had.
        """
        if self._timer.slows_host:
            total, clocks = self._run(work)
            with self._timer.times() as operators:
                self._run(work)
        else:
            with self._timer.times() as operators:
                total, clocks = self._run(work)
        parts = parts_of(total, clocks, None if computes_beside_host() else operators.seconds)
        beside = {"operators": operators.seconds / steps} if computes_beside_host() else {}
        return Measured(what, steps, total / steps, {name: t / steps for name, t in parts.items()}, beside, operators)

    def _run(self, work: Callable[[], None]) -> tuple[float, dict[str, float]]:
        """Seconds from an idle device to an idle device, and the clocks of the engine's parts."""
        import torch

        torch.npu.synchronize()  # type: ignore[attr-defined]
        self._clocks.clear()
        started = time.perf_counter()
        work()
        torch.npu.synchronize()  # type: ignore[attr-defined]
        return time.perf_counter() - started, dict(self._clocks)


def overlaps(settings: Settings) -> bool:
    """Whether a step is prepared while the last one computes: where the device does that, or as the user says."""
    depth = settings.flags.additional_config.get("pipeline_depth", 0)
    return depth == 2 or (depth == 0 and computes_beside_host() and not settings.eager)


def runs(timer: OperatorTimer) -> int:
    """How often the same steps run to be timed."""
    return 2 if timer.slows_host else 1


def parts_of(total: float, clocks: dict[str, float], operators: float | None) -> dict[str, float]:
    """Seconds of every part of the host's `total`, which they add up to.

    `operators` are the seconds of it that are in operators; None where the device works beside the host, whose time in
    the runner cannot be split that way: the difference would mean nothing, and could be negative.
    """
    runner = clocks.get("execute", 0.0) + clocks.get("sample", 0.0)
    scheduler = clocks.get("schedule", 0.0) + clocks.get("update", 0.0)
    detokenizer = clocks.get("detokenize", 0.0)
    rest = total - runner - scheduler - detokenizer
    if operators is None:
        return {
            "runner": runner,
            "scheduler": scheduler,
            "detokenizer": detokenizer,
            "engine: inputs, outputs, waiting, the rest": rest,
        }
    return {
        "operators": operators,
        "runner outside operators": runner - operators,
        "scheduler": scheduler,
        "detokenizer": detokenizer,
        "engine: inputs, outputs, the rest": rest,
    }


def profile(settings: Settings, as_json: bool) -> int:
    """Print the tables, or one JSON object; return 0.

    Raises:
        UserError: the operators of this runtime cannot be timed here; or the engine does not start.
    """
    from aloft.runtime.timing import TimingUnavailable, operator_timer

    try:
        timer = operator_timer()
        measured = _measured(settings, timer)
    except TimingUnavailable as error:
        raise UserError(str(error)) from error
    notes = [note for note in (timer.note, BESIDE_HOST if computes_beside_host() else "") if note]
    if as_json:
        print(json.dumps(_plain(settings, notes, measured)), flush=True)
    else:
        print("\n".join(_lines(settings, notes, measured)), flush=True)
    return 0


def _measured(settings: Settings, timer: OperatorTimer) -> list[Measured]:
    quiet()
    engine = Stepped(settings, timer)

    def prefill() -> None:
        engine.begin(1, settings.prefill, 1)
        engine.until(1)

    made = WARM_UP_STEPS

    def decode() -> None:
        nonlocal made
        made += settings.steps
        engine.until(made)

    prefill()
    measured = [engine.timed(f"prefill of {settings.prefill} tokens{_chunks(settings)}", 1, prefill)]
    engine.begin(settings.batch, settings.prompt, runs(timer) * settings.steps + WARM_UP_STEPS + 4)
    engine.until(made)
    what = f"decode step, batch {settings.batch}, after {settings.prompt} tokens"
    measured.append(engine.timed(what, settings.steps, decode))
    engine.end()
    return measured


def _chunks(settings: Settings) -> str:
    most = settings.flags.max_num_batched_tokens
    return "" if most is None or most >= settings.prefill else f" in steps of {most}"


def _plain(settings: Settings, notes: list[str], measured: list[Measured]) -> dict[str, Any]:
    return {
        "device": device_line(),
        "notes": notes,
        "settings": {**asdict(settings), "model": str(settings.model)},
        "steps": [
            {
                "what": entry.what,
                "steps": entry.steps,
                "seconds": entry.total,
                "parts": entry.parts,
                "beside_host": entry.beside_host,
                "note": entry.operators.note,
                "operators": [asdict(operator) for operator in entry.operators],
            }
            for entry in measured
        ],
    }


def _lines(settings: Settings, notes: list[str], measured: list[Measured]) -> list[str]:
    way = "eager" if settings.eager else "captured where a graph fits"
    what = f"{settings.model.name}, {settings.dtype}, {way}{settings.flags.told()}"
    lines = [f"{device_line()}; {what}. Times are of one step.", *notes]
    for entry in measured:
        lines += ["", f"{entry.what}: {1e3 * entry.total:.2f} ms", ""]
        lines.append(f"{'operator':<44} {'calls':>7} {'ms':>9} {'share':>7} {'GB/s':>7} {'GFLOP/s':>8}")
        for operator in entry.operators:
            share = operator.seconds / max(entry.operators.seconds, 1e-12)
            rates = [
                f"{value / operator.seconds / 1e9:.1f}" if value and operator.seconds else ""
                for value in (operator.bytes, operator.operations)
            ]
            lines.append(
                f"{operator.name[:44]:<44} {operator.calls / entry.steps:>7.1f} "
                f"{1e3 * operator.seconds / entry.steps:>9.3f} {100 * share:>6.1f}% {rates[0]:>7} {rates[1]:>8}"
            )
        if entry.operators.note:
            lines.append(entry.operators.note)
        lines.append("")
        lines += [_share(name, seconds, entry.total) for name, seconds in entry.parts.items()]
        for name, seconds in entry.beside_host.items():
            lines += ["", _share(f"beside the host: {name}", seconds, entry.total)]
    return lines


def _share(name: str, seconds: float, total: float) -> str:
    return f"{name:<44} {1e3 * seconds:>17.3f} {100 * seconds / total:>6.1f}%"
