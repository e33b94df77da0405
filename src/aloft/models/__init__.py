"""Decoder layers of loaded models, replaced by ones that call three operators instead of twelve.

Nothing of vLLM is changed: the model is built and loaded by vLLM, and the layers whose structure is fully known (see
``aloft.models.plain``) are then exchanged in the model's own list of layers. The others stay as they are.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger

from aloft.models.layer import FusedDecoderLayer
from aloft.models.level import Fusion
from aloft.models.plain import NotPlain, Parts, parts_of, prepare
from aloft.models.stack import DecoderStack
from aloft.ops import decoder_layer

logger = init_logger("vllm.aloft.models")
Model = TypeVar("Model", bound=torch.nn.Module)


def fuse(model: Model, fusion_level: str, vllm_config: VllmConfig | None = None) -> Model:
    """Exchanges every plain decoder layer of a loaded model, in place; returns the model.

    Args:
        fusion_level: as in ``AloftConfig``. ``auto`` is ``none`` where the runtime has no fused operators.
        vllm_config: of the engine: LoRA leaves every layer alone, speculative decoding reads between layers.
    """
    if fusion_level == "none" or (fusion_level == "auto" and not decoder_layer.native()):
        return model
    if vllm_config is not None and vllm_config.lora_config is not None:
        return model
    decoder_layer.ensure()
    fusion = Fusion(fusion_level)
    fused, kept = 0, set()
    for layers in [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]:
        found: list[tuple[FusedDecoderLayer, Parts]] = []
        for index, layer in enumerate(layers):
            try:
                parts = parts_of(layer)
            except NotPlain as reason:
                kept.add(str(reason))
            else:
                if decoder_layer.native():
                    prepare(layer)
                    parts = parts_of(layer)
                layers[index] = made = FusedDecoderLayer(layer, parts, fusion)
                found.append((made, parts))
        fused += len(found)
        if len(found) == len(layers) and (vllm_config is None or vllm_config.speculative_config is None):
            _stack(found)
    if fused:
        logger.info("%d decoder layers call fused operators (fusion_level %s)", fused, fusion_level)
    for why in sorted(kept):
        logger.debug("not fused: %s", why)
    return model


def _stack(layers: list[tuple[FusedDecoderLayer, Parts]]) -> None:
    """Lets the first of a model's layers run all of them in one call, where they allow that."""
    parts = [own for _, own in layers]
    if len(layers) < 2 or not decoder_layer.native() or not DecoderStack.suits(parts):
        return
    stack = DecoderStack(parts)
    for layer, _ in layers:
        layer.join(stack, layer is layers[-1][0])
