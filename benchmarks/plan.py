"""What one run measures: the whole of it, or as much as fits into six minutes (`--quick`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from engines import CLASSES, Kind
from words import what

# What an engine does first in its turn, uncounted. It was stopped while others ran: their weights fill the caches, and
# its own pages have left the address-translation tables. Under nested paging each may take 20 us when it is touched
# after three seconds, 100 ms of aloft's first prefill.
WARM_STEPS = 2  # of decoding, before each sample
WARM_PREFILLS = 2  # of the same length, of other tokens; behind the first, pages still come back for 10 ms of aloft's
WARM_BATCH_LENGTH = 32  # tokens of each sequence, before a batch is taken in
PREFILL_SAMPLES = 2  # of each turn

QUICK_SECONDS = 360.0  # promised
WRITING_SECONDS = 10.0  # of these, for what comes after the last figure
LEFT_OUT = "left out of this run"  # begins every reason that another run need not share
# What every session would have if there were time and memory for it.
PREFILL_LENGTHS = (128, 512, 2048)
DECODE_CASES = ((1, 32), (8, 32), (32, 32), (1, 1024), (8, 1024), (32, 1024), (1, 4096))  # batch, prompt
TOO_MANY = "not in the plan of this class: all figures of all classes would take many hours"


@dataclass(frozen=True)
class Decode:
    """Decoding `batch` sequences after prompts of one length; `steps` steps are one sample."""

    batch: int
    prompt: int
    steps: int

    @property
    def name(self) -> str:
        """As reports name it."""
        return what({"figure": "decode", "batch": self.batch, "prompt": self.prompt})


def _prefill_name(length: int) -> str:
    return what({"figure": "prefill", "batch": 1, "prompt": length})


@dataclass(frozen=True)
class Session:
    """One model in one precision class: its engines are alive together and are measured in turn."""

    model: str
    precision: str  # a key of CLASSES
    prefill: tuple[int, ...]
    decode: tuple[Decode, ...]
    rounds: int = 5
    starts: int = 1  # how often each engine is started
    kinds: tuple[Kind, ...] = ()
    fewer: str = TOO_MANY  # why it has not every figure
    dropped: tuple[str, ...] = ()  # figures that the plan has and nobody asked for

    @property
    def title(self) -> str:
        """As reports name it."""
        return f"{self.model} {self.precision}"

    @property
    def figures(self) -> list[str]:
        """What it measures."""
        return [_prefill_name(length) for length in self.prefill] + [case.name for case in self.decode]

    @property
    def not_measured(self) -> dict[str, str]:
        """Figures of the whole report that it has not, with the reason."""
        every = [_prefill_name(length) for length in PREFILL_LENGTHS]
        every += [Decode(batch, prompt, 0).name for batch, prompt in DECODE_CASES]
        asked = f"{LEFT_OUT} (--figures)"
        return {
            name: asked if name in self.dropped else self.fewer
            for name in dict.fromkeys([*every, *self.dropped])
            if name not in self.figures
        }

    @property
    def left_out(self) -> list[str]:
        """Engines of the precision class that this session does not start."""
        return [kind.name for kind in CLASSES[self.precision] if kind not in self.kinds]

    @property
    def max_batch(self) -> int:
        """The widest batch."""
        return max((case.batch for case in self.decode), default=1)

    @property
    def max_length(self) -> int:
        """The longest sequence: prompt, warming up, and all rounds."""
        longest = [case.prompt + (self.rounds + 1) * (case.steps + WARM_STEPS) + 8 for case in self.decode]
        return max([*longest, *(length + 8 for length in self.prefill)])


@dataclass
class Plan:
    """All sessions and the measurements that are not of engines side by side."""

    sessions: list[Session] = field(default_factory=list)
    import_repeats: int = 3
    route_repeats: int = 5
    step_repeats: int = 3
    rates: tuple[float, ...] = (1.0, 4.0, 8.0, float("inf"))  # requests per second of the online part
    online_requests: int = 64
    first_token_repeats: int = 9
    servers: tuple[str, ...] = ("aloft", "vllm_cpu", "llama_cpp")
    limit: float | None = None  # seconds for all of it


def _decode(batches: tuple[int, ...], prompt: int) -> tuple[Decode, ...]:
    return tuple(Decode(batch, prompt, {1: 24, 8: 12}.get(batch, 8)) for batch in batches)


def full() -> Plan:
    """Everything the report names."""
    everything = _decode((1, 8, 32), 32) + _decode((1, 8, 32), 1024) + _decode((1,), 4096)
    narrow = _decode((1, 8, 32), 32) + _decode((1, 8), 1024) + _decode((1,), 4096)
    wide = "the keys and values of 32 sequences of 1,024 tokens of this shape would take 4 GB in each of six engines"
    short = _decode((1, 8, 32), 32)
    smol, qwen, llama = "SmolLM2-135M", "Qwen3-0.6B-shape", "Llama-1B-shape"
    sessions = [
        Session(smol, "16-bit", (128, 512, 2048), everything, starts=3),
        Session(smol, "fp32", (512,), short + _decode((1,), 1024)),
        Session(smol, "8-bit", (128, 512, 2048), short + _decode((1,), 1024)),
        Session(smol, "4-bit", (128, 512, 2048), short + _decode((1,), 1024)),
        Session(qwen, "16-bit", (128, 512, 2048), narrow, rounds=3, fewer=wide),
        Session(qwen, "8-bit", (512,), short, rounds=3),
        Session(qwen, "4-bit", (512,), short, rounds=3),
        Session(llama, "8-bit", (512,), short, rounds=3),
        Session(llama, "4-bit", (512,), short, rounds=3),
    ]
    return Plan([_with_kinds(session, CLASSES[session.precision]) for session in sessions])


def quick() -> Plan:
    """The figures that move most, against the peers that are quick to start."""
    fewer = f"{LEFT_OUT} (--quick)"
    smol = Session("SmolLM2-135M", "16-bit", (512,), _decode((1, 8, 32), 32), rounds=3, fewer=fewer)
    kinds = tuple(kind for kind in CLASSES["16-bit"] if kind.quick)
    limit = QUICK_SECONDS - WRITING_SECONDS
    return Plan([_with_kinds(smol, kinds)], 1, 1, 1, (4.0, float("inf")), 16, 3, ("aloft", "llama_cpp"), limit)


def _with_kinds(session: Session, kinds: tuple[Kind, ...]) -> Session:
    return replace(session, kinds=kinds)
