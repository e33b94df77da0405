"""Distillation: the scales of all low-bit layers and the gains of the norms are trained together.

What is minimised is the divergence of the quantized model's next-token distribution from the float model's on
calibration text. The codes stay as the rounding of each block left them: its errors compensate each other, and moving
many codes at once by gradients undoes that (tried: it lost more than it won). Training the scales alone is the last
phase of EfficientQAT (arXiv 2407.11062).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from aloft.quantizer.block import Quantized

_FIRST, _SECOND = 0.9, 0.98  # Adam's decay rates; few steps, so the second remembers less than usual
_LOGITS = 2**25  # numbers of a chunk of logits


@dataclass(frozen=True)
class Lesson:
    """steps of batch windows each, run in parts. rate: how far a step moves a scale, as a part of itself; it rises over
    ``warm`` steps and falls linearly to nothing."""

    steps: int
    batch: int = 8
    part: int = 2
    rate: float = 3e-3
    warm: int = 4

    def pace(self, step: int) -> float:
        return self.rate * min(1.0, step / self.warm) * (1 - (step - 1) / self.steps)


class Learner:
    """Positive factors that Adam moves in their logarithm, ``exp`` of which multiplies what was there."""

    def __init__(self, shape: torch.Size) -> None:
        self.move, self.first, self.second = (torch.zeros(shape) for _ in range(3))

    def learn(self, gradient: torch.Tensor, step: int, rate: float) -> None:
        self.first.lerp_(gradient, 1 - _FIRST)
        self.second.mul_(_SECOND).addcmul_(gradient, gradient, value=1 - _SECOND)
        spread = (self.second / (1 - _SECOND**step)).sqrt_().add_(1e-12)
        self.move.addcdiv_(self.first, spread, value=-rate / (1 - _FIRST**step))

    def state(self) -> dict[str, torch.Tensor]:
        return {"move": self.move, "first": self.first, "second": self.second}


class ScalePupil(Learner):
    """A linear layer's scales. module: where its weight is used."""

    def __init__(self, module: Any, entry: Quantized, scale_dtype: torch.dtype) -> None:
        grid = entry.grid
        super().__init__(grid.scale.shape)
        self.module, self.entry, self.scale_dtype = module, entry, scale_dtype
        self.steps = (entry.codes.view(*grid.scale.shape, grid.group) - grid.zero[..., None]).to(torch.int8)
        module.weight = torch.nn.Parameter(torch.empty(entry.codes.shape, dtype=torch.bfloat16))
        self.use()

    def use(self) -> None:
        """Puts the weight that the scales now stand for into the module."""
        self.scale = (self.entry.grid.scale * self.move.exp()).to(self.scale_dtype).float()
        weight = self.module.weight
        weight.data.copy_((self.steps * self.scale[..., None]).view_as(weight))

    def step(self, step: int, rate: float) -> None:
        """One step along the gradient that the module's weight holds."""
        gradient = self.module.weight.grad.view_as(self.steps)
        self.module.weight.grad = None
        self.learn((gradient * self.steps).sum(-1, dtype=torch.float32).mul_(self.scale), step, rate)
        self.use()

    def finish(self) -> None:
        """Hands the grid back to the entry."""
        self.entry.grid = replace(self.entry.grid, scale=self.scale.contiguous())


class GainPupil(Learner):
    """A norm's gain ``[hidden]``; held: the tensor that is written afterwards."""

    def __init__(self, module: Any, held: torch.Tensor) -> None:
        super().__init__(held.shape)
        self.module, self.held, self.start = module, held, held.float().clone()
        module.weight.requires_grad_(True)

    def use(self) -> None:
        self.module.weight.data.copy_(self.start * self.move.exp())

    def step(self, step: int, rate: float) -> None:
        gradient = self.module.weight.grad.float()
        self.module.weight.grad = None
        self.learn(gradient * self.module.weight.data.float(), step, rate)
        self.use()

    def finish(self) -> None:
        self.held.copy_(self.module.weight.data)


