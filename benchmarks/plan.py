"""What one run measures: the whole of it, or as much as fits into six minutes (`--quick`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from engines import CLASSES, Kind

# What an engine does first in its turn, uncounted. It was stopped while others ran: their weights fill the caches, and
# its own pages have left the address-translation tables. Under nested paging each may take 20 us when it is touched
# after three seconds, 100 ms of aloft's first prefill.
WARM_STEPS = 2  # of decoding, before each sample
WARM_PREFILLS = 2  # of the same length, of other tokens; behind the first, pages still come back for 10 ms of aloft's
WARM_BATCH_LENGTH = 32  # tokens of each sequence, before a batch is taken in
PREFILL_SAMPLES = 2  # of each turn


@dataclass(frozen=True)
class Decode:
    """Decoding `batch` sequences after prompts of one length; `steps` steps are one sample."""

    batch: int
    prompt: int
    steps: int


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


def _decode(batches: tuple[int, ...], prompt: int) -> tuple[Decode, ...]:
    return tuple(Decode(batch, prompt, {1: 24, 8: 12}.get(batch, 8)) for batch in batches)


def full() -> Plan:
    """Everything the report names."""
    everything = _decode((1, 8, 32), 32) + _decode((1, 8, 32), 1024) + _decode((1,), 4096)
    # of this shape the keys and values of 32 sequences of 1,024 tokens would take 4 GB in each of six engines
    narrow = _decode((1, 8, 32), 32) + _decode((1, 8), 1024) + _decode((1,), 4096)
    short = _decode((1, 8, 32), 32)
    smol, qwen, llama = "SmolLM2-135M", "Qwen3-0.6B-shape", "Llama-1B-shape"
    sessions = [
        Session(smol, "16-bit", (128, 512, 2048), everything, starts=3),
        Session(smol, "fp32", (512,), short + _decode((1,), 1024)),
        Session(smol, "8-bit", (128, 512, 2048), short + _decode((1,), 1024)),
        Session(smol, "4-bit", (128, 512, 2048), short + _decode((1,), 1024)),
        Session(qwen, "16-bit", (128, 512, 2048), narrow, rounds=3),
        Session(qwen, "8-bit", (512,), short, rounds=3),
        Session(qwen, "4-bit", (512,), short, rounds=3),
        Session(llama, "8-bit", (512,), short, rounds=3),
        Session(llama, "4-bit", (512,), short, rounds=3),
    ]
    return Plan([_with_kinds(session, CLASSES[session.precision]) for session in sessions])


def quick() -> Plan:
    """The figures that move most, against the peers that are quick to start."""
    smol = Session("SmolLM2-135M", "16-bit", (512,), _decode((1, 8, 32), 32), rounds=3)
    kinds = tuple(kind for kind in CLASSES["16-bit"] if kind.quick)
    return Plan([_with_kinds(smol, kinds)], 1, 1, 1, (4.0, float("inf")), 16, 3, ("aloft", "llama_cpp"))


def _with_kinds(session: Session, kinds: tuple[Kind, ...]) -> Session:
    return replace(session, kinds=kinds)
