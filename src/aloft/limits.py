"""What aloft refuses at start: every vLLM feature it does not serve yet, one sentence each, naming the flag."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from aloft.errors import UnsupportedFeature

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

PARALLEL = {
    "tensor_parallel_size": "tensor parallelism",
    "pipeline_parallel_size": "pipeline parallelism",
    "data_parallel_size": "data parallelism",
    "prefill_context_parallel_size": "prefill context parallelism",
    "decode_context_parallel_size": "decode context parallelism",
}

#: --kv-cache-dtype: 8-bit floats, see ``aloft.attention.fp8``
FP8 = ("fp8", "fp8_e4m3")


def check(vllm_config: VllmConfig) -> None:
    """Raises UnsupportedFeature for the first setting that aloft cannot serve."""
    for sentence in refusals(vllm_config):
        raise UnsupportedFeature(sentence)


def parallel_refusal(name: str, size: int) -> str:
    """Why a parallel size above 1 is refused."""
    return f"aloft does not support {PARALLEL[name]} yet: --{name.replace('_', '-')} must be 1, not {size}."


def refusals(config: VllmConfig) -> Iterator[str]:
    """One sentence for every unsupported setting of a vLLM configuration."""
    parallel = config.parallel_config
    for name in PARALLEL:
        size = getattr(parallel, name, 1)
        if size > 1:
            yield parallel_refusal(name, size)
    for name in ("enable_expert_parallel", "enable_eplb", "enable_dbo", "enable_elastic_ep"):
        if getattr(parallel, name, False):
            yield f"aloft does not support --{name.replace('_', '-')} yet."
    if config.lora_config is not None:
        yield "aloft does not support LoRA yet: remove --enable-lora."
    if config.speculative_config is not None:
        yield "aloft does not support speculative decoding yet: remove --speculative-config."
    if config.kv_transfer_config is not None:
        yield "aloft does not support KV transfer yet: remove --kv-transfer-config."
    if getattr(config, "ec_transfer_config", None) is not None:
        yield "aloft does not support encoder-cache transfer yet: remove --ec-transfer-config."
    if getattr(config, "watermark_config", None) is not None:
        yield "aloft does not support watermarking yet: remove --watermark-config."
    if getattr(getattr(config, "aux_output_config", None), "enable_return_routed_experts", False):
        yield "aloft does not return the experts of a token yet: remove --enable-return-routed-experts."
    if config.weight_transfer_config is not None:
        yield "aloft does not support weight transfer yet: remove --weight-transfer-config."
    if config.profiler_config.profiler is not None:
        yield "aloft does not support vLLM's profiler yet: remove --profiler-config."
    if config.offload_config.uva.cpu_offload_gb:
        yield "aloft does not support weights in host memory yet: remove --cpu-offload-gb."
    if config.offload_config.prefetch.offload_group_size:
        yield "aloft does not support weights in host memory yet: remove --offload-group-size."
    if config.cache_config.kv_offloading_size is not None:
        yield "aloft does not support a KV cache in host memory yet: remove --kv-offloading-size."
    if config.model_config is not None:
        yield from _cache_dtype_refusals(config, config.model_config)
        yield from _model_refusals(config.model_config)


def cache_dtype_refusal(name: str, model_dtype: str) -> str | None:
    """Why a --kv-cache-dtype is refused for a model of a dtype (``torch.bfloat16``); None where it is not."""
    own = model_dtype.removeprefix("torch.")
    valid = ["auto", *([own] if own != "float32" else []), *FP8]
    if name in valid:
        return None
    return (
        "aloft keeps the KV cache in the model's dtype or as 8-bit floats (e4m3): --kv-cache-dtype must be "
        f"{', '.join(valid[:-1])} or {valid[-1]}, not {name}."
    )


def _cache_dtype_refusals(config: VllmConfig, model: ModelConfig) -> Iterator[str]:
    cache = config.cache_config
    refusal = cache_dtype_refusal(cache.cache_dtype, str(model.dtype))
    if refusal is not None:
        yield refusal
    if cache.cache_dtype not in FP8:
        return
    if cache.kv_cache_dtype_skip_layers:
        yield "aloft keeps every layer's keys and values as 8-bit floats or none: remove --kv-cache-dtype-skip-layers."
    if config.scheduler_config.disable_hybrid_kv_cache_manager:
        yield (
            f"--kv-cache-dtype {cache.cache_dtype} keeps the newest tokens in blocks of their own: "
            "remove --disable-hybrid-kv-cache-manager."
        )


def _sleep_refusals(model: ModelConfig) -> Iterator[str]:
    if model.sleep_mode_backend != "cumem":
        yield f"aloft has a sleep mode of its own: remove --sleep-mode-backend {model.sleep_mode_backend}."
    if model.sleep_preserve_parameter_names:
        yield "aloft keeps all weights in a sleep or none: remove --sleep-preserve-parameter-names."
    if model.sleep_mode_offload_cudagraph:
        yield "aloft captures steps anew after a sleep: remove --sleep-mode-offload-cudagraph."


def _model_refusals(model: ModelConfig) -> Iterator[str]:
    if model.runner_type != "generate":
        yield f"aloft does not support pooling models yet: --runner must be generate, not {model.runner_type}."
    if model.enable_sleep_mode:
        yield from _sleep_refusals(model)
    if model.enable_prompt_embeds:
        yield "aloft does not support prompt embeddings yet: remove --enable-prompt-embeds."
    if model.is_encoder_decoder:
        yield f"aloft does not support encoder-decoder models yet: --model {model.model} is one."
    if model.is_multimodal_model:
        yield (
            f"aloft does not support multimodal models yet: --model {model.model} is one; "
            "a text-only architecture can be chosen with --hf-overrides."
        )
    if model.use_mla:
        yield f"aloft does not support multi-head latent attention yet: --model {model.model} uses it."
    if model.is_hybrid or model.has_inner_state:
        yield f"aloft does not support models with recurrent state yet: --model {model.model} is one."
