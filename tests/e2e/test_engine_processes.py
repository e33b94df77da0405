"""An engine in its own process: the same tokens, cores shared between engines, and nobody outlives a killed one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest
from inprocess import ENGINES

from aloft.runner import threads

SCRIPT = """
import faulthandler, json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    llm = LLM(**json.loads(sys.argv[1]))
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    while True:
        outputs = llm.generate(["hello there"], params, use_tqdm=False)
        print("TOKENS", json.dumps(list(outputs[0].outputs[0].token_ids)), flush=True)
        if not sys.stdin.readline():
            break
        faulthandler.dump_traceback_later(8)  # where it hangs, should it outlive its engine
"""
DEADLINE = 10  # seconds within which everything must be gone


@pytest.fixture(scope="module")
def pair(model, tmp_path_factory):
    """Two programs, each with an engine process of its own, started together and past their first answer."""
    script = tmp_path_factory.mktemp("script") / "serve.py"
    script.write_text(SCRIPT)
    settings = {
        "model": str(model),
        "block_size": 16,
        "max_model_len": 512,
        "max_num_seqs": 32,
        "num_gpu_blocks_override": 600,
    } | ENGINES["whole"]
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"} | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    shared = set(os.listdir("/dev/shm"))
    started = [
        subprocess.Popen(
            [sys.executable, str(script), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )
        for _ in range(2)
    ]
    answers = []
    for process in started:
        log = []
        for line in process.stdout:
            log.append(line)
            if line.startswith("TOKENS"):
                answers.append((json.loads(line.removeprefix("TOKENS ")), "".join(log)))
                break
        else:
            pytest.fail("".join(log[-60:]))
    yield started, answers
    for process in started:
        for child in children(process):
            child.kill()
        process.kill()
        process.wait()
    assert not set(os.listdir("/dev/shm")) - shared


def children(process):
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=DEADLINE)
    return not [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_the_tokens_are_those_of_an_engine_in_this_process(pair, engines):
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    (output,) = engines("whole").generate(["hello there"], params, use_tqdm=False)
    assert [tokens for tokens, _ in pair[1]] == [list(output.outputs[0].token_ids)] * 2


def test_engines_share_the_cores(pair):
    """The last to start has seen the other; both hold a name that the kernel counts."""
    assert threads.live_engines() >= 2
    share = max(1, threads.cores() // 2)
    used = [line for _, log in pair[1] for line in log.splitlines() if "host thread" in line]
    assert any(f"uses {n} host thread" in used[-1] or f"uses {n} host thread" in used[0] for n in range(1, share + 1))


def test_killing_the_program_ends_its_engine(pair):
    process = pair[0][0]
    engine = children(process)
    assert engine
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert gone(engine)


def test_killing_the_engine_ends_the_program(pair):
    process = pair[0][1]
    engine = [p for p in children(process) if "resource_tracker" not in " ".join(p.cmdline())]
    for child in engine:
        child.kill()
    try:
        output, _ = process.communicate(
            "\n", timeout=DEADLINE
        )  # one more request; what it prints is read, so that it cannot block
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"still there after {DEADLINE} s:\n{(error.stdout or b'').decode()[-6000:]}")
    assert process.returncode == 1 and "EngineDeadError" in output, output[-6000:]
