"""The real SmolLM2-135M: greedy tokens equal Hugging Face's in float32; in bfloat16 it says something sensible."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aloft.cli import demo_model

from . import zoo
from .test_greedy import Case, start, stop

TEXTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time, in a small village by the sea, there lived",
    "def fibonacci(n):\n    ",
    "The three primary colours are",
    # longer than one chunk of 64 tokens
    "Photosynthesis is the process by which green plants, algae and some bacteria turn light into chemical energy. "
    "Inside the leaf, chlorophyll absorbs mostly red and blue light, water is split, oxygen is given off, and the "
    "energy is kept in molecules that later build sugar from carbon dioxide in the air. Almost all life on Earth "
    "depends on it, directly or not, because",
)


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Case]:
    from transformers import AutoTokenizer

    folder = demo_model.ensure()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = [tokenizer(text)["input_ids"] for text in TEXTS]
    references = [zoo.greedy(folder, p) for p in prompts]
    case = Case("SmolLM2", start(folder, max_num_batched_tokens=64, num_gpu_blocks_override=120), prompts, references)
    yield case
    stop(case.engine)
    case.engine = None


def test_float32_equals_transformers(smollm2: Case) -> None:
    assert max(len(p) for p in smollm2.prompts) > 64
    smollm2.expect([smollm2.generate([p])[0] for p in smollm2.prompts])
    smollm2.expect(smollm2.generate(smollm2.prompts))


def test_bfloat16_knows_paris() -> None:
    from vllm import SamplingParams

    engine = start(
        demo_model.ensure(), dtype="bfloat16", block_size=128, skip_tokenizer_init=False, num_gpu_blocks_override=16
    )
    try:
        question = [{"role": "user", "content": "What is the capital of France?"}]
        answer = engine.chat(question, SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
        assert "Paris" in answer[0].outputs[0].text
    finally:
        stop(engine)
        del engine
