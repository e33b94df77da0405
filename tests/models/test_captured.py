"""A captured decode step gives bit for bit what the eager step gives, in every way lengths can reach it.

Every replay of these engines is preceded by the same step run eagerly, and the logits are compared exactly. The work
makes batches of all sizes, on the ladder and between, that shrink, grow, mix with prompts, preempt and abort.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from aloft.ops import draw as draw_ops
from aloft.runner import draw, kv

from . import zoo
from .test_greedy import start, stop

SIZES = [1, 2, 4, 6]
#: dtype and scheduling of each family's engine, and the window of 8-bit keys; all dtypes meet a sliding window or a
#: soft spot of the fused operator
ENGINES = {
    "llama": ("bfloat16", True),
    "qwen2": ("bfloat16", False),
    "qwen3": ("float16", True),
    "mistral": ("bfloat16", True),
    "glm4": ("bfloat16", False),
    "gemma3": ("bfloat16", True),
    "opt": ("float32", True),
    "gemma3_32": ("float32", False),
    "llama_fp8": ("bfloat16", True, 0),
    "gemma3_fp8": ("float32", False, 11),
    "mistral_fp8": ("float16", True, 9),
}


class Compared:
    """Runs every captured step eagerly first."""

    def __init__(self, runner: object) -> None:
        self.runner, self.replay = runner, runner._replay
        self.rows: list[int] = []
        self.wrong: list[str] = []
        self.went_on = self.drawn = 0
        runner._replay = self

    @torch.inference_mode()
    def __call__(self, step: object, graph: object, again: object = None) -> object:
        runner = self.runner
        count = runner.batch.num_reqs
        if again is not None:  # the batch lags behind
            runner.requests.sampled.catch_up()
            data = step.scheduled_cached_reqs  # in the scheduler's order
            for req_id, computed in zip(data.req_ids, data.num_computed_tokens, strict=True):
                runner.batch.num_computed_tokens_cpu[runner.batch.req_id_to_index[req_id]] = computed
            self.went_on += 1
        eager = runner._eager(step)
        hidden = eager.hidden_states.clone()
        executed = self.replay(step, graph, again)
        self.rows.append(count)
        if not torch.equal(hidden.cpu(), executed.hidden_states[:count].cpu()):
            self.wrong.append(f"hidden states of {count} rows")
        if executed.logits is not None:
            logits = runner._logits(hidden)
            if not torch.equal(logits.cpu(), executed.logits[:count].cpu()):
                self.wrong.append(f"logits of {count} rows")
            if graph.tokens is not None and not torch.equal(executed.tokens.cpu()[:, 0], self.sampled(graph, logits)):
                self.wrong.append(f"tokens of {count} rows")
        return executed

    def sampled(self, graph: object, logits: torch.Tensor) -> torch.Tensor:
        """The tokens of logits ``[B, V]``, one operator after the other."""
        greedy = logits.argmax(-1).cpu()
        random = graph.stage and graph.stage.random
        if random is None:
            return greedy.int()
        self.drawn += 1
        rows, vocabulary = logits.shape
        seeded = self.runner.batch.generators
        assert seeded and all(random.draws[row, 2] == 0 for row in seeded)
        draws, temperature, top_k, top_p = (
            torch.from_numpy(values[:rows].copy()).npu()
            for values in (random.draws, random.temperature, random.top_k, random.top_p)
        )
        scaled = logits.float() / torch.where(temperature > 0, temperature, 1).unsqueeze(1)
        probs = torch.ops.npu.npu_top_k_top_p(scaled, top_p, top_k).softmax(-1)
        drawn = draw_ops.tokens(probs, None, draw_ops.uniform(draws), draw.pieces(vocabulary))
        return torch.where(temperature.cpu() > 0, drawn.cpu(), greedy).int()


def engine_of(folder: Path, dtype: str, asynchronous: bool, window: int | None = None) -> object:
    config = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": SIZES}
    return start(
        folder,
        dtype=dtype,
        additional_config={"pipeline_depth": 2 if asynchronous else 1, "kv_fp8_window": window or 0},
        kv_cache_dtype="auto" if window is None else "fp8",
        compilation_config=config,
        max_num_seqs=7,
        num_gpu_blocks_override=(60 if "gemma" in str(folder) else 30) * (3 if window else 1),
    )


@pytest.fixture(scope="module", params=ENGINES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, object]]:
    folder = zoo.build(request.param.split("_")[0], tmp_path_factory.mktemp(request.param))
    engine = engine_of(folder, *ENGINES[request.param])
    if request.param == "opt":  # no model here caps its scores
        for layer in kv.attention_layers(runner_of(engine).vllm_config).values():
            layer.impl.soft_cap = 3.0
    yield request.param, engine
    stop(engine)


def runner_of(engine: object) -> object:
    return engine.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def work(engine: object) -> None:
    """Requests that come, end, are preempted and aborted at different times."""
    from vllm import SamplingParams

    llm, prompts = engine.llm_engine, zoo.prompts()
    for i, prompt in enumerate(prompts[:6] + prompts[-1:]):
        kind = {"temperature": 1.0, "seed": i} if i in (0, 3) else {"temperature": 0.0}
        params = SamplingParams(**kind, max_tokens=8 + 5 * i, ignore_eos=True, detokenize=False)
        llm.add_request(f"{i}", {"prompt_token_ids": prompt}, params)
        if i == 3:
            for _ in range(5):
                llm.step()
    greedy = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, detokenize=False)
    for count in range(200):
        if not llm.has_unfinished_requests():
            break
        llm.step()
        if count == 20:
            llm.abort_request(["5"])
            llm.add_request("late", {"prompt_token_ids": prompts[4]}, greedy)
    else:
        raise AssertionError("the requests do not end")


@pytest.mark.parametrize("lengths", ["device", "host"])
def test_replay_is_eager_bit_for_bit(case: tuple[str, object], lengths: str) -> None:
    from aloft.attention import captured

    name, engine = case
    if "fp8" in name and lengths == "host":
        pytest.skip("the operator reads the lengths itself")
    runner = runner_of(engine)
    runner.graphs.clear()
    runner.graphs.attention = captured.chosen(lengths)
    compared = Compared(runner)
    try:
        work(engine)
    finally:
        runner._replay = compared.replay
    assert not compared.wrong, f"{name}: {compared.wrong[:5]}, {len(compared.wrong)} in all"
    assert not runner.graphs.refused
    streams = os.environ.get("ALOFT_STREAMS", "inline")
    assert compared.went_on > 3 or streams != "inline", "steps whose inputs are advanced in place"
    assert {1, 2, 3, 4, 5} <= set(compared.rows), compared.rows
    assert compared.drawn > 3 or streams != "inline", "tokens drawn inside the graph"
    assert {size for size, *_ in runner.graphs.graphs} == set(SIZES) - {6} | {6} & {size_of(n) for n in compared.rows}
    assert {greedy for _, greedy, *_ in runner.graphs.graphs} == {True, False}


def test_within_another_stream(case: tuple[str, object]) -> None:
    """An engine is stepped from within whatever stream and device the user's program has selected, busy or not."""
    name, engine = case
    if name not in ("llama", "mistral", "qwen2"):
        pytest.skip("three are enough")
    check_within_another_stream(engine)


