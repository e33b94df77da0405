"""Fused decoder layers give the bits of the layers they replace, at every level, eagerly and captured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from aloft.models import fuse
from aloft.models import level as levels
from aloft.models.layer import FusedDecoderLayer
from aloft.models.level import Fusion

from . import zoo
from .test_captured import runner_of
from .test_greedy import start, stop

#: dtype of each family's engine, and whether its layers are ones we fuse
ENGINES = {
    "llama": ("bfloat16", True),
    "qwen2": ("bfloat16", True),
    "qwen3": ("float16", True),
    "mistral": ("float16", True),
    "glm4": ("bfloat16", False),
    "llama_32": ("float32", False),
    "qwen2_w8a8-dynamic": ("bfloat16", True),
    "qwen2_w4a8": ("bfloat16", True),  # scales by group, and a bias
    "qwen3_w4a8": ("float16", True),
    "mistral_w4a16": ("bfloat16", True),
}
LEVELS = ("full", "full, layer by layer", "partial", "blocked", "none")


@pytest.fixture(scope="module", params=ENGINES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, object]]:
    root = tmp_path_factory.mktemp(request.param)
    family, _, scheme = request.param.partition("_")
    folder = zoo.build(family, root)
    if scheme.startswith("w"):
        folder = zoo.quantized(folder, scheme, root / scheme)
    engine = start(
        folder,
        dtype=ENGINES[request.param][0],
        enable_prefix_caching=False,
        compilation_config={"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 4, 8]},
        max_num_seqs=8,
    )
    yield request.param, engine
    stop(engine)


def layers_of(engine: object) -> torch.nn.ModuleList:
    return runner_of(engine).model.model.layers


def outputs(engine: object) -> list[tuple[list[int], list[dict[int, float]]]]:
    """Tokens and log-probabilities of prompts in chunks, mixed with decode steps, then captured decode steps."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=10, logprobs=5, ignore_eos=True, detokenize=False)
    done = engine.generate([{"prompt_token_ids": p} for p in zoo.prompts()], params, use_tqdm=False)
    return [
        (
            list(o.outputs[0].token_ids),
            [{token: value.logprob for token, value in step.items()} for step in o.outputs[0].logprobs],
        )
        for o in done
    ]


def test_every_level_gives_the_same_bits(case: tuple[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    name, engine = case
    if not ENGINES[name][1]:
        pytest.skip("not a layer we fuse")
    monkeypatch.setattr(levels, "BLOCK_ROWS", 24)
    layers, runner = layers_of(engine), runner_of(engine)
    fused = list(layers)
    stacks = [each._stack for each in fused]
    assert all(stack is stacks[0] is not None for stack in stacks)
    got = {}
    for level in LEVELS:
        for index, each in enumerate(fused):
            layers[index] = each._unfused[0] if level == "none" else each
            each._level = Fusion(level.split(",")[0]).level
            each._stack = None if "," in level else stacks[index]
        if runner.graphs is not None:
            runner.graphs.clear()
        got[level] = outputs(engine)
    for index, each in enumerate(fused):
        layers[index] = each
    assert not runner.graphs.refused
    for level in LEVELS[:-1]:
        assert got[level] == got["none"], f"{name}, {level}"


def test_a_fused_layer_has_the_attributes_of_the_one_it_replaced(case: tuple[str, object]) -> None:
    first = layers_of(case[1])[0]
    assert first.hidden_size == width(first)
    with pytest.raises(AttributeError, match="no_such_attribute"):
        first.no_such_attribute  # noqa: B018


def width(one: torch.nn.Module) -> int:
    return one.input_layernorm.weight.numel()


def test_exactly_the_plain_layers_are_replaced(case: tuple[str, object]) -> None:
    name, engine = case
    expected = ENGINES[name][1]
    kinds = {isinstance(each, FusedDecoderLayer) for each in layers_of(engine)}
    assert kinds == {expected}, name
    if not expected:
        return
    names = set(dict(runner_of(engine).model.named_parameters()))
    assert f"model.layers.0.mlp.down_proj.{'packed' if '_w' in name else 'weight'}" in names
    assert not any("unfused" in each for each in names)


def test_layers_quantized_in_their_own_ways_are_left_alone(case: tuple[str, object]) -> None:
    name, engine = case
    if name != "mistral_w4a16":
        pytest.skip("weights in activation order")
    layers = [each._unfused[0] for each in layers_of(engine)]
    ordered = layers[1].self_attn.o_proj
    ordered.order = torch.arange(ordered.input_size).npu()
    plain = torch.nn.ModuleList(layers)
    try:
        fuse(plain, "auto")
    finally:
        del ordered.order
    assert [isinstance(each, FusedDecoderLayer) for each in plain] == [True, False, True]


def test_scales_of_fused_layers_take_four_bytes(case: tuple[str, object]) -> None:
    name, engine = case
    if not name.endswith("_w4a8"):
        pytest.skip("other scales are narrow as they come")
    layers = [each._unfused[0] for each in layers_of(engine)]
    linears = [linear for each in layers for linear in (each.self_attn.qkv_proj, each.mlp.down_proj)]
    kept = [linear.scale.clone() for linear in linears]
    assert {scale.dtype for scale in kept} == {torch.float32}
    assert not any(tensor.dtype == torch.int64 for each in layers for tensor in each.parameters())
    fuse(torch.nn.ModuleList(layers), "auto")
    assert all(torch.equal(scale, linear.scale) for scale, linear in zip(kept, linears, strict=True))


def broken(kind: str, engine: object) -> tuple[object, str, object]:
    """(object, attribute, value) of something that makes a layer another one than we know."""
    one = layers_of(engine)[0]._unfused[0]
    return {
        "rank": (one.mlp.down_proj, "tp_size", 2),
        "packed": (one.self_attn.qkv_proj, "aloft_packed", False),
        "norm": (one.input_layernorm, "variance_size_override", 8),
        "activation": (one.mlp.act_fn, "_forward_method", one.mlp.act_fn.forward_native),
        "cache": (one.self_attn.attn.impl, "cache_scales", (1, 1)),
        "sharing": (one.self_attn.attn.impl, "kv_sharing_target_layer_name", "other"),
        "method": (one.self_attn.o_proj, "quant_method", object()),
    }[kind]


@pytest.mark.parametrize("kind", ["rank", "packed", "norm", "activation", "cache", "sharing", "method"])
def test_an_unusual_layer_is_left_alone(case: tuple[str, object], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, engine = case
    if name != "llama":
        pytest.skip("one model is enough")
    monkeypatch.setattr(*broken(kind, engine))
    plain = torch.nn.ModuleList([each._unfused[0] for each in layers_of(engine)])
    fuse(plain, "auto")
    assert [isinstance(each, FusedDecoderLayer) for each in plain] == [False, True, True]


def test_level_by_length() -> None:
    auto = Fusion("auto").level
    assert [auto(n) for n in (1, 512, 513, 2048, 2049)] == ["full", "full", "partial", "partial", "blocked"]
    assert Fusion("partial").level(1) == "partial"
    assert Fusion("blocked").level(1) == "blocked"
    assert {each: levels.block_rows(each) for each in ("full", "partial", "blocked")} == {
        "full": (0, 0),
        "partial": (0, levels.BLOCK_ROWS),
        "blocked": (levels.BLOCK_ROWS, levels.BLOCK_ROWS),
    }
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
    assert fuse(model, "none") is model
    assert type(fuse(model, "full")[0]) is torch.nn.Linear
