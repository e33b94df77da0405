"""Training on the virtual NPU takes the steps that the CPU takes."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.rnn = nn.LSTM(16, 16, batch_first=True)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.conv = nn.Conv1d(16, 8, 3, padding=1, bias=False)  # a bias before the norm has no gradient but noise
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.block(self.rnn(self.embed(tokens))[0])
        return self.head(self.norm(self.conv(x.transpose(1, 2))).transpose(1, 2))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "adam_single": lambda p: torch.optim.Adam(p, 0.01, foreach=False, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> float:
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_and_weights_follow_the_cpu(name: str) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 20, (4, 9))
    model = Tiny()
    on_npu = copy.deepcopy(model).npu()
    optimizers = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](on_npu.parameters())
    wanted = [step(model, optimizers[0], tokens) for _ in range(5)]
    gotten = [step(on_npu, optimizers[1], tokens.npu()) for _ in range(5)]
    assert wanted[-1] < wanted[0]
    torch.testing.assert_close(gotten, wanted, rtol=2e-4, atol=2e-4)
    for (key, want), got in zip(model.state_dict().items(), on_npu.state_dict().values(), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=5e-3, atol=5e-3, msg=lambda m, key=key: f"{key}: {m}")


def test_resumes_from_a_checkpoint() -> None:
    torch.manual_seed(1)
    tokens = torch.randint(0, 20, (4, 9)).npu()
    model = Tiny().npu()
    optimizer = OPTIMIZERS["adamw_foreach"](model.parameters())
    step(model, optimizer, tokens)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    wanted = [step(model, optimizer, tokens) for _ in range(3)]
    file.seek(0)
    saved = torch.load(file)
    other = Tiny().npu()
    other.load_state_dict(saved["model"])
    resumed = OPTIMIZERS["adamw_foreach"](other.parameters())
    resumed.load_state_dict(saved["optimizer"])
    assert [step(other, resumed, tokens) for _ in range(3)] == wanted


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_mixed_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    x, y = torch.randn(32, 8).npu(), torch.randn(32, 1).npu()
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 1)).npu()
    optimizer = torch.optim.AdamW(model.parameters(), 0.02)
    scaler = torch.amp.GradScaler("npu", init_scale=1024.0)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("npu", dtype=dtype):
            out = model(x)
            assert out.dtype == dtype
            loss = nn.functional.mse_loss(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_overflow_skips_the_step_and_lowers_the_scale() -> None:
    weight = nn.Parameter(torch.ones(3, device="npu"))
    optimizer = torch.optim.SGD([weight], 1.0)
    scaler = torch.amp.GradScaler("npu", init_scale=8.0)
    scaler.scale((weight * torch.tensor([1.0, float("inf"), 1.0], device="npu")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.detach().cpu().tolist() == [1, 1, 1]
    assert scaler.get_scale() == 4.0


def test_gradients_of_gradients_and_checkpointing() -> None:
    x = torch.randn(5, dtype=torch.float64, device="npu", requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: (t.sin() * t.exp()).sum(), (x,))
    assert torch.autograd.gradgradcheck(lambda t: (t**3).sum(), (x,))
    layer = nn.Linear(4, 4).npu()
    y = torch.randn(2, 4, device="npu", requires_grad=True)
    torch.utils.checkpoint.checkpoint(layer, y, use_reentrant=False).sum().backward()
    assert y.grad is not None and y.grad.device == y.device
