"""Sleep over a real server, whose engine is another process."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from server_process import Server


def test_endpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    folder, other = tiny.make(tmp_path / "tiny"), tiny.make(tmp_path / "other", seed=1)
    server = Server(folder, "--no-ask", "--enable-sleep-mode", "--max-model-len", "256", "--max-num-seqs", "4")
    try:
        engine = server.find("EngineCore")

        def text() -> str:
            answer = server.complete(max_tokens=16, ignore_eos=True)
            assert answer.status_code == 200, answer.text
            return answer.json()["choices"][0]["text"]

        def post(path: str, **call: object) -> dict:
            answer = server.http.post(path, **call)
            assert answer.status_code == 200, answer.text
            return answer.json() if answer.content else {}

        def sleeping() -> bool:
            return server.http.get("/is_sleeping").json()["is_sleeping"]

        want = text()
        awake = engine.memory_info().rss
        assert not sleeping()
        assert post("/sleep", params={"level": 1}) == {"status": "sleeping", "level": 1}
        assert sleeping() and engine.memory_info().rss <= awake
        assert post("/wake_up", params={"tags": ["weights"]})["status"] == "sleeping"
        assert sleeping()
        assert post("/wake_up", params={"tags": ["kv_cache"]})["status"] == "awake"
        assert not sleeping() and text() == want

        post("/sleep", params={"level": 2})
        post("/wake_up", params={"tags": ["weights"]})
        reload = {"method": "reload_weights"}
        post("/collective_rpc", json=reload)
        post("/wake_up")
        assert text() == want
        post("/collective_rpc", json=reload | {"kwargs": {"weights_path": str(other)}})
        post("/reset_prefix_cache")
        assert text() != want
        wrong = server.http.post(
            "/collective_rpc",
            json=reload | {"kwargs": {"weights_path": str(tmp_path)}},
            headers={"Connection": "close"},  # as the server does after an error of its own
        )
        assert wrong.status_code == 500
        assert server.http.post("/sleep", params={"level": 3}).status_code in (400, 422)
        assert text() and "keeps its weights" in server.everything()
    finally:
        server.stop()
