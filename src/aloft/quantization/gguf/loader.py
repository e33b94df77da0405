"""Reads the tensors of a GGUF file for vLLM: quantized layers as codes, scales and offsets, all else as floats."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import torch
from torch import nn
from vllm.config import ModelConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

from aloft.quantization import gguf
from aloft.quantization.gguf import blocks
from aloft.quantization.gguf.index import Index, read
from aloft.quantization.gguf.names import FREQUENCIES, PERMUTED, checkpoint_name, head_kind, unpermute

LOAD_FORMAT = "gguf"


class GgufLoader(DefaultModelLoader):
    """vLLM's loader with another source of tensors; one tensor is in memory at a time."""

    def download_model(self, model_config: ModelConfig) -> None:
        """The file is here, or the engine would not have got so far."""

    def get_all_weights(
        self, model_config: ModelConfig, model: nn.Module
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        file = gguf.find(model_config.model)
        if file is None:
            raise ValueError(
                f"--load-format {LOAD_FORMAT} needs a folder with one GGUF file, not {model_config.model}."
            )
        self.counter_before_loading_weights = time.perf_counter()
        yield from tensors(read(file), model_config.hf_text_config)


def tensors(index: Index, config: Any) -> Generator[tuple[str, torch.Tensor], None, None]:
    """Names and tensors as the checkpoint's storage expects them.

    config: num_attention_heads and num_key_value_heads of the model.
    """
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, entry in index.tensors.items():
        if name == FREQUENCIES:
            continue
        target = checkpoint_name(name)
        kind = head_kind(name) if index.architecture in PERMUTED else ""
        if blocks.keeps_codes(name, entry.kind):
            layer = target.removesuffix("weight")
            parts = blocks.split(index.bytes(name), entry.kind)
            for part, values in zip(("weight", "weight_scale", "weight_offset"), parts, strict=True):
                yield layer + part, unpermute(values, heads[kind]) if kind else values
            continue
        values = blocks.floats(index.bytes(name), entry.kind, entry.shape)
        yield target, unpermute(values, heads[kind]) if kind else values
