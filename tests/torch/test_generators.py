"""NPU generators: seeds reproduce, states travel, offsets advance, and the CPU's generator is left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "rand": lambda: torch.rand(33, device="npu"),
    "randn": lambda: torch.randn(4, 9, device="npu"),
    "randn_bf16": lambda: torch.randn(64, device="npu", dtype=torch.bfloat16),
    "rand_like": lambda: torch.rand_like(torch.empty(5, 5, device="npu")),
    "randint": lambda: torch.randint(3, 1000, (50,), device="npu"),
    "randperm": lambda: torch.randperm(40, device="npu"),
    "randperm_out": lambda: torch.randperm(40, out=torch.empty(40, dtype=torch.int64, device="npu")),
    "bernoulli": lambda: torch.bernoulli(torch.full((200,), 0.3, device="npu")),
    "bernoulli_": lambda: torch.empty(200, device="npu").bernoulli_(0.6),
    "normal": lambda: torch.normal(torch.zeros(30, device="npu"), torch.ones(30, device="npu")),
    "normal_": lambda: torch.empty(30, device="npu").normal_(2, 3),
    "uniform_": lambda: torch.empty(30, device="npu").uniform_(-1, 1),
    "random_": lambda: torch.empty(30, device="npu").random_(1, 100),
    "exponential_": lambda: torch.empty(30, device="npu").exponential_(),
    "geometric_": lambda: torch.empty(300, device="npu").geometric_(0.2),
    "cauchy_": lambda: torch.empty(30, device="npu").cauchy_(),
    "log_normal_": lambda: torch.empty(30, device="npu").log_normal_(),
    "multinomial": lambda: torch.multinomial(torch.ones(100, device="npu"), 20),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(500, device="npu"), 0.4),
    "rrelu": lambda: torch.nn.functional.rrelu(-torch.ones(50, device="npu"), training=True),
    "poisson": lambda: torch.poisson(torch.full((50,), 8.0, device="npu")),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_a_seed_reproduces_and_the_next_draw_differs(draw: str) -> None:
    host = torch.get_rng_state()
    torch.npu.manual_seed(11)
    first, second = DRAWS[draw]().cpu(), DRAWS[draw]().cpu()
    torch.npu.manual_seed(11)
    again = DRAWS[draw]().cpu()
    torch.npu.manual_seed(12)
    other = DRAWS[draw]().cpu()
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(host, torch.get_rng_state()), "the CPU's generator was used"


def test_state_travels() -> None:
    torch.npu.manual_seed(5)
    torch.rand(7, device="npu")
    state = torch.npu.get_rng_state()
    want = torch.rand(7, device="npu").cpu()
    torch.rand(7, device="npu")
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.rand(7, device="npu").cpu(), want)


def test_manual_seed_of_torch_seeds_every_npu() -> None:
    torch.manual_seed(3)
    want = [torch.rand(5, device=f"npu:{i}").cpu() for i in (0, 1)]
    torch.manual_seed(3)
    assert all(torch.equal(torch.rand(5, device=f"npu:{i}").cpu(), w) for i, w in enumerate(want))


def test_fork_rng_restores() -> None:
    torch.npu.manual_seed(8)
    state = torch.npu.get_rng_state()
    with torch.random.fork_rng(devices=[0], device_type="npu"):
        torch.rand(3, device="npu")
        assert not torch.equal(torch.npu.get_rng_state(), state)
    assert torch.equal(torch.npu.get_rng_state(), state)


def test_own_generator_is_independent_of_the_default_one() -> None:
    one, two = torch.Generator("npu").manual_seed(4), torch.Generator("npu").manual_seed(4)
    torch.npu.manual_seed(0)
    before = torch.npu.get_rng_state()
    a = torch.empty(20, device="npu").exponential_(generator=one)
    b = torch.empty(20, device="npu").exponential_(generator=two)
    assert torch.equal(a.cpu(), b.cpu())
    assert torch.equal(torch.npu.get_rng_state(), before)
    assert one.initial_seed() == 4
    clone = one.clone_state() if hasattr(one, "clone_state") else None
    state = one.get_state()
    want = torch.rand(5, generator=one, device="npu").cpu()
    if clone is not None:
        assert torch.equal(torch.rand(5, generator=clone, device="npu").cpu(), want)
    one.set_state(state)
    assert torch.equal(torch.rand(5, generator=one, device="npu").cpu(), want)


def test_generator_of_another_device_is_refused() -> None:
    with pytest.raises(RuntimeError, match="npu"):
        torch.empty(4, device="npu").normal_(generator=torch.Generator())


def test_offset_advances_by_a_constant() -> None:
    generator = torch.Generator("npu").manual_seed(1)
    offsets = [generator.get_offset()]
    for size in (1, 1000):
        torch.empty(size, device="npu").uniform_(generator=generator)
        offsets.append(generator.get_offset())
    assert offsets[1] - offsets[0] == offsets[2] - offsets[1] > 0
    assert all(offset % 4 == 0 for offset in offsets)


def test_distributions() -> None:
    torch.npu.manual_seed(1234)
    draws = torch.cat([torch.rand(100, device="npu") for _ in range(200)]).cpu()
    assert abs(draws.mean().item() - 0.5) < 0.01
    assert abs(draws.std().item() - 12**-0.5) < 0.01
    # Draws of consecutive calls are not correlated.
    rows = draws.reshape(200, 100)
    assert abs(torch.corrcoef(torch.stack([rows[:-1].flatten(), rows[1:].flatten()]))[0, 1].item()) < 0.03
    kept = torch.nn.functional.dropout(torch.ones(20000, device="npu"), 0.25).cpu()
    assert abs((kept == 0).float().mean().item() - 0.25) < 0.015
    assert set(kept.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
