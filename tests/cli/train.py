"""A training script without a word of aloft: autograd, mixed precision, checkpoint and resume; `npu` against `cpu`."""

from __future__ import annotations

import io
import sys

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.layers = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Dropout(0.0), nn.Linear(48, 64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        hidden = self.norm(hidden + self.attention(hidden, hidden, hidden, need_weights=False)[0])
        return self.layers(hidden)


def batch(step: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, 64, (8, 17), generator=torch.Generator().manual_seed(step))
    # The next token follows from this one, so that there is something to learn.
    tokens = (tokens[:, :1] + torch.arange(17)) % 64
    return tokens[:, :-1].to(device), tokens[:, 1:].to(device)


def train(
    device: str, steps: int, mixed: bool, checkpoint: dict | None = None, first: int = 0
) -> tuple[list[float], dict]:
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, enabled=mixed and device != "cpu")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    if checkpoint:
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        schedule.load_state_dict(checkpoint["schedule"])
    losses = []
    for step in range(first, first + steps):
        tokens, targets = batch(step, device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=mixed):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        losses.append(loss.item())
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    return losses, state


def main() -> None:
    device = sys.argv[1]
    assert torch.empty(1, device=device).device.type == device
    reference, _ = train("cpu", 30, mixed=False)
    plain, _ = train(device, 30, mixed=False)
    worst = max(abs(a - b) for a, b in zip(plain, reference, strict=True))
    print(f"float32: {plain[0]:.4f} -> {plain[-1]:.4f}, worst difference from cpu {worst:.1e}")
    assert plain[-1] < 0.3 * plain[0] and worst < 2e-2

    mixed, _ = train(device, 30, mixed=True)
    print(f"mixed: {mixed[0]:.4f} -> {mixed[-1]:.4f}")
    assert mixed[-1] < 0.4 * mixed[0] and abs(mixed[0] - plain[0]) < 0.05

    half, state = train(device, 15, mixed=False)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert loaded["model"]["norm.weight"].device.type == device
    file.seek(0)
    moved = torch.load(file, weights_only=True, map_location="cpu")
    assert moved["model"]["norm.weight"].device.type == "cpu"
    rest, _ = train(device, 15, mixed=False, checkpoint=loaded, first=15)
    assert half + rest == plain, "a resumed run repeats the uninterrupted one"
    print("resumed run is identical")


if __name__ == "__main__":
    main()
