"""Scores of a model on a text, position by position, from vLLM's prompt log-probabilities."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

_BATCH = 8  # windows at a time


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
        with file.open("wb") as opened:  # by name, numpy would add a suffix
            numpy.savez_compressed(opened, **vars(self))

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
    llm: Any,
    pieces: list[list[int]],
    candidates: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
    kept: Path | None = None,
) -> Scores:
    """Runs the pieces through an engine, a few at a time.

    Args:
        llm: a ``vllm.LLM`` whose ``max_logprobs`` is at least ``candidates``.
        candidates: how many of the likeliest tokens to keep at each position (k), at least 1.
        kept: a folder for what is scored already: an interrupted run with the same folder goes on there. It is the
            caller's to name it after the model, and to remove it.
    """
    parts = []
    for start in range(0, len(pieces), _BATCH):
        batch = pieces[start : start + _BATCH]
        name = f"{start:06d}-{hashlib.sha256(repr((batch, candidates)).encode()).hexdigest()[:16]}.npz"
        file = None if kept is None else kept / name
        if file is not None and file.is_file():
            part = Scores.load(file)
        else:
            part = _batch(llm, batch, start, candidates)
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                part.save(file.with_suffix(".new.npz"))
                file.with_suffix(".new.npz").replace(file)
        parts.append(part)
        progress(min(start + _BATCH, len(pieces)), len(pieces))
    return _joined(parts)


def _joined(parts: list[Scores]) -> Scores:
    columns = {name: numpy.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])}
    return Scores(**columns)


def _batch(llm: Any, pieces: list[list[int]], first: int, candidates: int) -> Scores:
    from vllm import SamplingParams

    params = SamplingParams(
        max_tokens=1, temperature=0.0, prompt_logprobs=candidates, detokenize=False, flat_logprobs=True
    )
    outputs = llm.generate([{"prompt_token_ids": piece} for piece in pieces], params, use_tqdm=False)
    rows = [
        _piece(piece, first + index, output.prompt_logprobs, candidates)
        for index, (piece, output) in enumerate(zip(pieces, outputs, strict=True))
    ]
    return _joined([Scores(*row) for row in rows])


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
