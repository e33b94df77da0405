"""AloftConfig: what ``--additional-config`` means, parsed once into a frozen dataclass.

Three classes of keys: known (fields of ``AloftConfig``); known from vllm-ascend but without effect (a warning says
why); unknown (``ValueError`` naming the nearest valid key).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aloft.config_keys import WITHOUT_EFFECT

logger = logging.getLogger("vllm.aloft.config")


@dataclass(frozen=True, kw_only=True, slots=True)
class AloftConfig:
    """Settings of aloft beyond vLLM's own flags.

    weight_nz_mode: which weights are packed into FRACTAL_NZ after loading: 0 none, 1 quantized ones, 2 all (default).
    num_threads: host threads one engine may use for its kernels; 0 (default) shares the machine's cores between the
        engines that live on it.
    kv_cache_tokens: upper limit of the KV cache in tokens; 0 (default) takes what the requests can use
        (``max_num_seqs`` x ``max_model_len``) within the memory budget.
    graph_attention: how a captured decode step learns its sequence lengths: ``device`` (the operator reads them),
        ``host`` (each layer's call is updated before a replay), ``auto`` (default): ``device`` where the runtime can.
    pipeline_depth: steps in flight. 1: a step's outputs are processed before the next is prepared; 2: the next step is
        prepared, and the last one's outputs processed, while a step computes (vLLM's asynchronous scheduling); 0
        (default): 2 where ``--async-scheduling`` asks for it, or where the device computes beside the host's threads
        and vLLM has not ruled it out, else 1.
    fusion_level: how much of a decoder layer one operator does: ``none``, ``partial``, ``full``, ``blocked``; ``auto``
        (default) chooses by the tokens of a step. See ``aloft.models.level``.
    kv_fp8_window: with ``--kv-cache-dtype fp8``, the tokens in front of a token, its own included, whose keys and
        values it reads in full width; older ones are 8-bit floats. 0: all are.
    lm_head: ``auto`` (default) multiplies with the head's weights as they are loaded, ``int8`` rounds an unquantized
        head to 8 bits with a scale a row, and its inputs token by token.
    compact_weights: keep bfloat16 weights in FRACTAL_NZ without loss in three quarters of their bytes where the
        runtime can (the virtual NPU on processors with AVX-512): the same results, less to read.
    run_ahead: begin the next decode step, beside the host's thread, before the engine asks for it, where the runtime
        can (the virtual NPU with inline streams). The same results.
    """

    weight_nz_mode: int = 2
    num_threads: int = 0
    kv_cache_tokens: int = 0
    graph_attention: str = "auto"
    pipeline_depth: int = 0
    fusion_level: str = "auto"
    kv_fp8_window: int = 128
    lm_head: str = "auto"
    compact_weights: bool = True
    run_ahead: bool = True

    def __post_init__(self) -> None:
        if self.weight_nz_mode not in (0, 1, 2):
            raise ValueError(f"additional_config weight_nz_mode must be 0, 1 or 2, not {self.weight_nz_mode!r}")
        if self.graph_attention not in ("auto", "device", "host"):
            raise ValueError(
                f"additional_config graph_attention must be auto, device or host, not {self.graph_attention!r}"
            )
        if self.fusion_level not in ("auto", "full", "partial", "blocked", "none"):
            raise ValueError(
                "additional_config fusion_level must be auto, full, partial, blocked or none, "
                f"not {self.fusion_level!r}"
            )
        if self.lm_head not in ("auto", "int8"):
            raise ValueError(f"additional_config lm_head must be auto or int8, not {self.lm_head!r}")
        if self.pipeline_depth not in (0, 1, 2):
            raise ValueError(
                "additional_config pipeline_depth must be 1, 2 or 0 (automatic; vLLM keeps at most 2 steps in flight, "
                f"which overlaps all three stages: prepare, compute, output), not {self.pipeline_depth!r}"
            )
        for name in ("num_threads", "kv_cache_tokens", "kv_fp8_window"):
            if getattr(self, name) < 0:
                raise ValueError(f"additional_config {name} must be 0 or more, not {getattr(self, name)!r}")


_TYPES = typing.get_type_hints(AloftConfig)
KNOWN = frozenset(field.name for field in dataclasses.fields(AloftConfig))


def parse(additional_config: Mapping[str, Any] | None) -> AloftConfig:
    """The AloftConfig of an ``--additional-config`` mapping.

    Raises:
        ValueError: unknown key (the nearest valid one is named), wrong type, or value out of range.
    """
    values: dict[str, Any] = {}
    for key, value in (additional_config or {}).items():
        if key in KNOWN:
            values[key] = _checked(key, value)
        elif key in WITHOUT_EFFECT:
            _warn_once(key)
        else:
            raise ValueError(_unknown(key))
    return AloftConfig(**values)


def of(vllm_config: Any) -> AloftConfig:
    """The AloftConfig of a ``VllmConfig``; the defaults for None, and where its ``additional_config`` is no mapping.

    Raises:
        ValueError: as ``parse``.
    """
    additional = vllm_config.additional_config if vllm_config is not None else None
    return parse(additional if isinstance(additional, Mapping) else None)


@functools.cache
def _warn_once(key: str) -> None:
    logger.warning("additional_config key %r has no effect with aloft: %s", key, WITHOUT_EFFECT[key])


def _checked(key: str, value: Any) -> Any:
    want = _TYPES[key]
    if not isinstance(value, want) or (want is int and isinstance(value, bool)):
        raise ValueError(f"additional_config {key} must be of type {want.__name__}, not {value!r}")
    return value


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(str(key), [*KNOWN, *WITHOUT_EFFECT], n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(sorted(KNOWN))}"
    return f"additional_config key {key!r} is unknown; {hint}"
