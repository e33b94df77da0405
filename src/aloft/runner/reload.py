"""New weights for a running engine: the model is built again, from a folder or from tensors that are handed over.

Every layer is a fresh one, so that its weights are turned into the operators' form once, whatever form they were in
before. The old model gives its memory back when the new one stands; where both do not fit, the old one waits in host
memory. A reload that fails changes nothing.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import json
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch_npu import npu
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.logger import init_logger
from vllm.model_executor.model_loader import DefaultModelLoader, get_model_loader

from aloft import models
from aloft.errors import NotEnoughMemory
from aloft.ops import storage
from aloft.quantization.gguf.folder import model_folder
from aloft.runner import holdings, kv, memory
from aloft.runner.sleep import WEIGHTS, Away, forget_captures, weights_of

if TYPE_CHECKING:
    from torch import nn

    from aloft.runner.model_runner import ModelRunner

logger = init_logger("vllm.aloft.reload")
Named = Iterable[tuple[str, torch.Tensor]]

#: room beside the old model for the new one, in sizes of the old one: a layer is there twice while it is packed
_ROOM = 1.3
#: keys of config.json that say nothing of the weights' names and shapes
_FREE = {
    "_name_or_path", "transformers_version", "dtype", "torch_dtype", "quantization_config", "use_cache",
    "bos_token_id", "eos_token_id", "pad_token_id", "attention_dropout", "initializer_range", "pretraining_tp",
}  # fmt: skip


def reload(runner: ModelRunner, weights: Named | None = None, folder: str | None = None) -> None:
    """Replaces the runner's model by one with other weights of the same architecture.

    Args:
        weights: all tensors of a checkpoint by its names; None: read from a folder.
        folder: that folder, or a GGUF file; None: the one the weights came from last.

    Raises:
        ValueError: the weights are not those of this model; NotEnoughMemory: they do not fit; RuntimeError: the weights
        are asleep. The engine has its old weights then.
    """
    with runner.rest.loading():
        if WEIGHTS in runner.rest.away:
            raise RuntimeError(f"The weights are asleep: wake_up(tags=['{WEIGHTS}']) comes before reload_weights.")
        _reload(runner, weights, folder)
    runner.rest.loaded()


def _reload(runner: ModelRunner, weights: Named | None, folder: str | None) -> None:
    present = not runner.rest.without_weights  # and wanted back if this fails
    began = time.perf_counter()
    config = runner.vllm_config
    forget_captures(runner)
    own = weights_of(runner.model, holdings.tensors(runner.kv_caches))
    size = sum(map(storage.num_bytes, own.values()))
    npu.empty_cache()
    waiting = None
    if storage.native() and (not present or npu.mem_get_info()[0] < _ROOM * size):
        waiting = Away(own.values() if present else (), () if present else own.values())
        runner.rest.put(WEIGHTS, waiting)
    try:
        with _renewed(config, folder, runner.block_size):
            made = _build(runner, weights)
            specs, _ = kv.layers_and_specs(config)
            if specs != runner.specs:
                raise ValueError("They keep other keys and values in the cache than the engine's own do.")
            runner._model = made
            runner.bind_caches()
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # which hold what there is of the new model
        gc.collect()
        npu.empty_cache()
        if waiting is not None:
            runner.rest.wake_up((WEIGHTS,))
        if not isinstance(error, Exception):
            raise
        source = config.model_config.model if folder is None else folder
        raise _explained(error, source, weights is not None) from error
    if waiting is None and storage.native():
        kept = weights_of(made, ())
        for key in own.keys() - kept.keys():
            storage.release(own[key])
    del own, waiting
    runner.rest.away.pop(WEIGHTS, None)
    if not storage.native():
        gc.unfreeze()  # the first model, a ring of references, was frozen when the engine stood: with its memory
    gc.collect()
    npu.empty_cache()
    logger.info(
        "Weights of %s loaded in %.2f s. Cached prefixes were computed with the old ones: reset_prefix_cache() drops "
        "them, unless a sleep has.",
        "the caller" if weights is not None else config.model_config.model,
        time.perf_counter() - began,
    )


@contextlib.contextmanager
def _renewed(config: VllmConfig, folder: str | None, asked: int) -> Iterator[None]:
    """vLLM's configuration as it is before a model is built, from another folder if need be; as it was, on an error.

    asked: the size of cache blocks then.
    """
    compilation, model = config.compilation_config, config.model_config
    layers, experts = dict(compilation.static_forward_context), list(compilation.static_all_moe_layers)
    before = {name: getattr(model, name) for name in ("model", "model_weights", "revision", "hf_config")}
    quantization, block_size = config.quant_config, config.cache_config.block_size
    try:
        if folder is not None:
            folder = model_folder(folder, own_tokenizer=False)
            _point_at(config, folder)
        if quantization is not None:  # it is told the model's names, once
            config.quant_config = VllmConfig.get_quantization_config(model, config.load_config)
        compilation.static_forward_context.clear()
        compilation.static_all_moe_layers.clear()
        config.cache_config.block_size = asked
        yield
    except BaseException:
        compilation.static_forward_context.clear()
        compilation.static_forward_context.update(layers)
        compilation.static_all_moe_layers[:] = experts
        config.quant_config = quantization
        for name, value in before.items():
            setattr(model, name, value)
        raise
    finally:
        config.cache_config.block_size = block_size


def _point_at(config: VllmConfig, folder: str) -> None:
    """Has the model's configuration name another folder; its quantization is described there."""
    model = config.model_config
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise ValueError("There is no folder of that name with a config.json in it.")
    said: dict[str, Any] = json.loads(file.read_text())
    if not isinstance(said, dict) or not isinstance(said.get("quantization_config") or {}, dict):
        raise ValueError("Its config.json is no description of a model.")
    own = _said(Path(model.model))
    keys = said.keys() | own.keys() if own else said.keys() & model.hf_config.to_dict().keys()
    own = own or model.hf_config.to_dict()  # of a model that is no local folder
    different = [key for key in sorted(keys - _FREE) if said.get(key) != own.get(key)]
    if different:
        parts = [f"{key} is {said.get(key)}, not {own.get(key)}" for key in different[:3]]
        raise ValueError(f"Its config.json describes another model: {', '.join(parts)}.")
    changed = copy.copy(model.hf_config)
    quantization, before = said.get("quantization_config"), getattr(changed, "quantization_config", None)
    if quantization != before:
        if (quantization or {}).get("quant_method") != (before or {}).get("quant_method"):
            raise ValueError("Its quantization is of another kind than the engine's.")
        changed.quantization_config = quantization
    model.hf_config = changed
    model.model, model.model_weights, model.revision = folder, "", None


