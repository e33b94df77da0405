"""The OpenAI API over a real server: answers, refusals, disconnects, and how its processes end."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import tiny
from server_process import CHAT_TEMPLATE, Server, ended, interrupt, shared_memory

MAX_LEN = 256
ARGUMENTS = ("--max-model-len", str(MAX_LEN), "--max-num-seqs", "16", "--block-size", "16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tiny.make(tmp_path_factory.mktemp("served") / "tiny")
    (made / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """One server for all tests that leave it running; the last test of the module ends it."""
    running = Server(folder, *ARGUMENTS, "--no-ask")
    yield running
    running.stop()


def test_models_and_health(server: Server) -> None:
    assert server.http.get("/health").status_code == 200
    (model,) = server.http.get("/v1/models").json()["data"]
    assert model["id"] == "tiny" and model["max_model_len"] == MAX_LEN


def test_completion_is_deterministic(server: Server) -> None:
    first = server.complete(max_tokens=24, ignore_eos=True).json()
    assert first["usage"] == {
        **first["usage"],
        "prompt_tokens": 5,
        "completion_tokens": 24,
        "total_tokens": 29,
    }
    assert server.complete(max_tokens=24, ignore_eos=True).json()["choices"] == first["choices"]
    assert len(set(first["choices"][0]["text"])) > 4


def test_chat(server: Server) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 8}
    answer = server.http.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["usage"]["prompt_tokens"] == len("user: Hello\nassistant:")


def test_stream_gives_the_same_text(server: Server) -> None:
    whole = server.complete(max_tokens=32, ignore_eos=True).json()["choices"][0]["text"]
    body = {"model": "tiny", "prompt": "Hello", "max_tokens": 32, "temperature": 0, "ignore_eos": True, "stream": True}
    pieces = []
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        pieces += [choice["text"] for choice in json.loads(line[len("data: ") :])["choices"]]
    assert "".join(pieces) == whole and len(pieces) > 4


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"presence_penalty": 5}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"99999": 1.0}}, "vocab"),
        ({"allowed_token_ids": [99999]}, "vocab"),
        ({"logprobs": 10_000}, "logprobs"),
        ({"stop": [""]}, "stop"),
        ({"prompt": "x" * (MAX_LEN + 1)}, "maximum"),
        ({"prompt": [99999]}, "vocab"),
        ({"structured_outputs": {"regex": "("}}, ""),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
    ],
    ids=str,
)
def test_bad_request_is_refused_with_a_reason(server: Server, parameters: dict[str, object], word: str) -> None:
    response = server.complete(**parameters)
    assert response.status_code == 400, response.text
    assert word in response.json()["error"]["message"]
    assert server.complete().status_code == 200, "the engine goes on"


def test_other_bad_requests(server: Server) -> None:
    post = server.http.post
    assert post("/v1/completions", json={"model": "other", "prompt": "x"}).status_code == 404
    malformed = post("/v1/completions", content=b"{", headers={"Content-Type": "application/json"})
    assert malformed.status_code in (400, 422)
    assert post("/v1/chat/completions", json={"model": "tiny", "messages": "no"}).status_code in (400, 422)
    assert server.complete().status_code == 200


async def _disconnect_at_random(port: int, count: int, parallel: int) -> dict[str, int]:
    """Requests of random lengths, half of them cut off at a random moment; how many ended in which way."""
    chance = random.Random(0)
    gate = asyncio.Semaphore(parallel)
    outcomes = {"finished": 0, "cut": 0}

    async def one(client: httpx.AsyncClient, index: int) -> None:
        body = {
            "model": "tiny",
            "prompt": "a b c "[: chance.randint(1, 6)] * chance.randint(1, 12),
            "max_tokens": chance.randint(1, 24),
            "ignore_eos": True,
            "stream": chance.random() < 0.7,
            "n": chance.choice((1, 1, 1, 2)),
            "seed": index,
        }
        patience = chance.uniform(0, 0.5) if chance.random() < 0.6 else 60.0
        async with gate:
            try:
                async with asyncio.timeout(patience):
                    response = await client.post("/v1/completions", json=body)
                assert response.status_code == 200, response.text
                outcomes["finished"] += 1
            except TimeoutError:
                outcomes["cut"] += 1

    # A connection each: the server closes idle ones, and a request sent into that moment would fail for no fault.
    limits = httpx.Limits(max_connections=parallel, max_keepalive_connections=0)
    address = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits, trust_env=False) as client:
        await asyncio.gather(*(one(client, index) for index in range(count)))
    return outcomes


def test_a_thousand_requests_with_disconnects_leave_every_block_free(server: Server) -> None:
    before = server.complete(max_tokens=24, ignore_eos=True).json()["choices"]
    outcomes = asyncio.run(_disconnect_at_random(server.port, count=1000, parallel=48))
    assert outcomes["finished"] > 100 and outcomes["cut"] > 100, outcomes
    deadline = time.monotonic() + 30
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    while any(server.metric(name) for name in names) and time.monotonic() < deadline:
        server.complete(max_tokens=1)  # metrics are written when the engine steps
        time.sleep(0.2)
    assert {name: server.metric(name) for name in names} == dict.fromkeys(names, 0.0)
    assert server.complete(max_tokens=24, ignore_eos=True).json()["choices"] == before


def test_interrupt_ends_everything_in_time(server: Server) -> None:
    """Last of this server."""
    processes = server.tree()
    files = shared_memory(processes)
    assert len(processes) >= 3, "command, API server, engine"
    started = time.monotonic()
    interrupt(server)
    assert ended(processes, 5) == []
    assert time.monotonic() - started < 5
    assert server.process.wait() == 0, server.output()
    assert [file for file in files if file.exists()] == []
    # vLLM kills an engine that is still tearing down, and Python's resource tracker may then report its semaphore
    assert "nanobind" not in server.everything() and "started   in" in server.everything(), server.output()


def test_interrupt_of_vllm_serve_is_no_failure(folder: Path) -> None:
    server = Server(folder, *ARGUMENTS, wrapped=False)
    try:
        assert server.complete().status_code == 200
        processes = server.tree()
        files = shared_memory(processes)
        interrupt(server)
        assert ended(processes, 5) == [], server.output()
        assert server.process.wait() == 0, server.output()
        assert [file for file in files if file.exists()] == []
    finally:
        server.stop()


@pytest.mark.parametrize("victim", ["api server", "engine"])
def test_killed_process_takes_the_others_along(folder: Path, victim: str) -> None:
    server = Server(folder, *ARGUMENTS, wrapped=False)
    try:
        processes = server.tree()
        files = shared_memory(processes)
        engine = server.find("EngineCore")
        assert engine.pid != server.process.pid
        target = psutil.Process(server.process.pid) if victim == "api server" else engine
        target.send_signal(signal.SIGKILL)
        assert ended(processes, 10) == [], server.output()
        assert server.process.wait() == (-signal.SIGKILL if victim == "api server" else 70)
        assert [file for file in files if file.exists()] == []
    finally:
        server.stop()
