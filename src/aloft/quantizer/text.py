"""Calibration tokens from a text file."""

from __future__ import annotations

import random
from pathlib import Path

import torch


def windows(file: Path, model: Path, count: int, length: int, seed: int) -> torch.Tensor:
    """``count`` windows of ``length`` tokens at places drawn by the seed, int64 ``[count, length]``.

    Raises:
        ValueError: the file is missing, or too short for one window.
    """
    from transformers import AutoTokenizer

    if not file.is_file():
        raise ValueError(f"--calib {file} is not a file")
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokens: list[int] = tokenizer(file.read_text(encoding="utf-8", errors="replace"), verbose=False)["input_ids"]
    available = len(tokens) // length
    if available == 0:
        raise ValueError(f"--calib {file} has {len(tokens)} tokens; at least {length} are needed")
    chosen = sorted(random.Random(seed).sample(range(available), min(count, available)))
    return torch.tensor([tokens[place * length : (place + 1) * length] for place in chosen])
