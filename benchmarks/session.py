"""One model in one precision class: start its engines, then take turns at every figure, round by round."""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import models
import workers
from bounds import Roofline, Shape, stored_layer_bytes
from clock import Clock
from engines import HEAD8, REPACKED, Kind
from plan import PREFILL_SAMPLES, WARM_BATCH_LENGTH, WARM_PREFILLS, WARM_STEPS, Decode, Session
from results import Samples

AGREE_TOKENS = 24
CALL_SECONDS = 600.0  # an engine that answers no sooner has failed
GUARD_SECONDS = 55.0  # a turn that begins so long after the guard still ends under it
# A sentence the greedy continuation of which every engine can be asked for (SmolLM2's tokens).
_SENTENCE = [504, 3575, 282, 4649, 314]


def say(*words: object) -> None:
    """Progress, on standard error."""
    print(time.strftime("%H:%M:%S"), *words, file=sys.stderr, flush=True)


class Sitting:
    """A session while it is measured."""

    def __init__(
        self,
        session: Session,
        samples: Samples,
        roof: Roofline,
        logs: Path,
        guard: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or Clock()
        self.guard = guard
        self._guard: subprocess.Popen[bytes] | None = None
        self._guard_ends = 0.0
        self.session = session
        self.samples = samples
        self.roof = roof
        self.logs = logs
        self.workers: dict[Kind, workers.Worker] = {}
        self.missing: dict[str, str] = {}
        self.agreement: dict[str, Any] = {}
        self.memory: dict[str, dict[str, float]] = {}
        self.layer_bytes: dict[tuple[str, str], float] = {}
        self._alone: set[Kind] = set()  # engines that take one token at a time
        self._random = random.Random(session.model)
        self._turn = 0

    def run(self) -> None:
        """Measure everything the session names."""
        session = self.session
        with ExitStack() as stack:
            for start in range(session.starts):
                last = start == session.starts - 1
                with self._around():
                    for kind in session.kinds:
                        self._renew()
                        self._start(kind, stack, keep=last)
            with self._around():
                self._agree()
                for length, name in zip(session.prefill, session.figures, strict=False):
                    if self._fits("prefill", name):
                        self._prefill(length)
            with self._around():
                for case in session.decode:
                    if self._fits("decode", case.name):
                        self._decode(case)
            for kind in list(self.workers):
                self._ask(kind, "memory", self._note_memory)

    def _note_memory(self, kind: Kind, answer: dict[str, Any]) -> None:
        self._note(kind, "peak_memory", answer["peak_mib"], "MiB")
        self.memory[f"{kind.engine} {kind.precision}"] = answer["parts"]

    def _fits(self, part: str, name: str) -> bool:
        """Whether there is time for a part; one there is none for is named."""
        if self.clock.allows(part):
            return True
        self.missing[name] = self.clock.reason
        return False

    @contextmanager
    def _around(self) -> Iterator[None]:
        """The guard runs inside the block, which begins when it has printed a line."""
        self._renew()
        try:
            yield
        finally:
            self._release()

    def _renew(self) -> None:
        """Between two turns: a guard that will not last for another one is begun anew."""
        if self.guard is None or time.monotonic() < self._guard_ends:
            return
        self._release()
        self._guard = subprocess.Popen(shlex.split(self.guard), stdout=subprocess.PIPE, process_group=0)
        assert self._guard.stdout
        self._guard.stdout.readline()
        self._guard_ends = time.monotonic() + GUARD_SECONDS

    def _release(self) -> None:
        guard, self._guard, self._guard_ends = self._guard, None, 0.0
        if guard is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(guard.pid, signal.SIGTERM)
        guard.wait()
        assert guard.stdout
        guard.stdout.close()

    def _start(self, kind: Kind, stack: ExitStack, keep: bool) -> None:
        session = self.session
        name = f"{kind.engine} {kind.precision}"
        reason = workers.missing(kind)
        if reason:
            self.missing[name] = reason
            return
        if not self._fits("start", name):
            return
        say(session.model, session.precision, "starting", name)
        tokens = session.max_batch * session.max_length
        cache = self.shape().cache_bytes(4 if "32" in kind.precision else 2) * tokens
        worker = workers.Worker(kind, self.logs / f"{kind.engine}-{kind.precision}.log", int(cache / 2**30) + 1)
        try:
            path = self._file(kind)
            imports = self._answer(worker, "import_engine")["seconds"]
            if kind.precision.endswith(REPACKED):
                self._probe(kind, worker, str(path))
            sizes = {"max_batch": session.max_batch, "max_length": session.max_length, "threads": workers.THREADS}
            rest = self._answer(worker, "load", model=str(path), precision=kind.precision, **sizes)["seconds"]
            warm = time.perf_counter()
            self._answer(worker, "begin", prompts=self._prompts(1, 32))
            self._answer(worker, "decode", steps=4)
            self._answer(worker, "end")
            warm = time.perf_counter() - warm
        except (workers.WorkerFailed, OSError) as error:
            self.missing[name] = " ".join(str(error).split())  # some engines' errors have many lines
            say(name, "cannot be measured:", error)
            worker.close()
            return
        except BaseException:  # the run is being ended: nobody else knows this process yet
            worker.close()
            raise
        if kind.engine == "aloft" and kind.form == "aloft":
            each = stored_layer_bytes(path) / self.shape().layer_weights
            self.layer_bytes[session.model, kind.precision] = each
        self._note(kind, "engine_imports", imports, "s")
        self._note(kind, "engine_start", rest, "s")
        self._note(kind, "engine_first_use", warm, "s")
        if keep:
            stack.enter_context(worker)
            self.workers[kind] = worker
        else:
            worker.close()

    def _probe(self, kind: Kind, worker: workers.Worker, path: str) -> None:
        """Whether the engine survives two tokens at once, tried in a process that may die of it."""
        name = f"{kind.engine} {kind.precision}"
        with workers.Worker(kind, self.logs / f"probe-{kind.engine}-{kind.precision}.log") as probe:
            try:
                probe.ask("import_engine")
                probe.ask("extra", what="whole_batches")
                probe.ask("load", model=path, precision=kind.precision, max_batch=1, max_length=64, threads=1)
                probe.ask("begin", prompts=[[101, 102]])
            except workers.WorkerFailed as error:
                say(name, "takes one token at a time:", error)
                self.missing[f"{name}, more than one token at once"] = f"{error}; measured at batch 1 only"
                self._alone.add(kind)
                return
        worker.ask("extra", what="whole_batches")

    def _file(self, kind: Kind) -> Path:
        if kind.form == "folder":
            return models.folder(self.session.model)
        if kind.form == "aloft":
            return models.aloft_quantized(self.session.model, kind.precision.removesuffix(HEAD8))
        if kind.precision in models.GGUF_PLAIN:
            return models.gguf(self.session.model, kind.precision)
        return models.quantized(self.session.model, kind.precision.removesuffix(REPACKED), workers.quantize)

    def _prompts(self, batch: int, length: int) -> list[list[int]]:
        most = models.VOCABULARY[self.session.model] - 1000  # special tokens lie at both ends
        return [[self._random.randrange(100, most) for _ in range(length)] for _ in range(batch)]

    def _note(self, kind: Kind, figure: str, value: float, unit: str, batch: int = 0, prompt: int = 0) -> None:
        self.samples.add(self.session, kind, figure, batch, prompt, unit, value)

    def _answer(self, worker: workers.Worker, call: str, **arguments: Any) -> dict[str, Any]:
        """What a worker answers within the time that is left."""
        return worker.ask(call, timeout=self.clock.cap(CALL_SECONDS), **arguments)

    def _ask(self, kind: Kind, call: str, use: Callable[[Kind, dict[str, Any]], None], **arguments: Any) -> None:
        """Ask one engine; one that fails is out of the session, with its reason."""
        worker = self.workers.get(kind)
        if worker is None:
            return
        try:
            use(kind, self._answer(worker, call, **arguments))
        except workers.WorkerFailed as error:
            say(kind.engine, kind.precision, "failed in", call, error)
            self.missing[f"{kind.engine} {kind.precision}"] = f"failed in {call}: {error}"
            worker.close()
            del self.workers[kind]

    def _order(self, rows: int) -> list[Kind]:
        """Who is measured with so many tokens at once in which order: another one begins each round."""
        self._turn += 1
        kinds = [k for k in self.session.kinds if k in self.workers and (rows == 1 or k not in self._alone)]
        shift = self._turn % max(1, len(kinds))
        return kinds[shift:] + kinds[:shift]

    def _agree(self) -> None:
        """The greedy continuation of one prompt, so that we know that all compute the same model."""
        found: dict[str, list[int]] = {}

        def first(kind: Kind, answer: dict[str, Any]) -> None:
            found[f"{kind.engine} {kind.precision}"] = answer["tokens"][0]

        def rest(kind: Kind, answer: dict[str, Any]) -> None:
            found[f"{kind.engine} {kind.precision}"] += answer["tokens"][0]

        for kind in list(self.workers):
            self._ask(kind, "begin", first, prompts=[_SENTENCE])
            self._ask(kind, "decode", rest, steps=AGREE_TOKENS - 1)
            self._ask(kind, "end", _nothing)
        names = list(found)
        base = found[names[0]] if names else []
        for name, tokens in found.items():
            same = next((i for i, (a, b) in enumerate(zip(base, tokens, strict=False)) if a != b), len(base))
            self.agreement[name] = {"equal_to": names[0], "leading_tokens_equal": same, "of": len(base)}

    def _arithmetic(self, number: int) -> bool:
        """Whether a round samples the arithmetic peaks too: the first and the last. They take 1.5 s, too long for every
        round, and change with the machine's other load, so that those of one moment would not do for a whole figure.
        """
        return number in (0, self.session.rounds - 1)

    def _prefill(self, length: int) -> None:
        say(self.session.model, self.session.precision, f"prefill {length}")

        def note(kind: Kind, answer: dict[str, Any]) -> None:
            self._note(kind, "prefill", length / answer["seconds"], "tok/s", 1, length)

        for number in range(self.session.rounds):
            # Prompts of a turn are the same for every engine, and no two of them alike: nothing is in a prefix cache.
            prompts = [self._prompts(1, length) for _ in range(WARM_PREFILLS + PREFILL_SAMPLES)]
            if number and self.clock.over:
                break  # the report says how many samples there are
            self.roof.sample(arithmetic=self._arithmetic(number))
            for kind in self._order(length):
                self._renew()
                for place, prompt in enumerate(prompts):
                    self._ask(kind, "begin", _nothing if place < WARM_PREFILLS else note, prompts=prompt)
                    self._ask(kind, "end", _nothing)

    def _decode(self, case: Decode) -> None:
        say(self.session.model, self.session.precision, f"decode {case.batch} after {case.prompt}")
        prompts = self._prompts(case.batch, case.prompt)

        def note(kind: Kind, answer: dict[str, Any]) -> None:
            each = answer["seconds"] / case.steps
            self._note(kind, "decode", case.batch / each, "tok/s", case.batch, case.prompt)
            self._note(kind, "decode_step", 1e3 * each, "ms", case.batch, case.prompt)

        def whole(kind: Kind, answer: dict[str, Any]) -> None:
            if case.batch > 1:
                rate = case.batch * case.prompt / answer["seconds"]
                self._note(kind, "prefill_batch", rate, "tok/s", case.batch, case.prompt)

        # As many sequences, but short ones: some engines take half a minute for the long.
        warm_up = self._prompts(case.batch, min(case.prompt, WARM_BATCH_LENGTH))
        for kind in self._order(case.batch):
            self._renew()
            self._ask(kind, "begin", _nothing, prompts=warm_up)
            self._ask(kind, "end", _nothing)
            self._ask(kind, "begin", whole, prompts=prompts)
            self._ask(kind, "decode", _nothing, steps=4)
        for number in range(self.session.rounds):
            if number and self.clock.over:
                break
            self._renew()
            self.roof.sample(arithmetic=not self.roof.fma or (number > 0 and self._arithmetic(number)))
            for kind in self._order(case.batch):
                self._renew()
                self._ask(kind, "decode", _nothing, steps=WARM_STEPS)  # another engine's weights are in the caches
                self._ask(kind, "decode", note, steps=case.steps)
        for kind in list(self.workers):
            self._ask(kind, "end", _nothing)

    def shape(self) -> Shape:
        """Dimensions of the model."""
        return Shape.of(models.folder(self.session.model))


def _nothing(kind: Kind, answer: dict[str, Any]) -> None:
    """For answers nobody needs."""
