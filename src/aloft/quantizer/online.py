"""What happens to activations at run time, imitated: rotations of 4-bit schemes, rounding of all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from aloft.quantization.weight import kronecker_factors
from aloft.quantizer.recipe import STATIC
from aloft.quantizer.rotation import orthogonal
from aloft.quantizer.statistics import StageInputs

if TYPE_CHECKING:
    from aloft.quantizer.block import Quantized

_CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)


@dataclass(frozen=True)
class OnlineTurn:
    """z = left @ X @ right for an input x seen as a matrix X; clip: the part of the largest |z| that 7 stands for."""

    left: torch.Tensor
    right: torch.Tensor
    clip: float

    @classmethod
    def make(cls, inputs: StageInputs, seed: int) -> OnlineTurn:
        """Random rotations, in bfloat16 as the operator takes them, and the clipping with the least error."""
        first, second = kronecker_factors(inputs.second.shape[0])
        left = orthogonal(first, seed + 101).to(torch.bfloat16).float()
        right = orthogonal(second, seed + 202).to(torch.bfloat16).float()
        turned = turn(inputs.sample, left, right)
        errors = [float((round_tokens(turned, 4, clip) - turned).square().sum()) for clip in _CLIPS]
        return cls(left, right, _CLIPS[errors.index(min(errors))])

    def weight(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight ``[N, K]`` that reads turned inputs."""
        left, right = (torch.linalg.inv(part.double()) for part in (self.left, self.right))
        undo = torch.kron(left.contiguous(), right.t().contiguous())
        return (weight.double() @ undo).float()

    def turned(self, inputs: StageInputs) -> StageInputs:
        """The statistics of the turned inputs (of those a weight's rounding needs)."""
        whole = torch.kron(self.left.t().contiguous(), self.right)
        return replace(inputs, second=whole.t() @ inputs.second @ whole)


def turn(x: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """``[..., A * B]`` to the same shape, float32."""
    matrix = x.float().unflatten(-1, (left.shape[0], right.shape[0]))
    return (left @ (matrix @ right)).flatten(-2)


def round_tokens(x: torch.Tensor, bits: int, clip: float = 1.0) -> torch.Tensor:
    """x to the nearest codes of a symmetric grid a token, and back; float32."""
    top = 2 ** (bits - 1) - 1
    scale = (x.float().abs().amax(-1, keepdim=True) * clip / top).clamp_(min=1e-12)
    return torch.round(x.float() / scale).clamp_(-top - 1, top) * scale


class _Straight(torch.autograd.Function):
    """The rounded value forward; backward as if nothing had been rounded."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
        return rounded

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def round_inputs(module: torch.nn.Module, entry: Quantized) -> None:
    """Makes a module see its inputs as the quantized layer will."""
    recipe = entry.recipe
    if recipe.activation_bits == 16:
        return

    def dynamic(_: object, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        x = args[0]
        if entry.left is not None and entry.right is not None:
            x = turn(x, entry.left, entry.right)
        return (_Straight.apply(x, round_tokens(x, recipe.activation_bits, entry.clip)).to(args[0].dtype),)

    def static(_: object, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        scale, offset = entry.input_scale, entry.input_offset
        assert scale is not None and offset is not None
        codes = torch.round(args[0].float() / scale + offset).clamp_(-128, 127)
        return (_Straight.apply(args[0], ((codes - offset) * scale).to(args[0].dtype)),)

    module.register_forward_pre_hook(static if recipe.activations == STATIC else dynamic)
