"""AWQ and GPTQ: one width and group size for the whole model, int32 words along the outputs or the inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from aloft.quantization.description import LayerScheme, Storage
from aloft.quantization.formats.grouped_storage import AwqStorage, GptqStorage


class Grouped:
    """What both descriptions share: layers left out by name."""

    name = ""

    def __init__(self, bits: object, group: object, left_out: Sequence[str], head: bool) -> None:
        if bits not in (4, 8):
            raise ValueError(f"{self.name}: bits must be 4 or 8, not {bits!r}.")
        if not isinstance(group, int) or isinstance(group, bool) or (group <= 0 and group != -1):
            raise ValueError(f"{self.name}: group_size must be positive or -1, not {group!r}.")
        self.bits: int = bits  # type: ignore[assignment]
        self.group = max(group, 0)
        self.left_out = frozenset(left_out)
        self.head = head
        self.rules: tuple[re.Pattern[str], ...] = ()

    def storage(self) -> Storage:
        raise NotImplementedError

    def rename(self, mapped: Mapping[str, str]) -> None:
        """Names are matched in part, and part by part the same in vLLM."""

    def linear(self, name: str, shards: Sequence[str]) -> LayerScheme | None:
        last = name.rpartition(".")[2]
        if (last == "lm_head" and not self.head) or last == "gate":  # neither tool quantizes a router
            return None
        out = {
            shard: not self.left_out.isdisjoint(_parts(shard)) or any(rule.match(shard) for rule in self.rules)
            for shard in shards
        }
        if len(set(out.values())) > 1:
            raise ValueError(
                f"{self.name}: layer {name} is one matrix product, but its config leaves out only "
                f"{', '.join(shard for shard, is_out in out.items() if is_out)}."
            )
        if next(iter(out.values())):
            return None
        return LayerScheme("w4a16" if self.bits == 4 else "w8a16", self.storage())

    def embedding(self, name: str) -> LayerScheme | None:
        return None

    def kv_cache(self, name: str) -> LayerScheme | None:
        return None


def _parts(name: str) -> list[str]:
    """``a.b.c`` -> a, a.b, a.b.c, b, b.c, c: what the name of a layer left out may be."""
    pieces = name.split(".")
    return [".".join(pieces[i:j]) for i in range(len(pieces)) for j in range(i + 1, len(pieces) + 1)]


class Awq(Grouped):
    """``quant_method: awq``, the GEMM version: words along the outputs, nibbles interleaved."""

    name = "awq"

    def __init__(self, config: Mapping[str, Any]) -> None:
        version = str(config.get("version", "gemm")).lower()
        if version != "gemm":
            raise ValueError(f"awq: version must be gemm, not {version!r}.")
        bits = config.get("bits", config.get("w_bit"))
        group = config.get("group_size", config.get("q_group_size"))
        if bits != 4:
            raise ValueError(f"awq: bits must be 4, not {bits!r}.")
        super().__init__(bits, group, config.get("modules_to_not_convert") or (), bool(config.get("lm_head")))
        self.zero_point = bool(config.get("zero_point", True))

    def storage(self) -> Storage:
        return AwqStorage(self.group, self.zero_point)


class Gptq(Grouped):
    """``quant_method: gptq``: words along the inputs, zero points stored less one (version 2: as they are)."""

    name = "gptq"

    def __init__(self, config: Mapping[str, Any]) -> None:
        rules = config.get("dynamic") or {}
        if any(not str(rule).startswith("-:") for rule in rules):
            raise ValueError(
                "gptq: dynamic (settings that differ between layers) is supported for layers left out only."
            )
        left_out = config.get("modules_to_not_convert") or ()
        super().__init__(config.get("bits"), config.get("group_size"), left_out, bool(config.get("lm_head")))
        self.rules = tuple(re.compile(rule[2:]) for rule in rules)
        self.ordered = bool(config.get("desc_act"))
        form = str(config.get("checkpoint_format") or "gptq").lower()
        if form not in ("gptq", "gptq_v2"):
            raise ValueError(f"gptq: checkpoint_format must be gptq or gptq_v2, not {form!r}.")
        self.shift = 1 if form == "gptq" else 0
        self.symmetric = bool(config.get("sym", True))

    def storage(self) -> Storage:
        return GptqStorage(self.bits, self.group, self.symmetric, self.ordered and self.group > 0, self.shift)
