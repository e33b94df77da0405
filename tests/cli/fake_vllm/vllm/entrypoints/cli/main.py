"""Stands in for vLLM's command: a server that answers the requests `aloft serve` makes, and notes its arguments.

Environment: FAKE_LOG (a file that gets arguments, environment and process ids as JSON), FAKE_MODE: `stubborn` ignores
SIGINT and SIGTERM, `crash` exits with status 3 at once, `killed` dies by SIGKILL, `completions` has no chat template.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import shared_memory

ANSWER = ["The capital", " of France", " is Paris."]
MODE = os.environ.get("FAKE_MODE", "")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = {"data": [{"id": "fake"}]} if self.path == "/v1/models" else {}
        self._send(200, "application/json", json.dumps(body))

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chat = self.path == "/v1/chat/completions"
        if chat and MODE == "completions":
            self._send(400, "application/json", json.dumps({"error": {"message": "no chat template is defined"}}))
            return
        if request["model"] != "fake":
            self._send(404, "application/json", json.dumps({"error": {"message": "no such model"}}))
            return
        events = [{"choices": [{"delta": {"content": t}} if chat else {"text": t}]} for t in ANSWER]
        if request.get("max_tokens") == 666:
            events.append({"error": {"message": "the engine died"}})
        events.append({"choices": [], "usage": {"completion_tokens": 7}})
        self._send(200, "text/event-stream", "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n")

    def _send(self, status: int, kind: str, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    known, rest = parser.parse_known_args()
    # An "engine" that outlives the server unless it is ended.
    engine = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(120)"])
    offline = {name: os.environ.get(name) for name in ("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS")}
    note = {"model": known.model, "rest": rest, "offline": offline, "pids": [os.getpid(), engine.pid]}
    memory = shared_memory.SharedMemory(create=True, size=4096) if MODE == "stubborn" else None
    note["shared_memory"] = memory and memory.name
    with open(os.environ["FAKE_LOG"], "w") as file:
        json.dump(note, file)
    if MODE == "crash":
        print("(APIServer pid=1) ValueError: the dtype is wrong", file=sys.stderr)
        sys.exit(3)
    if MODE == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if MODE == "stubborn":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(KeyboardInterrupt):
        ThreadingHTTPServer((known.host, known.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
