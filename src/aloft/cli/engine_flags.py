"""The flags of vLLM that `aloft profile` hands on: what its engine is told beside the model."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

from aloft import limits
from aloft.cli.errors import UserError


@dataclass(frozen=True)
class EngineFlags:
    """Values as vllm serve has them; None where a flag is left out. vLLM's EngineArgs judges them."""

    additional_config: dict[str, Any] = field(default_factory=dict)
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None

    def check(self, dtype: str) -> None:
        """Refuses what aloft has a sentence for, where vLLM's has a page.

        Raises:
            UserError: the KV cache is not kept like that beside a model of a dtype, such as "bfloat16".
        """
        refusal = None if self.kv_cache_dtype is None else limits.cache_dtype_refusal(self.kv_cache_dtype, dtype)
        if refusal is not None:
            raise UserError(refusal)

    def arguments(self) -> dict[str, Any]:
        """Arguments of vllm.LLM and of EngineArgs."""
        return {name: value for name, value in vars(self).items() if value is not None and value != {}}

    def told(self) -> str:
        """For people: `, fusion_level none, block_size 32`; nothing where all is left out."""
        plain = {**self.additional_config, **self.arguments()}
        plain.pop("additional_config", None)
        return "".join(f", {name} {value}" for name, value in plain.items())

    def without_run_ahead(self) -> EngineFlags:
        """The same with `run_ahead` off.

        Raises:
            UserError: it is asked for.
        """
        if self.additional_config.get("run_ahead"):
            raise UserError(
                "additional_config run_ahead stays off in a profile: what runs beside the host's thread is no part of "
                "its time. Leave it out."
            )
        return replace(self, additional_config={**self.additional_config, "run_ahead": False})


def quiet() -> None:
    """Around an engine in this process: nothing on the standard output but ours, nothing from the network."""
    for name, value in (
        ("VLLM_ENABLE_V1_MULTIPROCESSING", "0"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("VLLM_LOGGING_LEVEL", "ERROR"),
        ("HF_HUB_OFFLINE", "1"),
    ):
        os.environ.setdefault(name, value)
