"""Quantized checkpoints: formats are read into one form, schemes run it on the device's operators.

``formats/`` knows files and tensors, ``schemes/`` knows arithmetic; ``registry`` joins a scheme and a layer kind to
its method class. ``register`` tells vLLM, through its own registry of quantization configs.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs

#: load formats of vLLM's default loader, which knows the option
_TRACKED = ("auto", "hf", "safetensors", "pt", "gguf")


def register() -> None:
    """Registers a config for every name a user may give; a second call in the same process does nothing new."""
    from vllm.model_executor.layers.quantization import register_quantization_config
    from vllm.model_executor.model_loader import register_model_loader

    from aloft.quantization.config import CONFIGS
    from aloft.quantization.gguf.loader import LOAD_FORMAT, GgufLoader

    for cls in CONFIGS:
        for name in (cls.NAME, *cls.ALIASES):
            register_quantization_config(name)(cls)
    register_model_loader(LOAD_FORMAT)(GgufLoader)


def names() -> list[str]:
    """What ``--quantization`` accepts."""
    from aloft.quantization.config import CONFIGS

    return [name for cls in CONFIGS for name in (cls.NAME, *cls.ALIASES)]


def detect(vllm_config: VllmConfig) -> None:
    """Finds a ModelSlim or GGUF checkpoint that nobody named, and builds its config as vLLM would have.

    Raises:
        ValueError: the checkpoint's description is wrong, or ``config.json`` names another format beside it.
    """
    from aloft.quantization import gguf
    from aloft.quantization.formats import modelslim

    model, load = vllm_config.model_config, vllm_config.load_config
    if model is None:
        return
    if model.quantization is None:
        if modelslim.find(model.model, model.revision) is not None:
            model.quantization = "ascend"  # type: ignore[assignment]
        elif gguf.find(model.model) is not None:
            model.quantization = "gguf"  # type: ignore[assignment]
        else:
            return
        vllm_config.quant_config = vllm_config.get_quantization_config(model, load)
    if model.quantization == "gguf" and load.load_format == "auto":
        load.load_format = "gguf"  # type: ignore[assignment]


def accept_files(parser: argparse.ArgumentParser) -> None:
    """Has vLLM's command line refuse a GGUF file that cannot be served, before anything slow starts."""
    from aloft.quantization.gguf.folder import model_folder

    def model(value: str) -> str:
        try:
            model_folder(value, own_tokenizer=False)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return value  # the name requests give; `name_folder` gives the engine the folder

    for action in parser._actions:  # argparse has no public way to an argument that is there
        if action.dest in ("model", "model_tag"):
            action.type = model


def name_folder(arguments: EngineArgs) -> None:
    """Gives the engine the folder that stands for a GGUF file, under the name the user gave.

    Raises:
        ValueError: the file cannot be served.
    """
    from aloft.quantization.gguf.folder import model_folder

    named = arguments.model
    own_tokenizer = arguments.tokenizer in (None, named) and not arguments.skip_tokenizer_init
    folder = model_folder(named, own_tokenizer)
    if folder == named:
        return
    arguments.model = folder
    if arguments.tokenizer == named:
        arguments.tokenizer = folder
    if arguments.served_model_name is None:
        arguments.served_model_name = named


def require_all_weights(vllm_config: VllmConfig) -> None:
    """Has vLLM's loader refuse a quantized checkpoint that lacks a parameter, as it refuses others."""
    load, model = vllm_config.load_config, vllm_config.model_config
    if model is None or model.quantization is None or load.load_format not in _TRACKED:
        return
    if isinstance(load.model_loader_extra_config, dict):
        load.model_loader_extra_config.setdefault("enable_weights_track", True)
