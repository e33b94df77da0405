"""Greedy tokens of every model family equal Hugging Face's in float32, whatever the engine does on the way."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from . import zoo

CHUNK = 64  # tokens of one step: the longest prompt takes three
BLOCKS = 60  # of 16 tokens: about eight of the sequences below fit, a batch of 32 must preempt


@dataclass
class Case:
    name: str
    engine: object  # vllm.LLM
    prompts: list[list[int]]
    references: list[zoo.Reference]

    def generate(self, prompts: list[list[int]]) -> list[list[int]]:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=zoo.NEW_TOKENS, ignore_eos=True, detokenize=False)
        outputs = self.engine.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [list(o.outputs[0].token_ids) for o in outputs]

    def counter(self, name: str) -> float:
        return sum(m.value for m in self.engine.get_metrics() if m.name == f"vllm:{name}")

    def expect(self, got: list[list[int]]) -> None:
        for i, (tokens, reference) in enumerate(zip(got, self.references, strict=True)):
            assert tokens == reference.tokens, f"{self.name}, prompt {i} of {len(self.prompts[i])} tokens"


def start(folder: Path, **changes: object) -> object:
    from vllm import LLM

    settings: dict[str, object] = {
        "dtype": "float32",
        "block_size": 16,
        "max_model_len": zoo.MAX_LEN,
        "max_num_batched_tokens": CHUNK,
        "max_num_seqs": 32,
        "num_gpu_blocks_override": BLOCKS,
        "enable_prefix_caching": True,
        "skip_tokenizer_init": True,
        "disable_log_stats": False,
    }
    return LLM(str(folder), **(settings | changes))


def stop(engine: object) -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    engine.llm_engine.engine_core.shutdown()
    del engine
    gc.collect()
    cleanup_dist_env_and_memory()


@pytest.fixture(scope="module")
def zoo_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zoo")


@pytest.fixture(scope="module", params=list(zoo.FAMILIES))
def case(request: pytest.FixtureRequest, zoo_root: Path) -> Iterator[Case]:
    folder = zoo.build(request.param, zoo_root)
    prompts = zoo.prompts()
    references = [zoo.greedy(folder, p) for p in prompts]
    made = Case(request.param, start(folder), prompts, references)
    yield made
    stop(made.engine)
    made.engine = None


def test_the_references_bite(case: Case) -> None:
    zoo.check_bites(case.references)


def test_alone_chunked_and_from_the_prefix_cache(case: Case) -> None:
    """Each prompt by itself, the long one in three chunks; then again, its prefix taken from the cache."""
    case.expect([case.generate([p])[0] for p in case.prompts])
    hits = case.counter("prefix_cache_hits")
    case.expect([case.generate([p])[0] for p in case.prompts])
    assert case.counter("prefix_cache_hits") >= hits + 96, "the second pass did not use the prefix cache"


def test_in_a_batch_of_32_with_preemption(case: Case) -> None:
    filler = [p for seed in range(1, 4) for p in zoo.prompts(seed)]
    before = case.counter("num_preemptions")
    got = case.generate(case.prompts + filler)
    case.expect(got[: len(case.prompts)])
    assert case.counter("num_preemptions") > before, "the cache was not short: nothing was preempted"
    again = case.generate(filler[::-1] + case.prompts)
    case.expect(again[len(filler) :])
    assert got[len(case.prompts) :] == again[: len(filler)][::-1]


def test_no_block_is_lost(case: Case) -> None:
    usage = [m.value for m in case.engine.get_metrics() if m.name == "vllm:kv_cache_usage_perc"]
    assert usage == [0.0]
    torch.npu.synchronize()
