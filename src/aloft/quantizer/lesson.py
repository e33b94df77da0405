"""The distillation of a model whose blocks were rounded one by one: builds teacher and pupils, and runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aloft.quantizer.block import scale_dtype
from aloft.quantizer.decoder import STAGES, Decoder, submodule
from aloft.quantizer.distill import Class, GainPupil, Lesson, ScalePupil
from aloft.quantizer.held import HeldBlock
from aloft.quantizer.online import round_inputs
from aloft.quantizer.statistics import Stream, advance


@dataclass(frozen=True)
class Ends:
    """What surrounds the blocks. embedding, head: ``[vocabulary, hidden]``; gain: ``[hidden]``, of the last norm."""

    embedding: torch.Tensor
    head: torch.Tensor
    gain: torch.Tensor


def teach(
    decoder: Decoder,
    float_block: Callable[[int], torch.nn.Module],
    blocks: list[HeldBlock],
    ends: Ends,
    tokens: torch.Tensor,
    lesson: Lesson,
    seed: int,
    work: Path,
    progress: Callable[[int, int, str], None],
) -> None:
    """Changes the scales of the blocks' 4-bit layers and the gains of their norms in place.

    Holds the whole model: about 8 bytes a weight, and the activations of a part of a batch.

    Args:
        tokens: int64 ``[windows, length]``.
    """
    states = torch.nn.functional.embedding(tokens, ends.embedding)
    teacher = _teacher(decoder, float_block, states, work / "teacher.safetensors", progress)
    pupils: dict[str, ScalePupil | GainPupil] = {}
    modules = []
    for index, held in enumerate(blocks):
        block: Any = decoder.layer(index)
        block.load_state_dict(held.parameters, strict=True)
        for parameter in block.parameters():
            parameter.requires_grad_(False)
        for name, entry in held.layers.items():
            module = submodule(block, name)
            round_inputs(module, entry)
            if entry.recipe.bits == 4:
                pupils[f"{index}.{name}"] = ScalePupil(module, entry, scale_dtype(entry.recipe))
            else:
                module.weight.data = entry.grid.value(entry.codes).to(torch.bfloat16)
        for name in (STAGES["qkv"][1], STAGES["gate_up"][1]):
            pupils[f"{index}.{name}"] = GainPupil(submodule(block, name), held.parameters[f"{name}.weight"])
        modules.append(block)
    norm = decoder.norm(ends.gain)
    whole = Class(modules, pupils, norm, ends.head, decoder.rotary)
    whole.train(
        states,
        teacher,
        lesson,
        seed,
        lambda step, lost: progress(step, lesson.steps, f"distillation: divergence {lost:.4f}"),
        work / "tune.safetensors",
    )
    for pupil in pupils.values():
        pupil.finish()


def _teacher(
    decoder: Decoder,
    float_block: Callable[[int], torch.nn.Module],
    states: torch.Tensor,
    kept: Path,
    progress: Callable[[int, int, str], None],
) -> torch.Tensor:
    """The float model's hidden states after the last block."""
    from safetensors.torch import load_file, save_file

    if not kept.is_file():
        stream = Stream(states, decoder.rotary(states, torch.arange(states.shape[1])[None]))
        for index in range(decoder.num_layers):
            progress(index, decoder.num_layers, f"float model, block {index}")
            stream = advance(float_block(index), stream)
        save_file({"states": stream.states}, kept.with_suffix(".new"))
        kept.with_suffix(".new").replace(kept)
    return load_file(kept)["states"]
