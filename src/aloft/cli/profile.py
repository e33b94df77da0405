"""`aloft profile`: where the time of a step goes, by operator and by part of the engine, on the present runtime."""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from aloft.cli.errors import UserError
from aloft.cli.reason import told
from aloft.runtime.autoload import virtual
from aloft.runtime.capability import computes_beside_host
from aloft.runtime.choice import device_line

if TYPE_CHECKING:
    from aloft.runtime.timing import OperatorTimes

WARM_UP_STEPS = 3


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


@dataclass(frozen=True)
class Measured:
    """One kind of step: seconds a step of every part, and the operators of all steps together."""

    what: str
    steps: int
    total: float
    parts: dict[str, float]
    operators: OperatorTimes


class Stepped:
    """An engine in this process that is stepped by hand."""

    def __init__(self, settings: Settings) -> None:
        from vllm import LLM

        from aloft.cli import profiled

        self._clocks, self._time_detokenizers = profiled.SECONDS, profiled.time_detokenizers
        self._text = (settings.model / "tokenizer.json").exists()
        longest = max(settings.prefill, settings.prompt + WARM_UP_STEPS + settings.steps) + 8
        overlapped = computes_beside_host() and not settings.eager
        scheduler = profiled.TimedAsyncScheduler if overlapped else profiled.TimedScheduler
        with told():
            self._llm = LLM(
                model=str(settings.model),
                dtype=cast(Any, settings.dtype),
                max_model_len=longest,
                max_num_seqs=settings.batch,
                max_num_batched_tokens=max(2048, settings.prefill, settings.batch),
                enable_prefix_caching=False,
                disable_log_stats=True,
                enforce_eager=settings.eager,
                skip_tokenizer_init=not self._text,
                worker_cls=f"{profiled.__name__}.TimedWorker",
                scheduler_cls=scheduler,
                async_scheduling=overlapped,
                additional_config={"run_ahead": False},  # what runs beside the host is no part of its time
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
        """Run `work`, which takes `steps` steps. Timing costs some hundredths of a microsecond an operator."""
        from aloft.runtime.timing import operator_times

        self._clocks.clear()
        with operator_times() as operators:
            started = time.perf_counter()
            work()
            total = time.perf_counter() - started
        parts = dict(self._clocks)
        runner = parts.get("execute", 0.0) + parts.get("sample", 0.0)
        scheduler = parts.get("schedule", 0.0) + parts.get("update", 0.0)
        split = {
            "operators": operators.seconds,
            "runner outside operators": runner - operators.seconds,
            "scheduler": scheduler,
            "detokenizer": parts.get("detokenize", 0.0),
            "engine: inputs, outputs, the rest": total - runner - scheduler - parts.get("detokenize", 0.0),
        }
        return Measured(what, steps, total / steps, {name: t / steps for name, t in split.items()}, operators)


def profile(settings: Settings, as_json: bool) -> int:
    """Print the tables, or one JSON object; return 0.

    Raises:
        UserError: the runtime is CANN.
    """
    if not virtual():
        raise UserError(
            "`aloft profile` times the operators of the virtual NPU; on CANN use torch_npu.profiler (not tried by us)."
        )
    for name, value in (
        ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_LOGGING_LEVEL", "ERROR"),
        ("HF_HUB_OFFLINE", "1"),
    ):
        os.environ.setdefault(name, value)
    engine = Stepped(settings)

    def prefill() -> None:
        engine.begin(1, settings.prefill, 1)
        engine.until(1)

    made = WARM_UP_STEPS

    def decode() -> None:
        nonlocal made
        made += settings.steps
        engine.until(made)

    prefill()
    measured = [engine.timed(f"prefill of {settings.prefill} tokens", 1, prefill)]
    engine.begin(settings.batch, settings.prompt, settings.steps + WARM_UP_STEPS + 4)
    engine.until(made)
    what = f"decode step, batch {settings.batch}, after {settings.prompt} tokens"
    measured.append(engine.timed(what, settings.steps, decode))
    engine.end()
    print(json.dumps(_plain(settings, measured)) if as_json else "\n".join(_lines(settings, measured)), flush=True)
    return 0


def _plain(settings: Settings, measured: list[Measured]) -> dict[str, Any]:
    return {
        "device": device_line(),
        "settings": {**asdict(settings), "model": str(settings.model)},
        "steps": [
            {
                "what": entry.what,
                "steps": entry.steps,
                "seconds": entry.total,
                "parts": entry.parts,
                "operators": [asdict(operator) for operator in entry.operators],
            }
            for entry in measured
        ],
    }


def _lines(settings: Settings, measured: list[Measured]) -> list[str]:
    way = "eager" if settings.eager else "captured where a graph fits"
    lines = [f"{device_line()}; {settings.model.name}, {settings.dtype}, {way}. Times are of one step."]
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
        lines.append("")
        lines += [f"{name:<44} {1e3 * seconds:>17.3f} {100 * seconds / entry.total:>6.1f}%"
                  for name, seconds in entry.parts.items()]  # fmt: skip
    return lines
