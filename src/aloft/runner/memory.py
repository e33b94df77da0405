"""How much of the device the KV cache gets, and one sentence when that is not enough."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch_npu import npu
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheSpec

from aloft.attention import fp8
from aloft.errors import NotEnoughMemory
from aloft.runtime.capability import memory_is_host_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.config import ModelConfig, VllmConfig

logger = init_logger("vllm.aloft.memory")

_PROFILE_TOKENS = (16, 64)
_GIB = float(1 << 30)
# A prefix cache fills whatever it is given. Where that is the host's own memory, stop here by default.
_DEFAULT_OF_HOST_MEMORY = 4 << 30


def gib(num_bytes: float) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"


def check_weights_fit(model: ModelConfig, device: torch.device) -> None:
    """Raises NotEnoughMemory if the weight files of a local model are larger than the free device memory."""
    needed = weight_bytes(model)
    free, _ = npu.mem_get_info(device)
    if needed > free:
        raise NotEnoughMemory(
            f"The weights of {model.model} need {gib(needed)}, but {device} has {gib(free)} free; "
            "use a smaller model or a narrower --dtype, or free device memory (virtual NPU: raise ALOFT_HBM_GIB)."
        )


def weight_bytes(model: ModelConfig) -> int:
    """Bytes the weights of a local model take in the model's dtype; 0 if unknown (not local, or another format)."""
    folder = Path(model.model)
    files = list(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not files:
        return 0
    elements = sum(map(_elements, files))
    return elements * torch.empty(0, dtype=cast(torch.dtype, model.dtype)).element_size()


def _elements(file: Path) -> int:
    """Numbers in a safetensors file.

    Raises:
        ValueError: the file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(file), framework="np") as opened:
            # keys(): not a dict
            return sum(math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{file} is damaged ({error}): get the model's weights again.") from error


def kv_bytes_per_sequence(specs: dict[str, KVCacheSpec], vllm_config: VllmConfig) -> int:
    """Bytes the KV cache of one sequence of ``max_model_len`` tokens takes."""
    return sum(spec.max_memory_usage_bytes(vllm_config) for spec in specs.values())


def bytes_per_block(specs: dict[str, KVCacheSpec]) -> int:
    """Bytes of one block of vLLM's pool. Layers with blocks of different kinds (a window, another size) take blocks in
    turn: as many layers at a time as the smaller kind has, or all where that is not much more."""
    kinds: dict[tuple[object, ...], int] = {}
    for spec in specs.values():
        kind = (type(spec), spec.block_size, getattr(spec, "sliding_window", None))
        kinds[kind] = kinds.get(kind, 0) + spec.page_size_bytes
    least, most = (choose(kinds.values(), default=0) for choose in (min, max))
    return most if most < 1.5 * least else least


def available_for_kv(
    vllm_config: VllmConfig,
    specs: dict[str, KVCacheSpec],
    device: torch.device,
    profile: Callable[[int], None],
    max_tokens_wanted: int,
) -> int:
    """Bytes for the KV cache: within the memory budget, no more than the requests can use, a sane part of the host.

    profile: runs the model over a number of tokens. max_tokens_wanted: a limit of the user's; 0 for none.

    Raises:
        NotEnoughMemory: the budget, or a limit of the user's, does not hold one sequence of ``max_model_len`` tokens.
    """
    cache = vllm_config.cache_config
    free, total = npu.mem_get_info(device)
    one = kv_bytes_per_sequence(specs, vllm_config)
    page = bytes_per_block(specs)
    needed = one + page  # and the null block
    if cache.num_gpu_blocks_override is not None:
        count = cache.num_gpu_blocks_override
        _require_one_sequence(vllm_config, count * page >= one and count > 0, f"--num-gpu-blocks-override {count}")
    if cache.kv_cache_memory_bytes is not None:
        profile(_PROFILE_TOKENS[0])
        if cache.kv_cache_memory_bytes > free:
            raise NotEnoughMemory(
                f"--kv-cache-memory-bytes asks for {gib(cache.kv_cache_memory_bytes)}, "
                f"but {device} has {gib(free)} free."
            )
        if cache.num_gpu_blocks_override is None:
            enough = cache.kv_cache_memory_bytes >= one
            _require_one_sequence(vllm_config, enough, f"--kv-cache-memory-bytes {cache.kv_cache_memory_bytes}")
        return cache.kv_cache_memory_bytes
    activations = activation_bytes(vllm_config, device, profile)
    taken = total - free
    budget = int(min(total * cache.gpu_memory_utilization - taken, free) - activations)
    scheduler = vllm_config.scheduler_config
    useful = scheduler.max_num_seqs * one + page
    if max_tokens_wanted and specs:
        block = next(iter(specs.values())).block_size
        recent = {name: spec for name, spec in specs.items() if name.endswith(fp8.RECENT)}
        newest = kv_bytes_per_sequence(recent, vllm_config)  # not tokens beyond those wanted
        useful = min(useful, (-(-max_tokens_wanted // block) + 1) * page + newest)
        if cache.num_gpu_blocks_override is None:
            _require_one_sequence(vllm_config, useful >= one, f"additional_config kv_cache_tokens {max_tokens_wanted}")
    fits_itself = vllm_config.model_config.original_max_model_len == -1 or cache.num_gpu_blocks_override
    if specs and budget < needed and not fits_itself:
        raise NotEnoughMemory(
            f"The KV cache of one sequence of {vllm_config.model_config.max_model_len} tokens needs {gib(needed)}, but "
            f"{gib(max(budget, 0))} of {device}'s {gib(total)} is left for it (in use {gib(taken)}, activations "
            f"{gib(activations)}): lower --max-model-len or --max-num-batched-tokens, "
            "or raise --gpu-memory-utilization."
        )
    granted = min(budget, useful)
    if memory_is_host_memory() and not max_tokens_wanted:
        granted = min(granted, max(needed, _DEFAULT_OF_HOST_MEMORY))
    logger.info(
        "KV cache: %s of the %s left on %s (--kv-cache-memory-bytes sets another size).",
        gib(granted),
        gib(budget),
        device,
    )
    return max(granted, 0)


def _require_one_sequence(vllm_config: VllmConfig, enough: bool, asked: str) -> None:
    """Raises NotEnoughMemory if a limit the user set is not enough, unless the model length adapts to it."""
    model = vllm_config.model_config
    if not enough and model.original_max_model_len != -1:
        raise NotEnoughMemory(
            f"{asked} is too little for the KV cache of one sequence of {model.max_model_len} tokens: "
            "raise it, or lower --max-model-len."
        )


def activation_bytes(vllm_config: VllmConfig, device: torch.device, profile: Callable[[int], None]) -> int:
    """Peak memory of a full step beyond the weights: a line through two short measured steps, plus the sampler."""
    short, long = _PROFILE_TOKENS
    first, second = _peak(device, profile, short), _peak(device, profile, long)
    per_token = max(second - first, 0) / (long - short)
    scheduler = vllm_config.scheduler_config
    rows = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
    # float32 logits, probabilities, noise and a sorted copy with its int64 indices
    sampler = rows * vllm_config.model_config.get_vocab_size() * (4 * 4 + 8)
    captured = 0.0
    if sizes := vllm_config.compilation_config.cudagraph_capture_sizes:  # captured steps keep memory of their own
        largest = min(max(sizes), scheduler.max_num_seqs)
        captured = first + per_token * largest + largest * vllm_config.model_config.get_vocab_size() * 4
    return int(first + per_token * max(scheduler.max_num_batched_tokens - short, 0) + sampler + captured)


def _peak(device: torch.device, profile: Callable[[int], None], num_tokens: int) -> int:
    before = npu.memory_allocated(device)
    npu.reset_peak_memory_stats(device)
    profile(num_tokens)
    return npu.max_memory_allocated(device) - before
