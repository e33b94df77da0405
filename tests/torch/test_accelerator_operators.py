"""Operators that torch defines for accelerators only, and what accelerators take where the CPU refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def test_split_batch_norm_equals_batch_norm() -> None:
    torch.manual_seed(0)
    x, dy = torch.randn(6, 3, 4, 5), torch.randn(6, 3, 4, 5)
    norm = nn.BatchNorm2d(3)
    nn.init.uniform_(norm.weight)
    leaf = x.clone().requires_grad_()
    y = norm(leaf)
    y.backward(dy)
    halves = [torch.batch_norm_stats(part.npu(), norm.eps) for part in x.split(3)]
    mean, invstd = torch.stack([m for m, _ in halves]), torch.stack([i for _, i in halves])
    running_mean, running_var = torch.zeros(3).npu(), torch.ones(3).npu()
    counts = torch.full((2,), 3 * 4 * 5.0).npu()
    weight, bias = norm.weight.detach().npu(), norm.bias.detach().npu()
    all_mean, all_invstd = torch.batch_norm_gather_stats_with_counts(
        x.npu(), mean, invstd, running_mean, running_var, 0.1, norm.eps, counts
    )
    torch.testing.assert_close(running_mean.cpu(), norm.running_mean)
    torch.testing.assert_close(running_var.cpu(), norm.running_var)
    out = torch.batch_norm_elemt(x.npu(), weight, bias, all_mean, all_invstd, norm.eps)
    torch.testing.assert_close(out.cpu(), y.detach())
    sum_dy, sum_dy_xmu, grad_weight, grad_bias = torch.batch_norm_backward_reduce(
        dy.npu(), x.npu(), all_mean, all_invstd, weight, True, True, True
    )
    torch.testing.assert_close(grad_weight.cpu(), norm.weight.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(grad_bias.cpu(), norm.bias.grad, rtol=1e-4, atol=1e-4)
    count = torch.tensor([60, 60], dtype=torch.int32).npu()
    dx = torch.batch_norm_backward_elemt(dy.npu(), x.npu(), all_mean, all_invstd, weight, sum_dy, sum_dy_xmu, count)
    torch.testing.assert_close(dx.cpu(), leaf.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU], ids=["lstm", "gru"])
@pytest.mark.parametrize("both", [False, True], ids=["one way", "both ways"])
def test_recurrent_layers_and_packed_sequences(kind: type[nn.Module], both: bool) -> None:
    torch.manual_seed(0)
    layer = kind(3, 5, num_layers=2, bidirectional=both)
    on_npu = kind(3, 5, num_layers=2, bidirectional=both).npu()
    on_npu.load_state_dict(layer.state_dict())
    x = torch.randn(6, 3, 3)
    lengths = [6, 5, 3]
    want = pad_packed_sequence(layer(pack_padded_sequence(x, lengths))[0])[0]
    got = pad_packed_sequence(on_npu(pack_padded_sequence(x.npu(), lengths))[0])[0]
    torch.testing.assert_close(got.cpu(), want)
    want.sum().backward()
    got.sum().backward()
    for w, g in zip(layer.parameters(), on_npu.parameters(), strict=True):
        torch.testing.assert_close(g.grad.cpu(), w.grad, rtol=1e-4, atol=1e-5)
    # The device takes 16-bit inputs and states beside float32 weights; the layer itself would not ask it to.
    states = torch.zeros(4 if both else 2, 3, 5, dtype=torch.half, device="npu")
    run = torch._VF.lstm if kind is nn.LSTM else torch._VF.gru
    arguments = (x.half().npu(), (states, states) if kind is nn.LSTM else states, on_npu._flat_weights)
    raw = run(*arguments, True, 2, 0.0, False, both, False)[0]
    torch.testing.assert_close(raw.cpu(), layer(x.half().float())[0].detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("softmax", [torch._softmax, torch._log_softmax], ids=["softmax", "log_softmax"])
def test_softmax_that_widens(softmax: object) -> None:
    x = torch.randn(4, 9).half()
    got = softmax(x.npu(), 1, True)  # type: ignore[operator]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.cpu(), softmax(x.float(), 1, False))  # type: ignore[operator]


def test_products_with_a_wider_result() -> None:
    a, b, c = torch.randn(3, 4).bfloat16(), torch.randn(4, 5).bfloat16(), torch.randn(3, 5).bfloat16()
    got = torch.mm(a.npu(), b.npu(), out_dtype=torch.float32)
    torch.testing.assert_close(got.cpu(), a.float() @ b.float())
    got = torch.addmm(c.npu(), a.npu(), b.npu(), out_dtype=torch.float32)
    torch.testing.assert_close(got.cpu(), torch.addmm(c.float(), a.float(), b.float()))


SHAPES = [((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4))]


@pytest.mark.parametrize(("left", "right"), [*SHAPES, ((5, 1, 2, 3), (4, 3, 2))])
def test_gradients_of_products(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = torch.randn(left, requires_grad=True), torch.randn(right, requires_grad=True)
    x, y = a.detach().npu().requires_grad_(), b.detach().npu().requires_grad_()
    (a @ b).sin().sum().backward()
    (x @ y).sin().sum().backward()
    torch.testing.assert_close(x.grad.cpu(), a.grad)
    torch.testing.assert_close(y.grad.cpu(), b.grad)


def test_half_precision_where_the_cpu_has_no_kernel() -> None:
    x = torch.randn(5, 8).half()
    with pytest.raises(RuntimeError, match="not implemented for 'Half'"):
        torch.cdist(x, x, p=1.5)
    got = torch.cdist(x.npu(), x.npu(), p=1.5)
    assert got.dtype == torch.half
    torch.testing.assert_close(got.cpu(), torch.cdist(x.float(), x.float(), p=1.5).half())


def test_operators_compiled_at_run_time_take_the_route() -> None:
    x = torch.randn(4, 16)
    torch.npu.set_compile_mode(jit_compile=True)
    try:
        torch.testing.assert_close(x.npu().softmax(-1).cpu(), x.softmax(-1))
        torch.testing.assert_close((x.npu() @ x.npu().t()).cpu(), x @ x.t())
        assert torch.equal(x.npu().topk(3)[1].cpu(), x.topk(3)[1])
    finally:
        torch.npu.set_compile_mode(jit_compile=False)


def test_attention_beyond_the_fused_operator() -> None:
    q = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    want = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    got = torch.nn.functional.scaled_dot_product_attention(q.npu(), q.npu(), q.npu(), is_causal=True)
    torch.testing.assert_close(got.cpu(), want)
