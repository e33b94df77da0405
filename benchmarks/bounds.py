"""What the machine allows: read bandwidth and arithmetic peaks (programs in roofline/), and the time they leave a step.

A step cannot be faster than reading its bytes (every weight once, the tied embedding counted once, as the output
matrix; keys and values of the context) nor than its multiply-adds at the peak rate of float32 FMA. Products on bf16 or
int8 units (AVX512-BF16, VNNI, AMX) have higher peaks, measured beside it: with them a share may exceed one.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "build" / "roofline"
WEIGHT_BYTES = {"16-bit": 2.0, "fp32": 4.0, "8-bit": 34 / 32, "4-bit": 18 / 32}  # scales of blocks of 32 included


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
            self._run("fma", threads, str(seconds))
            self._run("int8", threads, str(seconds))
            self._run("products", threads, str(seconds))

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

    def decode_bound(self, precision: str, batch: int, context: int, roof: Roofline) -> float:
        """Seconds of a decode step of `batch` sequences with `context` tokens each."""
        weights = self.layer_weights + self.output_weights
        cache = batch * context * self.cache_bytes(4 if precision == "fp32" else 2)
        attention = 4 * batch * context * self.layers * self.heads * self.head_dim
        return self._bound(weights * WEIGHT_BYTES[precision] + cache, 2 * weights * batch + attention, roof)

    def prefill_bound(self, precision: str, tokens: int, roof: Roofline) -> float:
        """Seconds of one prompt of `tokens`; only its last token needs the output matrix."""
        attention = 2 * tokens * tokens * self.layers * self.heads * self.head_dim  # the causal half
        work = 2 * self.layer_weights * tokens + 2 * self.output_weights + attention
        return self._bound((self.layer_weights + self.output_weights) * WEIGHT_BYTES[precision], work, roof)

    def _bound(self, read: float, operations: float, roof: Roofline) -> float:
        if not roof.bandwidth or not roof.fma:
            return 0.0
        return max(read / roof.bandwidth, operations / roof.fma)
