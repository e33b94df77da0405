"""A GGUF file over HTTP: chat with the tokenizer and the template the file holds, by the name it was given."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from server_process import Server

sys.path.append(str(Path(__file__).parents[1] / "quantization"))
import gguf_qwen

ARGUMENTS = ("--max-model-len", "256", "--max-num-seqs", "4", "--block-size", "16")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("served") / "tiny-qwen3.gguf"
    gguf_qwen.write(gguf_qwen.make("qwen3", True), made, "Q8_0")
    return made


def test_chat(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    server = Server(file, *ARGUMENTS, "--quantization", "gguf", name="")
    try:
        (model,) = server.http.get("/v1/models").json()["data"]
        assert model["id"] == str(file)
        body = {"model": str(file), "messages": [{"role": "user", "content": "the"}], "temperature": 0}
        answer = server.http.post("/v1/chat/completions", json=body | {"max_tokens": 8}).json()
        # the merged token "th" counts once, in the message
        assert answer["usage"]["prompt_tokens"] == len("user: the\nassistant:") - 1
        assert answer["usage"]["completion_tokens"] <= 8 and answer["choices"][0]["message"]["role"] == "assistant"
        bare = server.http.post("/v1/completions", json={"model": "tiny-qwen3.gguf", "prompt": "a"})
        assert bare.status_code == 404
    finally:
        server.stop()
