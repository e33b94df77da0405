"""What the machine allows: read bandwidth and arithmetic peaks (programs in roofline/), and the time they leave a step.

A step cannot be faster than reading its bytes (every weight once, the tied embedding counted once, as the output
matrix; keys and values of the context) nor than its multiply-adds at the peak rate of the unit they run on: float32
FMA, or what the processor has for bf16 (AVX512-BF16, AMX) and for int8 with exact sums (VNNI, AMX).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines import HEAD8

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "build" / "roofline"
#: of each arithmetic peak; about ten are measured, so that a sample of all takes 1.5 s
ARITHMETIC_SECONDS = 0.15
#: the fastest first
UNITS = {
    "fma": ("fma_fp32_avx512", "fma_fp32_avx2"),
    "bf16": ("bf16_amx", "bf16_avx512", "fma_fp32_avx512", "fma_fp32_avx2"),
    "int8": ("int8_exact_amx", "int8_exact_vnni", "int8_exact_avx2"),
}


def build() -> None:
    """Compile the programs."""
    subprocess.run(["make", "-s", "-C", str(HERE / "roofline"), f"OUT={PROGRAMS}"], check=True)


class Roofline:
    """Samples of the machine's limits, taken between the engines' turns."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self.samples: dict[tuple[str, str], list[float]] = {}

    def sample(self, *, arithmetic: bool = False, seconds: float = 0.3) -> None:
        """Measure the bandwidth, and the arithmetic peaks too where asked."""
        threads = str(self._threads)
        self._run("bandwidth", threads, "512", str(seconds))
        if arithmetic:
            for program in ("fma", "int8", "products"):
                self._run(program, threads, str(ARITHMETIC_SECONDS))

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            [str(PROGRAMS / command[0]), *command[1:]], stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            print(f"roofline: {command[0]} ended with status {done.returncode}", file=sys.stderr)
        for line in done.stdout.splitlines():
            found = json.loads(line)
            self.samples.setdefault((found["figure"], found["unit"]), []).append(found["value"])

    def best(self, figure: str) -> float:
        """The median of a figure, in its unit; 0 where it was not measured."""
        return next((statistics.median(v) for (name, _), v in self.samples.items() if name == figure), 0.0)

    @property
    def bandwidth(self) -> float:
        """Bytes per second: the better of ordinary and huge pages."""
        return 1e9 * max(self.best("read_bandwidth"), self.best("read_bandwidth_huge"))

    @property
    def fma(self) -> float:
        """Floating-point operations per second of float32 FMA at the widest vectors."""
        return 1e9 * max(self.best("fma_fp32_avx2"), self.best("fma_fp32_avx512"))

    def peak(self, kind: str) -> float:
        """Operations per second of a kind of UNITS, on the fastest unit that was measured."""
        return 1e9 * max((self.best(name) for name in UNITS[kind]), default=0.0)


def bf16_bytes() -> float:
    """Bytes that aloft reads for a bfloat16 weight: three quarters of two where it keeps them compact."""
    return 1.5 if " avx512bw " in Path("/proc/cpuinfo").read_text() else 2.0


@dataclass(frozen=True)
class Cost:
    """What a form of the weights costs. layer, head: bytes of a weight of the layers, and of the output matrix."""

    layer: float = field(default_factory=bf16_bytes)
    head: float = field(default_factory=bf16_bytes)
    cache: int = 2  # bytes of a key's or value's element
    unit: str = "bf16"  # of the layers' products; see UNITS
    other: str = "bf16"  # of attention and the output matrix

    @staticmethod
    def of(weights: str, layer: float | None = None) -> Cost:
        """Of an aloft engine's weights, such as `w8a8-dynamic-head8`; `layer` as measured in the checkpoint."""
        if weights == "fp32":
            return Cost(4.0, 4.0, 4, "fma", "fma")
        base = weights.removesuffix(HEAD8)
        each = {"w8": 1.0, "w4": 0.5}.get(base[:2], bf16_bytes())
        unit = "int8" if base[2:4] == "a8" else "bf16"
        return Cost(each if layer is None else layer, 1.0 if base != weights else bf16_bytes(), unit=unit)


@dataclass(frozen=True)
class Least:
    """Seconds a step cannot go below. what: "memory", or the kind of unit that is the limit."""

    seconds: float = 0.0
    what: str = ""
    reading: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)


def stored_layer_bytes(folder: Path) -> float:
    """Bytes of the layers' tensors in a checkpoint folder."""
    total = 0
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        for name, entry in header.items():
            if ".layers." in name:
                total += entry["data_offsets"][1] - entry["data_offsets"][0]
    return float(total)


@dataclass(frozen=True)
class Shape:
    """A decoder's dimensions, as far as its cost goes."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @staticmethod
    def of(folder: Path) -> Shape:
        """The shape of a Hugging Face folder."""
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        more = ("num_key_value_heads", "head_dim", "vocab_size")
        return Shape(*(int(config[name]) for name in names + more))

    @property
    def layer_weights(self) -> int:
        """Weights of the layers' matrices."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def output_weights(self) -> int:
        """Weights of the output matrix."""
        return self.hidden * self.vocabulary

    def cache_bytes(self, value: int) -> int:
        """Bytes of the keys and values of one token, `value` bytes each."""
        return self.layers * 2 * self.kv_heads * self.head_dim * value

    def decode_bound(self, cost: Cost, batch: int, context: int, roof: Roofline) -> Least:
        """Of a decode step of `batch` sequences with `context` tokens each."""
        cache = batch * context * self.cache_bytes(cost.cache)
        attention = 4 * batch * context * self.layers * self.heads * self.head_dim
        return self._bound(cost, cache, batch, 2 * self.output_weights * batch + attention, roof)

    def prefill_bound(self, cost: Cost, tokens: int, roof: Roofline) -> Least:
        """Of one prompt of `tokens`; only its last token needs the output matrix."""
        attention = 2 * tokens * tokens * self.layers * self.heads * self.head_dim  # the causal half
        return self._bound(cost, 0, tokens, 2 * self.output_weights + attention, roof)

    def _bound(self, cost: Cost, cache: int, rows: int, other: float, roof: Roofline) -> Least:
        work = {cost.unit: 2.0 * self.layer_weights * rows}
        work[cost.other] = work.get(cost.other, 0.0) + other
        peaks = {kind: roof.peak(kind) for kind in work}
        if not roof.bandwidth or not all(peaks.values()):
            return Least()
        reading = (self.layer_weights * cost.layer + self.output_weights * cost.head + cache) / roof.bandwidth
        parts = {kind: operations / peaks[kind] for kind, operations in work.items()}
        computing = sum(parts.values())
        what = "memory" if reading >= computing else max(parts, key=lambda kind: parts[kind])
        return Least(max(reading, computing), what, reading, parts)
