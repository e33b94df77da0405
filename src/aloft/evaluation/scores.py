"""Scores of a model on a text, position by position, from vLLM's prompt log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy


@dataclass(frozen=True)
class Scores:
    """One row a predicted token, in text order.

    loss: float64 ``[n]``, negative log-probability in nats. hit: bool ``[n]``, whether the token was the model's first
    choice. window: int32 ``[n]``. ids, logs: int32 and float32 ``[n, k]``, the k likeliest tokens and their
    log-probabilities.
    """

    loss: numpy.ndarray
    hit: numpy.ndarray
    window: numpy.ndarray
    ids: numpy.ndarray
    logs: numpy.ndarray

    def save(self, file: Path) -> None:
        numpy.savez_compressed(file, **vars(self))

    @classmethod
    def load(cls, file: Path) -> Scores:
        """Raises ValueError: the file holds no scores."""
        try:
            with numpy.load(file, allow_pickle=False) as held:
                return cls(**{name: held[name] for name in ("loss", "hit", "window", "ids", "logs")})
        except (OSError, KeyError, ValueError) as error:
            raise ValueError(f"{file} holds no scores of aloft eval: {error}") from error


def windows(tokens: list[int], length: int, limit: int) -> list[list[int]]:
    """The text in pieces of ``length`` tokens, ``limit`` predicted tokens at most (0: all). The first of a piece has no
    score.

    Raises:
        ValueError: the text is shorter than a piece.
    """
    pieces = [tokens[start : start + length] for start in range(0, len(tokens) - length + 1, length)]
    if not pieces:
        raise ValueError(f"--text has {len(tokens)} tokens; a window needs {length} (--window)")
    if limit:
        pieces = pieces[: -(-limit // (length - 1))]
    return pieces


def score(
    llm: Any, pieces: list[list[int]], candidates: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> Scores:
    """Runs the pieces through an engine, a few at a time.

    Args:
        llm: a ``vllm.LLM`` whose ``max_logprobs`` is at least ``candidates``.
        candidates: how many of the likeliest tokens to keep at each position (k), at least 1.
    """
    parts = []
    for index, found in enumerate(_prompt_logprobs(llm, pieces, candidates)):
        parts.append(_piece(pieces[index], index, found, candidates))
        progress(index + 1, len(pieces))
    loss, hit, window, ids, logs = (numpy.concatenate(column) for column in zip(*parts, strict=True))
    return Scores(loss, hit, window, ids, logs)


def _prompt_logprobs(llm: Any, pieces: list[list[int]], candidates: int, batch: int = 8) -> Iterator[Any]:
    from vllm import SamplingParams

    params = SamplingParams(
        max_tokens=1, temperature=0.0, prompt_logprobs=candidates, detokenize=False, flat_logprobs=True
    )
    for start in range(0, len(pieces), batch):
        prompts = [{"prompt_token_ids": piece} for piece in pieces[start : start + batch]]
        for output in llm.generate(prompts, params, use_tqdm=False):
            yield output.prompt_logprobs


def _piece(piece: list[int], index: int, found: Any, candidates: int) -> tuple[numpy.ndarray, ...]:
    """found: vLLM's FlatLogprobs; at each position the token itself, then the candidates in order."""
    width = candidates + 1
    token_ids = numpy.asarray(found.token_ids, dtype=numpy.int32).reshape(-1, width)
    values = numpy.asarray(found.logprobs, dtype=numpy.float32).reshape(-1, width)
    assert len(token_ids) == len(piece) - 1 and (token_ids[:, 0] == piece[1:]).all()
    return (
        -values[:, 0].astype(numpy.float64),
        token_ids[:, 1] == token_ids[:, 0],
        numpy.full(len(values), index, dtype=numpy.int32),
        token_ids[:, 1:],
        values[:, 1:],
    )
