"""Fused operators with quantized weights give the bits of the operators they stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch_npu  # noqa: F401

from aloft.ops import decoder_layer
from aloft.ops.projection import DYNAMIC, WEIGHT_ONLY, Projection, described
from aloft.quantization.layout import int4_matrix, int8_matrix, int64_scale, single_scale

HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 64, 16
#: rows on both sides of where kernels change, and a block boundary
ROWS = (1, 2, 5, 17, 70)


def codes(bits: int, inputs: int, outputs: int) -> torch.Tensor:
    return torch.randint(-(1 << (bits - 1)), 1 << (bits - 1), (outputs, inputs)).to(torch.int8)


def int8_dynamic(inputs: int, outputs: int, dtype: torch.dtype, nz: bool = True) -> Projection:
    scale = (torch.rand(outputs) + 0.5) * inputs**-0.5 / 64
    return Projection(int8_matrix(codes(8, inputs, outputs).npu(), nz), None, DYNAMIC, 0, scale.npu())


def int4_dynamic(inputs: int, outputs: int, dtype: torch.dtype, group: int = 32, nz: bool = True) -> Projection:
    scale = (torch.rand(*([-(-inputs // group)] if group else []), outputs) + 0.5) * inputs**-0.5 / 4
    packed = int4_matrix(codes(4, inputs, outputs).npu(), nz)
    return Projection(packed, None, DYNAMIC, group, int64_scale(scale.npu()))


def weight_only(inputs: int, outputs: int, dtype: torch.dtype, bits: int = 4, group: int = 32) -> Projection:
    shape = [-(-inputs // group), outputs] if group else [outputs]
    scale = ((torch.rand(shape) + 0.5) * inputs**-0.5 / (1 << (bits - 2))).to(dtype).npu()
    offset = torch.randint(-3, 4, shape).to(dtype).npu() if bits == 4 else None
    values = codes(bits, inputs, outputs).npu()
    packed = int4_matrix(values, group > 0) if bits == 4 else int8_matrix(values, False)
    return Projection(packed, None, WEIGHT_ONLY, group, scale, offset)


def transposed(inputs: int, outputs: int, dtype: torch.dtype) -> Projection:
    made = int8_dynamic(inputs, outputs, dtype, nz=False)
    return Projection(made.weight.t().contiguous().t(), None, DYNAMIC, 0, made.scale)


def plain(inputs: int, outputs: int, dtype: torch.dtype) -> Projection:
    return Projection((torch.randn(inputs, outputs) * inputs**-0.5).to(dtype).npu())


Maker = Callable[..., Projection]
KINDS: dict[str, Maker] = {
    "w8a8 nz": int8_dynamic,
    "w8a8 nd": lambda *sizes: int8_dynamic(*sizes, nz=False),
    "w8a8 transposed": transposed,
    "w4a8 nz, groups": int4_dynamic,
    "w4a8 nz, a scale a row": lambda *sizes: int4_dynamic(*sizes, group=0),
    "w4a8 nd, groups of 96": lambda *sizes: int4_dynamic(*sizes, group=96, nz=False),
    "w8a16": lambda *sizes: weight_only(*sizes, bits=8, group=0),
    "w4a16, groups and zeros": weight_only,
}
#: hidden width, units: where SwiGLU ends the product and where it cannot
SHAPES = ((96, 64), (160, 40))


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    torch.manual_seed(0)
    return request.param


def biased(made: Projection, outputs: int, dtype: torch.dtype) -> Projection:
    bias = torch.randn(outputs).to(dtype).npu()
    return Projection(made.weight, bias, made.scheme, made.group, made.scale, made.offset)


def vector(size: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.rand(size) + 0.5).to(dtype).npu()


def same(got: object, want: object, what: str) -> None:
    for place, (left, right) in enumerate(zip(got, want, strict=True)):
        assert left.dtype == right.dtype and torch.equal(left.cpu(), right.cpu()), f"{what}: {place}"


@pytest.mark.parametrize("kind", KINDS)
def test_behind_the_attention(kind: str, dtype: torch.dtype) -> None:
    make = KINDS[kind]
    for width, units in SHAPES:
        o, gate_up = make(HEADS * SIZE, width, dtype), make(width, 2 * units, dtype)
        down = plain(units, width, dtype) if units % 32 else make(units, width, dtype)  # one of three may be float
        if kind == "w8a8 nz":
            gate_up = biased(gate_up, 2 * units, dtype)
        norm = vector(width, dtype)
        for rows in ROWS:
            attention = torch.randn(rows, HEADS * SIZE).to(dtype).npu()
            residual = torch.randn(rows, width).to(dtype).npu()
            args = (attention, residual, o.weight, o.bias, norm, 1e-5, gate_up.weight, gate_up.bias, down.weight)
            for block in (0, 16):
                call = (*args, down.bias, block, *described([o, gate_up, down]))
                same(torch.ops.aloft.mlp_block(*call), decoder_layer.mlp_block(*call), f"{width}, {rows}, {block}")
            x = torch.randn(rows, width).to(dtype).npu()
            single = (x, gate_up.weight, gate_up.bias, *described([gate_up]))
            same([torch.ops.aloft.gated_matmul(*single)], [decoder_layer.gated_matmul(*single)], f"{width}, {rows}")


@pytest.mark.parametrize("kind", KINDS)
def test_in_front_of_the_attention_and_all_layers(kind: str, dtype: torch.dtype) -> None:
    make, width, units, columns = KINDS[kind], 96, 64, (HEADS + 2 * KV_HEADS) * SIZE
    for rows in (1, 7, 33):
        sizes = ((width, columns), (HEADS * SIZE, width), (width, 2 * units), (units, width))
        layers = [[make(*each, dtype) for each in sizes] for _ in range(2)]
        layers[0][0] = biased(layers[0][0], columns, dtype) if "groups" not in kind else layers[0][0]
        hidden, residual = (torch.randn(rows, width).to(dtype).npu() for _ in range(2))
        norm, last = vector(width, dtype), vector(width, dtype)
        angle = torch.rand(rows, 1, SIZE // 2)
        cos, sin = angle.cos().to(dtype).npu(), angle.sin().to(dtype).npu()
        slots = torch.randperm(5 * BLOCK)[:rows].npu()

        def caches() -> list[torch.Tensor]:
            return [torch.zeros(5, BLOCK, KV_HEADS, SIZE, dtype=dtype).npu() for _ in range(2)]

        first = layers[0][0]
        made = []
        for operator in (torch.ops.aloft.attention_input, decoder_layer.attention_input):
            keys, values = caches()
            out = operator(
                *(hidden, residual, norm, 1e-5, first.weight, first.bias, cos, sin, False, keys, values, slots, HEADS),
                *(None, None, 1e-6, 16, *described([first])),
            )
            made.append((*out, keys, values))
        same(*made, f"{rows} rows")
        weights = []
        for qkv, o, gate_up, down in layers:
            weights += [norm, qkv.weight, qkv.bias, None, None, o.weight, o.bias, last]
            weights += [gate_up.weight, gate_up.bias, down.weight, down.bias]
        table = torch.arange(5, dtype=torch.int32).reshape(1, 5).npu()
        made = []
        for operator in (torch.ops.aloft.decoder_stack, decoder_layer.decoder_stack):
            keys, values = [*caches()], [*caches()]
            out = operator(
                *(hidden, weights, [1e-5, 1e-6, 1e-5] * 2, cos, sin, False, keys, values),
                *(torch.arange(rows).npu(), table, [rows], [rows], HEADS, 0.125, [-1, -1], 0.0, (0, 16)),
                *described([part for layer in layers for part in layer]),
            )
            made.append((*out, *keys, *values))
        same(*made, f"stack of {rows} rows")


def test_refusals(dtype: torch.dtype) -> None:
    x = torch.randn(3, 96).to(dtype).npu()
    good = int8_dynamic(96, 64, dtype)

    def call(**changes: object) -> None:
        made = {"weight": good.weight, "scheme": DYNAMIC, "group": 0, "scale": good.scale, "offset": None} | changes
        lists = [[made["scale"], made["offset"]], [made["scheme"], made["group"]]]
        torch.ops.aloft.gated_matmul(x, made["weight"], None, *lists)

    call()
    for text, changes in {
        "gate_up_weight's scale": {"scale": good.scale[:-1].contiguous()},
        "must be float32 or int64": {"scale": good.scale.to(dtype)},
        "of the model's dtype": {"scheme": WEIGHT_ONLY},
        "its scale is missing": {"scale": None},
        "has an offset": {"offset": good.scale},
        "groups of 24": {"group": 24},
        "schemes holds 7": {"scheme": 7},
        "must be int8, or int4": {"weight": good.weight.to(torch.int16)},
        "or its transposed view": {"weight": int8_matrix(codes(8, 95, 64).npu(), False)},
    }.items():
        with pytest.raises(ValueError, match=text):
            call(**changes)
    with pytest.raises(ValueError, match="need 2 entries for 1 projections"):
        torch.ops.aloft.gated_matmul(x, good.weight, None, [good.scale], [DYNAMIC])
    with pytest.raises(ValueError, match="float16 and bfloat16"):
        torch.ops.aloft.gated_matmul(x.float(), good.weight, None, [good.scale, None], [DYNAMIC, 0])


def test_scales_may_come_in_float32(dtype: torch.dtype) -> None:
    for group in (0, 96):
        made = int4_dynamic(288, 256, dtype, group)
        single = replace(made, scale=single_scale(made.scale))
        assert described([single])[0][0].dtype == torch.float32
        for rows in ROWS:
            x = torch.randn(rows, 288).to(dtype).npu()
            got, want = (torch.ops.aloft.gated_matmul(x, made.weight, None, *described([p])) for p in (single, made))
            same([got], [want], f"{group}, {rows}")