def _said(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def _build(runner: ModelRunner, weights: Named | None) -> nn.Module:
    """The model as at start-up."""
    config = runner.vllm_config
    loader: Any = get_model_loader(config.load_config)
    floats = config.quant_config is None
    if weights is not None:
        plain = copy.copy(config.load_config)
        plain.load_format = "auto"
        loader = _Given(plain, floats, weights)
    elif type(loader) is DefaultModelLoader:
        loader = _Complete(config.load_config, floats)
    with set_current_vllm_config(config):
        made = loader.load_model(vllm_config=config, model_config=config.model_config)
    return models.fuse(made, runner.config.fusion_level, config)


class _Complete(DefaultModelLoader):
    """Misses tensors that are not there: vLLM takes a packed matrix for loaded when a part of it has been."""

    def __init__(self, load_config: Any, floats: bool) -> None:
        """floats: all tensors are floats, those of a model that is not quantized."""
        super().__init__(load_config)
        self.floats = floats

    def get_all_weights(self, model_config: Any, model: nn.Module) -> Any:
        return self._checked(super().get_all_weights(model_config, model))

    def _checked(self, weights: Named) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in weights:
            if not isinstance(tensor, torch.Tensor):
                raise ValueError(f"{name} is a {type(tensor).__name__}, not a tensor.")
            if self.floats and not tensor.is_floating_point():
                raise ValueError(f"{name} is of {tensor.dtype}, the model's weights are floats.")
            yield name, tensor

    def load_weights(self, model: nn.Module, model_config: Any) -> None:
        matrices = {n: p.data for n, p in model.named_parameters() if p.dim() > 1 and p.is_floating_point()}
        for matrix in matrices.values():
            matrix.fill_(float("nan"))
        super().load_weights(model, model_config)
        missing = [name for name, matrix in matrices.items() if bool(matrix.isnan().any())]
        if missing:
            raise ValueError(f"There are no weights, or not all, for {', '.join(missing[:3])}, among others.")


class _Given(_Complete):
    """Loads tensors that are handed over."""

    def __init__(self, load_config: Any, floats: bool, weights: Named) -> None:
        super().__init__(load_config, floats)
        self.weights = weights

    def get_all_weights(self, model_config: Any, model: nn.Module) -> Any:
        self.counter_before_loading_weights = time.perf_counter()
        return self._checked(self.weights)


def _explained(error: Exception, source: str, given: bool) -> Exception:
    """An error that says whose weights were not loaded, and that the engine has its own."""
    what = "the weights handed over" if given else f"the weights of {source}"
    if isinstance(error, torch.OutOfMemoryError):
        free, total = npu.mem_get_info()
        return NotEnoughMemory(
            f"There is no room for {what}: {memory.gib(free)} of {memory.gib(total)} is free. The engine keeps its own."
        )
    said = str(error).strip() or type(error).__name__
    if isinstance(error, ValueError | KeyError | AssertionError | TypeError | AttributeError | SafetensorError):
        return ValueError(f"The engine keeps its weights: {what} do not fit. {said}")
    if isinstance(error, RuntimeError):  # torch's, of shapes that do not fit, among others
        return RuntimeError(f"The engine keeps its weights: {what} cannot be loaded. {said}")
    return error
