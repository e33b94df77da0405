"""W4A4: 4-bit weights with a scale a row or group, activations rotated online and quantized per token to 4 bits."""

from __future__ import annotations

from typing import Any

import torch

from aloft.quantization.description import LayerShape
from aloft.quantization.layout import int4_matrix
from aloft.quantization.linear import LinearScheme
from aloft.quantization.registry import HEAD, LINEAR, register
from aloft.quantization.weight import QuantizedWeight

_QUINT4X2 = torch.quint4x2
# more rows than this go through the transform in parts, as on hardware
_ROWS = 32768


@register("w4a4", LINEAR)
@register("w4a4", HEAD)
class DynamicInt4(LinearScheme):
    """``y = sum over groups of (xq (wq - zero)) * weight scale, times the token's scale, + bias``.

    ``xq`` is of ``left (X right)`` for x as a matrix X; checkpoints without a transform quantize x as it is. The
    hardware takes one scale a row and no zero point, or groups of 256; other groups (multiples of 32) run on the
    virtual NPU.
    """

    operators = (
        "npu::npu_kronecker_quant",
        "npu::npu_dynamic_quant",
        "npu::npu_convert_weight_to_int4pack",
        "npu::npu_quant_matmul",
    )

    def pack(self, weight: QuantizedWeight, shape: LayerShape) -> dict[str, torch.Tensor]:
        if weight.zero is not None and not weight.group:
            raise ValueError(f"{shape.name}: W4A4 takes symmetric weights where a row has one scale.")
        if weight.group % 32:
            raise ValueError(f"{shape.name}: groups must be a multiple of 32 input features, not {weight.group}.")
        self.groups = [0, 0, weight.group] if weight.group else None
        scale = weight.scale.t() if weight.group else weight.scale.flatten()
        made = {"packed": int4_matrix(weight.values), "row_scale": scale.contiguous()}
        if weight.zero is not None:
            made["offset"] = weight.zero.t().to(torch.float16).contiguous()
        self.clip: float | None = None
        if weight.left is not None and weight.right is not None:
            made["left"] = weight.left.to(shape.dtype).contiguous()
            made["right"] = weight.right.to(shape.dtype).contiguous()
            self.clip = 1.0 if weight.clip is None else float(weight.clip.flatten()[0])
        return made

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self.clip is None:
            codes, token_scale = torch.ops.npu.npu_dynamic_quant(x, dst_type=_QUINT4X2)
        else:
            left, right = layer.left, layer.right
            parts = [
                torch.ops.npu.npu_kronecker_quant(
                    part.view(-1, left.shape[0], right.shape[0]), left, right, clip_ratio=self.clip
                )
                for part in x.contiguous().split(_ROWS)
            ]
            codes, token_scale = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
            codes = codes.flatten(1)
        made = torch.ops.npu.npu_quant_matmul(
            codes,
            layer.packed,
            layer.row_scale,
            offset=getattr(layer, "offset", None),
            pertoken_scale=token_scale,
            bias=None if self.groups else bias,  # products with scales by group take none
            output_dtype=x.dtype,
            group_sizes=self.groups,
        )
        return made if bias is None or not self.groups else made + bias.to(x.dtype)
