"""Where a decode step's time goes, eager and replayed, interleaved in one process (SmolLM2-135M, greedy).

    python benchmarks/decode_parts.py [--batch 1,8,32] [--tokens 48] [--rounds 3]

Medians in microseconds of the engine thread's CPU time (other programs on the machine count less than on the wall
clock). Engine and front end share the process, so nothing is spent on sockets; ``step`` is everything.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

_EDGE = 6  # steps at either end of a run: prompts, the first decode steps, the last


def timed(owner: Any, name: str, times: list[int]) -> None:
    """Replaces a method by one that notes its duration."""
    original: Callable[..., Any] = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.thread_time_ns()
        try:
            return original(*args, **kwargs)
        finally:
            times.append(time.thread_time_ns() - start)

    setattr(owner, name, call)


def instrument(llm: Any, times: dict[str, list[int]]) -> None:
    engine = llm.llm_engine
    core = engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    for label, owner, name in (
        ("step", engine, "step"),
        ("schedule", core.scheduler, "schedule"),
        ("execute", runner, "execute_model"),
        ("update batch", runner.requests, "update"),
        ("build inputs", runner.inputs, "build_decode" if runner.graphs else "build"),
        ("sample", runner, "sample_tokens"),
        ("update scheduler", core.scheduler, "update_from_output"),
        ("detokenise", engine.output_processor, "process_outputs"),
    ):
        timed(owner, name, times[label])
    step = engine.step

    def outside(*args: Any) -> Any:
        """The step without its replay, step by step: medians of parts do not add up."""
        before, start = len(times["replay"]), time.thread_time_ns()
        result = step(*args)
        spent = time.thread_time_ns() - start
        if len(times["replay"]) == before + 1:
            times["outside of the replay"].append(spent - times["replay"][-1])
        return result

    engine.step = outside
    if runner.graphs:
        find = runner.graphs.find

        def found(*args: Any, **kwargs: Any) -> Any:
            return Replayed(find(*args, **kwargs), times["replay"])

        runner.graphs.find = found


class Replayed:
    """A graph whose replays are timed."""

    def __init__(self, graph: Any, times: list[int]) -> None:
        self.graph, self.times = graph, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self.graph, name)

    def replay(self, inputs: Any) -> None:
        start = time.thread_time_ns()
        self.graph.replay(inputs)
        self.times.append(time.thread_time_ns() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    from vllm import LLM, SamplingParams

    from aloft.cli import demo_model

    settings = {
        "model": str(demo_model.ensure()),
        "max_model_len": 2048,
        "max_num_seqs": 32,
        "kv_cache_memory_bytes": 1 << 30,
        "enable_prefix_caching": False,
        "additional_config": {"num_threads": options.threads},
    }
    engines = {"replay": LLM(**settings), "eager": LLM(**settings, enforce_eager=True)}
    times: dict[str, dict[str, list[int]]] = {name: defaultdict(list) for name in engines}
    for name, llm in engines.items():
        instrument(llm, times[name])
    greedy = SamplingParams(temperature=0, max_tokens=options.tokens, ignore_eos=True)
    for batch in map(int, options.batch.split(",")):
        prompts = [{"prompt_token_ids": [(7 * i + j) % 40000 + 100 for j in range(32)]} for i in range(batch)]
        steady: dict[str, dict[str, list[int]]] = {name: defaultdict(list) for name in engines}
        tokens: set[tuple[Any, ...]] = set()
        for number in range(options.rounds + 1):
            for name, llm in engines.items():
                for values in times[name].values():
                    values.clear()
                outputs = llm.generate(prompts, greedy, use_tqdm=False)
                tokens.add(tuple(tuple(o.outputs[0].token_ids) for o in outputs))
                for label, values in times[name].items():
                    if number:  # the first round captures
                        steady[name][label] += values[_EDGE:-_EDGE]
        print(f"batch {batch} (the same tokens: {len(tokens) == 1})", flush=True)
        for name in engines:
            parts = {k: statistics.median(v) / 1000 for k, v in steady[name].items() if v}
            print(f"  {name:7}" + "  ".join(f"{label} {value:.0f}" for label, value in parts.items()))


if __name__ == "__main__":
    main()
