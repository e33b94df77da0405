"""Quantized checkpoints: formats are read into one form, schemes run it on the device's operators.

``formats/`` knows files and tensors, ``schemes/`` knows arithmetic; ``registry`` joins a scheme and a layer kind to
its method class. ``register`` tells vLLM, through its own registry of quantization configs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig

#: load formats of vLLM's default loader, which knows the option
_TRACKED = ("auto", "hf", "safetensors", "pt")


def register() -> None:
    """Registers a config for every name a user may give; a second call in the same process does nothing new."""
    from vllm.model_executor.layers.quantization import register_quantization_config

    from aloft.quantization.config import CONFIGS

    for cls in CONFIGS:
        for name in (cls.NAME, *cls.ALIASES):
            register_quantization_config(name)(cls)


def names() -> list[str]:
    """What ``--quantization`` accepts."""
    from aloft.quantization.config import CONFIGS

    return [name for cls in CONFIGS for name in (cls.NAME, *cls.ALIASES)]


def detect(vllm_config: VllmConfig) -> None:
    """Finds a ModelSlim checkpoint that nobody named, and builds its config as vLLM would have.

    Raises:
        ValueError: the checkpoint's description is wrong, or ``config.json`` names another format beside it.
    """
    from aloft.quantization.formats import modelslim

    model = vllm_config.model_config
    if model is None or model.quantization is not None or modelslim.find(model.model, model.revision) is None:
        return
    model.quantization = "ascend"  # type: ignore[assignment]
    vllm_config.quant_config = vllm_config.get_quantization_config(model, vllm_config.load_config)


def require_all_weights(vllm_config: VllmConfig) -> None:
    """Has vLLM's loader refuse a quantized checkpoint that lacks a parameter, as it refuses others."""
    load, model = vllm_config.load_config, vllm_config.model_config
    if model is None or model.quantization is None or load.load_format not in _TRACKED:
        return
    if isinstance(load.model_loader_extra_config, dict):
        load.model_loader_extra_config.setdefault("enable_weights_track", True)
