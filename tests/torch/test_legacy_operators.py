"""Operators of the legacy door that are computed with torch's CPU operators: npu::* against formulas of our own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torch_npu

RANDOM = torch.Generator().manual_seed(7)


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=RANDOM).to(dtype)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.device.type == "npu"
    torch.testing.assert_close(got.cpu(), want)


def test_shapes() -> None:
    x = rand(3, 4, 6)
    n = x.npu()
    close(torch_npu.npu_slice(n, [1, 0, 2], [2, 4, 3]), x[1:, :, 2:5])
    close(torch_npu.npu_indexing(n, [0, 1, 0], [3, 4, 6], [2, 1, 4]), x[::2, 1:, ::4])
    close(torch_npu.npu_broadcast(n[:, :1], [3, 5, 6]), x[:, :1].expand(3, 5, 6))
    close(torch_npu.npu_pad(n[0], [1, 0, 2, 3]), F.pad(x[0], (2, 3, 1, 0)))
    close(torch_npu.npu_confusion_transpose(n, (1, 0, 2), (4, 18), True), x.transpose(0, 1).reshape(4, 18))
    close(torch_npu.npu_confusion_transpose(n, (1, 0), (12, 6), False), x.reshape(12, 6).t())
    close(torch_npu.npu_stride_copy(n[0], (2, 2), (1, 2), 3), x[0].as_strided((2, 2), (1, 2), 3))
    close(torch_npu.npu_sort_v2(n, 1, True), x.sort(1, True).values)
    for name in ("max", "min"):
        values, indices = getattr(torch_npu, f"npu_{name}")(n, 1)
        want = getattr(x, name)(1)
        close(values, want.values)
        close(indices, want.indices.int())


def test_one_hot() -> None:
    x = torch.tensor([[1, 0], [3, 7]], dtype=torch.int32)
    want = torch.full((2, 2, 4), -1.0)
    for at, index in enumerate(x.flatten().tolist()):
        if index < 4:
            want.view(-1, 4)[at, index] = 5.0
    close(torch_npu.npu_one_hot(x.npu(), depth=4, on_value=5, off_value=-1), want)
    for dtype in (torch.int32, torch.int64):
        close(F.one_hot(x.npu().to(dtype), 9), F.one_hot(x.long(), 9).to(dtype))


def test_sign_bits() -> None:
    x = torch.tensor([5.0, 4, 3, 2, 0, -1, -2, 4, 3, 2, 1, 0, -1, -2])
    packed = torch_npu.npu_sign_bits_pack(x.npu(), 2)
    close(packed, torch.tensor([[0b10011111], [0b00001111]], dtype=torch.uint8))
    back = torch_npu.npu_sign_bits_unpack(packed.flatten(), 1, torch.float32)
    close(back.flatten()[:14], torch.where(x >= 0, 1.0, -1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_layers(dtype: torch.dtype) -> None:
    x = rand(4, 9, dtype=dtype)
    leaf = x.npu().requires_grad_()
    reference = x.float().requires_grad_()
    y, want = torch_npu.npu_mish(leaf), F.mish(reference)
    close(y.detach(), want.detach().to(dtype))
    y.backward(torch.ones_like(y))
    want.sum().backward()
    close(leaf.grad, reference.grad.to(dtype))
    a, b, beta, gamma = (rand(*shape, dtype=dtype) for shape in ((4, 9), (4, 9), (9,), (9,)))
    normed = torch_npu.npu_deep_norm(a.npu(), b.npu(), beta.npu(), gamma.npu(), 0.5, 1e-5)[2]
    close(normed, F.layer_norm(0.5 * a.float() + b.float(), (9,), gamma.float(), beta.float(), 1e-5).to(dtype))
    logits, labels = rand(4, 9), rand(4, 9).softmax(1)
    losses = torch_npu.npu_softmax_cross_entropy_with_logits(logits.npu(), labels.npu())
    close(losses, -(logits.log_softmax(1) * labels).sum(1))


def test_scaled_masked_softmax() -> None:
    x, mask = rand(2, 2, 32, 32, dtype=torch.float16), rand(2, 1, 32, 32) > 0
    y = torch_npu.npu_scaled_masked_softmax(x.npu(), mask.npu(), 0.5, False)
    close(y, (x.float() * 0.5).masked_fill(mask, -10000).softmax(-1).half())


def test_batch_norm_statistics_of_several_devices() -> None:
    parts = [rand(2, 3, 4), rand(5, 3, 4)]
    sums, squares = zip(*(torch_npu.batch_norm_reduce(p.npu(), 1e-5) for p in parts), strict=True)
    whole = torch.cat(parts).transpose(0, 1).reshape(3, -1)
    mean, variance = torch.zeros(3, device="npu"), torch.ones(3, device="npu")
    counts = torch.tensor([8, 20], dtype=torch.int32, device="npu")
    got = torch_npu.batch_norm_gather_stats_update(
        parts[0].npu(), torch.stack(sums), torch.stack(squares), mean, variance, 0.25, 1e-5, counts
    )
    torch.testing.assert_close(got[0].cpu(), whole.mean(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[1].cpu(), (whole.var(1, correction=0) + 1e-5).rsqrt(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mean.cpu(), 0.25 * whole.mean(1), rtol=1e-4, atol=1e-5)


def test_adam() -> None:
    var, m, v, grad = rand(7), rand(7), rand(7).abs(), rand(7)
    out = tuple(t.npu() for t in (var, m, v))
    got = torch_npu.npu_apply_adam(0.8, 0.9, 0.1, 0.7, 0.95, 1e-3, grad.npu(), False, False, out=out)
    new_m, new_v = 0.7 * m + 0.3 * grad, 0.95 * v + 0.05 * grad**2
    close(got[1], new_m)
    close(got[2], new_v)
    close(got[0], var - 0.1 * (1 - 0.9) ** 0.5 / (1 - 0.8) * new_m / (1e-3 + new_v.sqrt()))
    out = tuple(t.npu() for t in (var, m, v))
    got = torch_npu.npu_apply_adam_w(0.8, 0.9, 0.1, 0.02, 0.7, 0.95, 1e-3, grad.npu(), None, False, False, out=out)
    below = (new_v / (1 - 0.9 * 0.95)).sqrt() + 1e-3
    close(got[0], var * (1 - 0.1 * 0.02) - 0.1 * new_m / (1 - 0.8 * 0.7) / below)


def corners(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def test_overlaps() -> None:
    a, b = corners([0, 0, 2, 2], [1, 1, 4, 3]), corners([1, 0, 3, 2], [1, 1, 4, 3], [8, 8, 9, 9])
    got = torch_npu.npu_iou(a.npu(), b.npu(), 0).cpu().float()
    torch.testing.assert_close(got, torch.tensor([[1 / 3, 0.25], [1 / 9, 1], [0, 0]]), rtol=0.02, atol=1e-3)
    same = corners([4, 4, 2, 6], [9, 9, 3, 3]).t().contiguous().npu()  # centre and size
    for name in ("giou", "diou"):
        close(getattr(torch_npu, f"npu_{name}")(same, same, True, False, 0).flatten(), torch.ones(2))
    apart = corners([4, 4, 2, 2], [9, 9, 2, 2]).t().contiguous()
    moved = (apart + torch.tensor([[8.0], [0], [0], [0]])).npu()
    close(torch_npu.npu_giou(apart.npu(), moved, True, False, 0).flatten(), torch.full((2,), (8 - 20) / 20))
    close(torch_npu.npu_diou(apart.npu(), moved, True, False, 0).flatten(), torch.full((2,), -64 / 104))
    close(torch_npu.npu_ciou(apart.npu(), moved, True, False, 0).flatten(), torch.full((2,), -64 / 104))


def test_boxes_there_and_back() -> None:
    anchors, boxes = corners([0, 0, 9, 9], [10, 20, 29, 49]), corners([2, 1, 12, 8], [8, 22, 30, 40])
    arguments = (0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.2, 0.2)
    deltas = torch_npu.npu_bounding_box_encode(anchors.npu(), boxes.npu(), *arguments)
    back = torch_npu.npu_bounding_box_decode(anchors.npu(), deltas, *arguments, (60, 60), 0.016)
    torch.testing.assert_close(back.cpu(), boxes, rtol=0, atol=0.1)


def test_suppression() -> None:
    boxes = corners([0, 0, 10, 10], [1, 0, 11, 10], [20, 20, 30, 30], [0, 0, 10, 9])
    scores = torch.tensor([0.6, 0.9, 0.5, 0.1])
    one = torch.tensor
    kept, _ = torch_npu.npu_nms_v4(boxes.npu(), scores.npu(), 4, one(0.5).npu(), one(0.2).npu())
    assert kept.cpu().tolist()[:2] == [1, 2]
    ordered = torch.cat([boxes[[1, 0, 2]], scores[[1, 0, 2], None]], 1)
    _, index, mask = torch_npu.npu_nms_with_mask(ordered.npu(), 0.5)
    assert index.cpu().tolist() == [0, 1, 2] and mask.cpu().tolist() == [1, 0, 1]
    two_classes = torch.stack([scores, scores.flip(0)], 1)
    found = torch_npu.npu_batch_nms(boxes[None, :, None].npu(), two_classes[None].npu(), 0.2, 0.5, 3, 4)
    assert found[3].cpu().tolist() == [4]
    torch.testing.assert_close(found[1].cpu()[0], torch.tensor([0.9, 0.9, 0.6, 0.5]))
    assert found[2].cpu()[0].tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions(groups: int) -> None:
    x, weight, bias = rand(2, 4, 7, 6), rand(6, 4 // groups, 3, 2), rand(6)
    args = ([2, 1], [1, 0], [1, 2], groups)
    close(torch_npu.npu_conv2d(x.npu(), weight.npu(), bias.npu(), *args), F.conv2d(x, weight, bias, *args))
    up = rand(2, 6, 4, 5)
    got = torch_npu.npu_conv_transpose2d(up.npu(), weight.npu(), None, [1, 0], [0, 0], [2, 1], [1, 2], groups)
    close(got, F.conv_transpose2d(up, weight, None, [2, 1], [1, 0], [0, 0], groups, [1, 2]))


def test_random_choice_and_dropout_masks() -> None:
    chosen, filled = torch_npu.npu_random_choice_with_mask(torch.eye(5, dtype=torch.bool).npu(), 8, 1, 2)
    rows = chosen.cpu()[filled.cpu()]
    assert filled.sum().item() == 5 and sorted(rows[:, 0].tolist()) == list(range(5))
    assert torch.equal(rows[:, 0], rows[:, 1])
    torch.npu.manual_seed(3)
    y, mask = torch_npu._npu_dropout(torch.ones(4096, device="npu"), 0.25)
    assert mask.dtype == torch.uint8 and abs((y == 0).float().mean().item() - 0.25) < 0.05
    assert y.unique().cpu().tolist() == pytest.approx([0, 1 / 0.75])


def test_unknown_operators_say_how_they_were_called() -> None:
    with pytest.raises(RuntimeError, match=r"RotatedIou: not implemented .*inputs 0\[1, 5, 4\].*attributes is_cross"):
        torch_npu.npu_rotated_iou(torch.ones(1, 4, 5, device="npu"), torch.ones(1, 3, 5, device="npu"))
