"""``fusion_level`` as users set it: long steps take the level meant, every level gives the same bits."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aloft.models import level as levels

from . import zoo
from .test_greedy import start, stop

LENGTHS = (40, 600, 2100)
NEW_TOKENS = 3
CHOSEN = {40: "full", 600: "partial", 2100: "blocked"}  # by `auto`
SETTINGS = ("none", "full", "partial", "blocked", "auto")
Answer = tuple[list[int], list[dict[int, float]]]


class Issued(TorchDispatchMode):
    """The fused operators that are called: of ``decoder_stack`` tokens and block sizes, of others the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.stacks: list[tuple[int, tuple[int, ...]]] = []
        self.others: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aloft::")
        if name == "decoder_stack":
            given = dict(zip((each.name for each in func._schema.arguments), args, strict=False))
            self.stacks.append((args[0].shape[0], tuple(given["block_rows"])))
        elif name in ("attention_input", "mlp_block"):
            self.others.append(args[0].shape[0])
        return func(*args, **(kwargs or {}))


def prompt(length: int) -> list[int]:
    return torch.randint(3, zoo.VOCAB, (length,), generator=torch.Generator().manual_seed(length)).tolist()


def answer(engine: object, length: int) -> tuple[Answer, Issued]:
    """Tokens and log-probabilities behind a prompt that one step takes, and what the engine called for them."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, logprobs=5, ignore_eos=True, detokenize=False)
    with Issued() as issued:
        (done,) = engine.generate([{"prompt_token_ids": prompt(length)}], params, use_tqdm=False)
    (made,) = done.outputs
    return (list(made.token_ids), [{i: at.logprob for i, at in step.items()} for step in made.logprobs]), issued


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zoo's Llama, whose rotary embedding goes as far as anybody likes."""
    made = zoo.build("llama", tmp_path_factory.mktemp("levels"))
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return made


@pytest.fixture(scope="module")
def run(folder: Path) -> Callable[[str], dict[int, tuple[Answer, Issued]]]:
    """run(setting) is what an engine with it answered, by length of the prompt."""

    @functools.cache
    def run(setting: str) -> dict[int, tuple[Answer, Issued]]:
        engine = start(
            folder,
            dtype="bfloat16",
            max_model_len=2200,
            max_num_batched_tokens=2304,
            max_num_seqs=2,
            num_gpu_blocks_override=200,
            enable_prefix_caching=False,
            additional_config={"fusion_level": setting},
        )
        try:
            return {length: answer(engine, length) for length in LENGTHS}
        finally:
            stop(engine)

    return run


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_setting_is_the_level_and_the_bits_are_the_same(
    run: Callable[[str], dict[int, tuple[Answer, Issued]]], setting: str
) -> None:
    plain = run("none")
    for length, (got, issued) in run(setting).items():
        if setting == "none":
            assert issued.stacks == [] and issued.others == [], "layers as vLLM wrote them"
            continue
        level = CHOSEN[length] if setting == "auto" else setting
        assert issued.stacks == [(length, levels.block_rows(level))], "one step, all layers in one call"
        assert set(issued.others) <= {1}, "captured steps of one token"
        assert got == plain[length][0], f"{length} tokens"


def test_the_answers_bite(run: Callable[[str], dict[int, tuple[Answer, Issued]]]) -> None:
    answers = [got for got, _ in run("none").values()]
    assert all(len(tokens) == NEW_TOKENS and all(len(at) >= 5 for at in chances) for tokens, chances in answers)
    assert len({tuple(tokens) for tokens, _ in answers}) == len(LENGTHS), "prompts that cannot be told apart"
