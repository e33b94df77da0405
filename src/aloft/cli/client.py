"""Talking to a running server over the OpenAI API."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from aloft.cli.errors import UserError

Message = dict[str, str]


@dataclass
class Answer:
    """One streamed answer; fields grow while `Client.stream` is read."""

    text: str = ""
    num_tokens: int = 0
    # Seconds from sending the request to the first and to the last piece.
    first_s: float = 0.0
    total_s: float = 0.0
    pieces: int = field(default=0, repr=False)

    def tokens_per_second(self) -> float:
        """Generation speed after the first token; of the whole answer where there is only one piece."""
        if self.num_tokens > 1 and self.total_s > self.first_s:
            return (self.num_tokens - 1) / (self.total_s - self.first_s)
        return self.num_tokens / self.total_s if self.total_s else 0.0


class Client:
    """A server at `http://host:port`."""

    def __init__(self, host: str, port: int, timeout_s: float = 300.0) -> None:
        # "Every address" is none to connect to.
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        self.base = f"http://{shown}:{port}"
        # trust_env off: a proxy of the environment has no business between a user and the own machine.
        self._http = httpx.Client(base_url=self.base, timeout=timeout_s, trust_env=False)

    def healthy(self) -> bool:
        """Whether /health answers 200 now."""
        try:
            return self._http.get("/health", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def model(self) -> str:
        """Name of the first model the server lists."""
        try:
            response = self._http.get("/v1/models")
            response.raise_for_status()
            return response.json()["data"][0]["id"]
        except (httpx.HTTPError, ValueError, LookupError) as error:
            raise UserError(f"No server answers at {self.base}; start one with `make serve` ({error}).") from error

    def stream(self, model: str, messages: list[Message], answer: Answer, **parameters: Any) -> Iterator[str]:
        """Yield the pieces of an answer to a chat; `answer` gathers text and times.

        A model without a chat template is asked for a plain completion of the last message.
        """
        body = {"model": model, "messages": messages, **parameters}
        started = time.perf_counter()
        for path, payload in (
            ("/v1/chat/completions", body),
            ("/v1/completions", {"model": model, "prompt": messages[-1]["content"], **parameters}),
        ):
            payload = {**payload, "stream": True, "stream_options": {"include_usage": True}}
            with self._http.stream("POST", path, json=payload) as response:
                if response.status_code != 200:
                    reason = response.read().decode(errors="replace")
                    if response.status_code == 400 and path.startswith("/v1/chat") and "template" in reason:
                        continue
                    raise UserError(f"The server refused the question (HTTP {response.status_code}): {reason}")
                yield from _pieces(response.iter_lines(), answer, started)
                return

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def _pieces(lines: Iterator[str], answer: Answer, started: float) -> Iterator[str]:
    for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line[len("data: ") :])
        if "error" in event:
            raise UserError(f"The server ended the answer: {event['error'].get('message', event['error'])}")
        if usage := event.get("usage"):
            answer.num_tokens = usage["completion_tokens"]
        for choice in event.get("choices", []):
            text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            if text:
                answer.total_s = time.perf_counter() - started
                answer.first_s = answer.first_s or answer.total_s
                answer.pieces += 1
                answer.text += text
                yield text