def check_within_another_stream(engine: object) -> None:
    from torch_npu import npu
    from vllm import SamplingParams

    llm, prompts = engine.llm_engine, zoo.prompts(4)
    greedy = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, detokenize=False)
    side, ones = npu.Stream(), torch.ones(600, 600, device="npu")

    def run(within: bool) -> dict[str, list[int]]:
        assert engine.reset_prefix_cache()
        made: dict[str, list[int]] = {}
        for i in range(3):
            llm.add_request(f"{within} {i}", {"prompt_token_ids": prompts[i]}, greedy)
        steps = 0
        while llm.has_unfinished_requests():
            steps += 1
            with npu.stream(side if within and steps % 4 else None):
                busy = ones @ ones if within else None
                if within and steps % 5 == 0 and npu.device_count() > 1:
                    with npu.device(1):
                        outputs = llm.step()
                else:
                    outputs = llm.step()
                assert busy is None or steps % 6 or busy[0, -1].item() == 600
            for output in outputs:
                made[output.request_id[-1]] = list(output.outputs[0].token_ids)
        return made

    assert run(True) == run(False)


def size_of(rows: int) -> int:
    return next((size for size in SIZES if size >= rows), 0)


@pytest.mark.parametrize("mode", ["async", "fuzz"])
def test_the_same_on_streams_with_threads(mode: str) -> None:
    if os.environ.get("ALOFT_STREAMS", "inline") != "inline":
        pytest.skip("this is that run")
    env = os.environ | {"ALOFT_STREAMS": mode, "ALOFT_CONTRACT": "strict"}
    tests = f"{Path(__file__).parent.name}/{Path(__file__).name}"
    chosen = "llama or gemma3_32" if mode == "fuzz" else "mistral"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", tests, "-k", chosen]
    done = subprocess.run(
        command, env=env, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-4000:]
