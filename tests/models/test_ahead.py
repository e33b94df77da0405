"""Steps that begin before the engine asks for them change no token, whatever the engine asks for instead."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from torch_npu import npu

from aloft.runner.ahead import StepAhead
from aloft.runtime import beside

from . import zoo
from .test_captured import check_within_another_stream, runner_of
from .test_greedy import start, stop


@pytest.fixture(scope="module", params=["llama", "mistral"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    if not beside.available():
        pytest.skip("needs inline streams and two threads")
    folder = zoo.build(request.param, tmp_path_factory.mktemp(request.param))
    made = start(folder, dtype="bfloat16", max_num_seqs=6, num_gpu_blocks_override=40)
    yield made
    stop(made)


class Counted:
    """What became of the steps that were begun."""

    def __init__(self, ahead: StepAhead) -> None:
        self.ahead, self.begun, self.finished, self.given_up = ahead, 0, 0, 0

    @property
    def running(self) -> bool:
        return self.ahead.running

    def begin(self, *args: object) -> None:
        self.ahead.begin(*args)
        self.begun += self.ahead.running

    def finish(self) -> None:
        self.finished += 1
        self.ahead.finish()

    def give_up(self) -> None:
        self.given_up += self.ahead.running
        self.ahead.give_up()


def work(engine: object, seed: int) -> dict[str, tuple[list[int], str | None]]:
    """Requests of all kinds that come, end and are aborted at random steps: their tokens, and why they ended."""
    from vllm import SamplingParams

    draw, llm = random.Random(seed), engine.llm_engine
    npu.manual_seed(seed)
    assert engine.reset_prefix_cache()
    made: dict[str, tuple[list[int], str | None]] = {}
    prompts, next_id = zoo.prompts(seed), 0
    for _ in range(400):
        if next_id < 14 and (draw.random() < 0.08 or not llm.has_unfinished_requests()):
            kind = draw.choice(
                (
                    {"temperature": 0.0},
                    {"temperature": 0.0},
                    {"temperature": 1.0, "seed": next_id},
                    {"temperature": 1.0},
                )
            )
            stops = draw.sample(range(zoo.VOCAB), draw.choice((0, 0, 60)))
            params = SamplingParams(
                **kind, max_tokens=draw.randrange(1, 50), stop_token_ids=stops, ignore_eos=True, detokenize=False
            )
            prompt = prompts[draw.randrange(len(prompts))]
            llm.add_request(f"{seed}-{next_id}", {"prompt_token_ids": prompt}, params)
            next_id += 1
        if draw.random() < 0.02 and next_id:
            llm.abort_request([f"{seed}-{draw.randrange(next_id)}"])
        for output in llm.step():
            made[output.request_id] = list(output.outputs[0].token_ids), output.outputs[0].finish_reason
        if next_id == 14 and not llm.has_unfinished_requests():
            return made
    raise AssertionError("the requests do not end")


@pytest.mark.parametrize("seed", range(3))
def test_the_same_tokens(engine: object, seed: int) -> None:
    runner = runner_of(engine)
    ahead = runner.ahead
    assert ahead is not None
    runner.ahead = None
    expected = work(engine, seed)
    counted = runner.ahead = Counted(ahead)
    try:
        got = work(engine, seed)
    finally:
        runner.ahead = ahead
    assert got == expected
    assert counted.finished > 20 and counted.given_up > 0
    assert counted.begun == counted.finished + counted.given_up + ahead.running
    assert counted.given_up < counted.begun / 4, "ends are foreseen"


def test_an_end_that_is_foreseen_begins_nothing(engine: object) -> None:
    """By length, and by a stop token."""
    from vllm import SamplingParams

    llm, runner = engine.llm_engine, runner_of(engine)
    ahead, prompt = runner.ahead, zoo.prompts(5)[1]

    def run(name: str, **settings: object) -> tuple[list[int], Counted]:
        counted = runner.ahead = Counted(ahead)
        params = SamplingParams(temperature=0.0, ignore_eos=True, detokenize=False, **settings)
        llm.add_request(name, {"prompt_token_ids": prompt}, params)
        tokens: list[int] = []
        while llm.has_unfinished_requests():
            for output in llm.step():
                tokens = list(output.outputs[0].token_ids)
        runner.ahead = ahead
        return tokens, counted

    tokens, counted = run("whole", max_tokens=12)
    assert len(tokens) == 12 and counted.begun == counted.finished > 3 and not ahead.running
    stop_at = next(i for i in range(4, 12) if tokens[i] not in tokens[:i])
    less, counted = run("less", max_tokens=12, stop_token_ids=[tokens[stop_at]])
    assert less == tokens[: stop_at + 1] and counted.begun == counted.finished and not ahead.running


def test_what_is_given_up_by_the_end_of_the_work(engine: object) -> None:
    """The engine may be idle, reset, or asked for something else while a step nobody wants runs."""
    from vllm import SamplingParams

    llm, runner = engine.llm_engine, runner_of(engine)
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, detokenize=False)
    for turn in range(4):
        llm.add_request(f"aborted {turn}", {"prompt_token_ids": zoo.prompts(7)[turn]}, params)
        for _ in range(9 + turn):
            llm.step()
        assert runner.ahead.running or turn  # at least the first
        llm.abort_request([f"aborted {turn}"])
        while llm.has_unfinished_requests():
            llm.step()
        assert engine.reset_prefix_cache()
        expected = zoo.prompts(7)[4]
        first = engine.generate([{"prompt_token_ids": expected}], params, use_tqdm=False)
        assert engine.reset_prefix_cache()
        again = engine.generate([{"prompt_token_ids": expected}], params, use_tqdm=False)
        assert first[0].outputs[0].token_ids == again[0].outputs[0].token_ids


@pytest.mark.parametrize("way", ["apply_model", "rpc with a reference of its own", "the runner's model"])
def test_weights_changed_between_steps(engine: object, way: str) -> None:
    """The next token is computed with the new ones, though its step had begun."""
    from vllm import SamplingParams

    llm, runner = engine.llm_engine, runner_of(engine)
    ahead, params = runner.ahead, SamplingParams(temperature=0.0, max_tokens=14, ignore_eos=True, detokenize=False)
    weight = runner.model.model.norm.weight.data

    def negate(model: object) -> None:
        model.model.norm.weight.data.neg_()

    def change() -> None:
        if way == "apply_model":
            engine.apply_model(negate)
        elif way == "the runner's model":
            negate(runner.model)
        else:
            engine.collective_rpc(lambda worker: weight.neg_())

    def run(name: str) -> list[int]:
        assert engine.reset_prefix_cache()
        llm.add_request(name, {"prompt_token_ids": zoo.prompts(3)[0]}, params)
        tokens: list[int] = []
        while llm.has_unfinished_requests():
            for output in llm.step():
                tokens = list(output.outputs[0].token_ids)
            if len(tokens) in (6, 10):
                began.append(runner.ahead is not None and runner.ahead.running)
                change()
        return tokens

    began: list[bool] = []
    runner.ahead = None
    expected = run("without")
    runner.ahead = ahead
    assert run("with") == expected
    assert any(began[2:])


def test_numbers_drawn_between_steps(engine: object) -> None:
    """By the user's program from the generator that sampling without a seed draws from: all get what they would get if
    no step began before it is asked for."""
    from vllm import SamplingParams

    llm, runner = engine.llm_engine, runner_of(engine)
    ahead, params = runner.ahead, SamplingParams(temperature=1.0, max_tokens=40, ignore_eos=True, detokenize=False)

    def run() -> list[object]:
        npu.manual_seed(5)
        assert engine.reset_prefix_cache()
        for i in range(2):
            llm.add_request(f"{runner.ahead is None} {i}", {"prompt_token_ids": zoo.prompts(3)[i]}, params)
        made: list[object] = []
        while llm.has_unfinished_requests():
            made.append([list(output.outputs[0].token_ids) for output in llm.step()])
            began.append(runner.ahead is not None and runner.ahead.running)
            if len(made) % 5 == 0:
                made.append(torch.rand(1, device="npu").item())
            if len(made) % 17 == 0:
                npu.manual_seed(len(made))
        return made

    began: list[bool] = []
    runner.ahead = None
    expected = run()
    runner.ahead = ahead
    assert run() == expected
    assert sum(began) > 20


def test_within_another_stream(engine: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is begun there is of the stream that finish() waits for."""
    runner, replay, right = runner_of(engine), beside.replay, []

    def noting(graph: npu.NPUGraph) -> int:
        right.append(npu.current_stream() == runner.stream)
        return replay(graph)

    monkeypatch.setattr(beside, "replay", noting)
    check_within_another_stream(engine)
    assert len(right) > 20 and all(right)