class Class:
    """The model in training: float embedding, norms and head, and blocks with pupils in them.

    teacher: the float model's last hidden states ``[windows, length, hidden]``, before the last norm.
    """

    def __init__(
        self,
        blocks: list[Any],
        pupils: dict[str, ScalePupil | GainPupil],
        norm: Any,
        head: torch.Tensor,
        rotary: Callable[[torch.Tensor, torch.Tensor], Any],
    ) -> None:
        self.blocks, self.pupils, self.norm, self.head, self.rotary = blocks, pupils, norm, head, rotary

    def train(
        self,
        states: torch.Tensor,
        teacher: torch.Tensor,
        lesson: Lesson,
        seed: int,
        progress: Callable[[int, float], None],
        kept: Path | None = None,
        every: int = 10,
    ) -> None:
        """Runs the lesson over windows of embedded tokens ``[windows, length, hidden]`` in an order drawn by seed.

        kept: a file that holds the state every few steps, from which an interrupted run goes on.
        """
        order = _order(len(states), lesson.steps * lesson.batch, seed)
        position = self.rotary(states, torch.arange(states.shape[1])[None])
        start = self._load(kept)
        for step in range(start + 1, lesson.steps + 1):
            chosen = order[(step - 1) * lesson.batch : step * lesson.batch]
            lost = 0.0
            for part in chosen.split(lesson.part):
                lost += self._backward(states[part], teacher[part], position, len(chosen))
            pace = lesson.pace(step)
            for pupil in self.pupils.values():
                pupil.step(step, pace)
            progress(step, lost)
            if kept is not None and step % every == 0 and step < lesson.steps:
                self._save(kept, step)

    def _backward(self, states: torch.Tensor, teacher: torch.Tensor, position: Any, windows: int) -> float:
        """Adds a part's gradients; the mean divergence a token, as its share of the batch."""
        hidden = states
        for block in self.blocks:
            made = block(hidden, position_embeddings=position, attention_mask=None)
            hidden = made[0] if isinstance(made, tuple) else made
        hidden = self.norm(hidden)
        with torch.no_grad():
            wanted = self.norm(teacher)
        share = 1 / (windows * states.shape[1])
        lost, gradient = divergence(hidden.detach().flatten(0, 1), wanted.flatten(0, 1), self.head)
        hidden.backward((gradient * share).view_as(hidden))
        return lost * share

    def _save(self, kept: Path, step: int) -> None:
        from safetensors.torch import save_file

        made = {
            f"{name}.{part}": tensor for name, pupil in self.pupils.items() for part, tensor in pupil.state().items()
        }
        save_file(made, kept.with_suffix(".new"), {"step": str(step)})
        kept.with_suffix(".new").replace(kept)

    def _load(self, kept: Path | None) -> int:
        from safetensors import safe_open

        if kept is None or not kept.is_file():
            return 0
        with safe_open(kept, framework="pt") as file:
            for name, pupil in self.pupils.items():
                for part, tensor in pupil.state().items():
                    tensor.copy_(file.get_tensor(f"{name}.{part}"))
                pupil.use()
            return int(file.metadata()["step"])


def divergence(hidden: torch.Tensor, wanted: torch.Tensor, head: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Sum over rows of KL(softmax(head wanted), softmax(head hidden)), and its gradient for hidden ``[n, hidden]``."""
    gradient = torch.empty_like(hidden)
    lost = 0.0
    size = max(1, _LOGITS // head.shape[0])
    for start in range(0, len(hidden), size):
        part = slice(start, start + size)
        ours, theirs = (torch.log_softmax((x[part] @ head.t()).float(), -1) for x in (hidden, wanted))
        likely = theirs.exp()
        lost += float((likely * (theirs - ours)).sum())
        gradient[part] = ours.exp_().sub_(likely).to(hidden.dtype) @ head
    return lost, gradient


def _order(windows: int, count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    rounds = [torch.randperm(windows, generator=generator) for _ in range(-(-count // windows))]
    return torch.cat(rounds)[:count]
