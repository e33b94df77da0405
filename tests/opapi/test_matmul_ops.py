"""Matrix products of PyTorch on the virtual NPU against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_npu

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
FRACTAL_NZ = 29


@pytest.fixture(autouse=True)
def internal_formats() -> None:
    torch.npu.config.allow_internal_format = True
    torch.manual_seed(0)


def check(got: torch.Tensor, exact: torch.Tensor, terms: int = 1) -> None:
    """One rounding to the dtype of `got` over an fp32 sum of `terms` products of standard normal values.

    Rounding `terms` partial sums near sqrt(terms) leaves an error near terms * 2^-24; six times that is allowed.
    """
    epsilon = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[got.dtype]
    assert got.shape == exact.shape
    difference = (got.cpu().double() - exact).abs()
    slack = epsilon * exact.abs() + 2.0**-24 * (2 + 6 * terms) + 1e-9
    assert (difference <= slack).all(), (difference - slack).max()


def forms(weight: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """The [K, N] operand made from a CPU [N, K] weight: ND and NZ, stored as [N, K] or as [K, N]."""
    device = weight.npu()
    kept = [("nk", device.t()), ("kn", device.t().contiguous())]
    nz = torch_npu.npu_format_cast(device, FRACTAL_NZ)
    assert torch_npu.get_npu_format(nz) == FRACTAL_NZ
    return [*kept, ("nz nk", nz.t()), ("nz kn", torch_npu.npu_format_cast(device.t().contiguous(), FRACTAL_NZ))]


@pytest.mark.parametrize("dtype", DTYPES)
def test_mm_and_addmm(dtype: torch.dtype) -> None:
    for m, n, k in ((1, 1, 1), (1, 48, 64), (3, 17, 31), (5, 16, 100), (33, 130, 257), (2, 1, 40), (70, 3, 16)):
        a, weight, bias = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype), torch.randn(n, dtype=dtype)
        full = torch.randn(m, n, dtype=dtype)
        product = a.double() @ weight.double().t()
        rows = []
        for name, w in forms(weight):
            got = torch.mm(a.npu(), w)
            check(got, product, k)
            assert torch.nn.functional.linear(a.npu(), w.t(), bias.npu()).shape == (m, n)
            check(torch.addmm(bias.npu(), a.npu(), w), product + bias.double(), k)
            check(torch.addmm(full.npu(), a.npu(), w, beta=0.5, alpha=-2.0), 0.5 * full.double() - 2 * product, 2 * k)
            nan = torch.full((m, n), float("nan"), dtype=dtype)
            check(torch.addmm(nan.npu(), a.npu(), w, beta=0), product, k)
            if (
                dtype != torch.float32 or "nz" not in name
            ):  # fp32 NZ goes to the CPU operator, which sums in another order
                rows.append(got.cpu())
        assert all(torch.equal(rows[0], other) for other in rows)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_and_matmul_broadcast(dtype: torch.dtype) -> None:
    weight, bias = torch.randn(40, 72, dtype=dtype), torch.randn(40, dtype=dtype)
    for shape in ((72,), (3, 72), (2, 5, 72), (2, 1, 3, 72), (0, 72), (2, 0, 72)):
        x = torch.randn(shape, dtype=dtype)
        exact = x.double() @ weight.double().t()
        for _, w in forms(weight):
            check(torch.matmul(x.npu(), w), exact, 72)
            check(torch.nn.functional.linear(x.npu(), w.t(), bias.npu()), exact + bias.double(), 72)
    pairs = [((5,), (5,)), ((5,), (5, 7)), ((2, 3, 5), (5,)), ((4, 1, 3, 5), (2, 5, 7)), ((2, 3, 5), (2, 5, 7))]
    for left, right in pairs:
        a, b = torch.randn(left, dtype=dtype), torch.randn(right, dtype=dtype)
        check(torch.matmul(a.npu(), b.npu()), torch.matmul(a.double(), b.double()), 5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches(dtype: torch.dtype) -> None:
    a, b = torch.randn(4, 6, 33, dtype=dtype), torch.randn(4, 33, 19, dtype=dtype)
    exact = a.double() @ b.double()
    check(torch.bmm(a.npu(), b.npu()), exact, 33)
    swapped = b.transpose(1, 2).contiguous().npu().transpose(1, 2)
    check(torch.bmm(a.npu().transpose(0, 1).contiguous().transpose(0, 1), swapped), exact, 33)
    addend = torch.randn(6, 19, dtype=dtype)
    got = torch.baddbmm(addend.npu(), a.npu(), b.npu(), beta=2.0, alpha=0.25)
    check(got, 2 * addend.double() + 0.25 * exact, 33)
    check(torch.einsum("bij,bjk->bik", a.npu(), b.npu()), exact, 33)
    heads = torch.randn(2, 7, 3, 16, dtype=dtype)  # [batch, token, head, head_dim], used as attention does
    queries = heads.npu().transpose(1, 2)
    check(queries @ queries.transpose(2, 3), heads.double().transpose(1, 2) @ heads.double().permute(0, 2, 3, 1), 16)
    nz = torch_npu.npu_format_cast(b.npu(), FRACTAL_NZ)
    check(torch.bmm(a.npu(), nz), exact, 33)


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_out_and_in_place(dtype: torch.dtype) -> None:
    a, x, y = torch.randn(9, 50, dtype=dtype), torch.randn(50, dtype=dtype), torch.randn(9, dtype=dtype)
    exact = a.double() @ x.double()
    check(torch.mv(a.npu(), x.npu()), exact, 50)
    check(torch.mv(a.t().contiguous().npu().t(), x.npu()), exact, 50)
    check(torch.addmv(y.npu(), a.npu(), x.npu(), beta=3, alpha=2), 3 * y.double() + 2 * exact, 100)
    check(torch.dot(a[0].npu(), x.npu()), exact[0], 50)
    b = torch.randn(50, 11, dtype=dtype)
    wide = torch.zeros(9, 22, dtype=dtype).npu()
    torch.mm(a.npu(), b.npu(), out=wide[:, ::2])
    check(wide[:, ::2], a.double() @ b.double(), 50)
    assert not wide[:, 1::2].any()
    start = torch.randn(9, 11, dtype=dtype)
    target = start.npu()
    target.addmm_(a.npu(), b.npu(), beta=0.5)
    check(target, 0.5 * start.double() + a.double() @ b.double(), 50)
    vector = y.npu()
    vector.addmv_(a.npu(), x.npu(), alpha=-1)
    check(vector, y.double() - exact, 50)
    batch = start[None].npu()
    batch.baddbmm_(a[None].npu(), b[None].npu(), beta=2)
    check(batch, 2 * start[None].double() + (a.double() @ b.double())[None], 50)


def test_no_inner_dimension() -> None:
    a, b, bias = torch.empty(3, 0).npu(), torch.empty(0, 5).npu(), torch.randn(5)
    assert torch.equal(torch.mm(a, b).cpu(), torch.zeros(3, 5))
    assert torch.equal(torch.addmm(bias.npu(), a, b).cpu(), bias.expand(3, 5))


def test_a_row_alone_equals_the_row_in_a_batch() -> None:
    x, weight = torch.randn(40, 576, dtype=torch.bfloat16), torch.randn(960, 576, dtype=torch.bfloat16)
    for name, w in forms(weight):
        together = torch.mm(x.npu(), w).cpu()
        for i in (0, 13, 39):
            assert torch.equal(torch.mm(x[i : i + 1].npu(), w).cpu(), together[i : i + 1]), name


def test_other_dtypes_take_the_generic_route() -> None:
    a, b = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    assert torch.allclose(torch.mm(a.npu(), b.npu()).cpu(), a @ b)
    integers = torch.arange(12).reshape(3, 4)
    assert torch.equal(torch.mm(integers.npu(), integers.t().npu()).cpu(), integers @ integers.t())


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda a: torch.mm(a, a), "mat1 and mat2 shapes cannot be multiplied"),
        (lambda a: torch.addmm(a, a, a.t().contiguous()), "must match the size"),
        (lambda a: torch.bmm(a[None], a[None]), "batch2|inner dimensions|mat2|Expected"),
        (lambda a: torch.mv(a, a[:, 0].contiguous()), "vec|size mismatch"),
        (lambda a: torch.mm(a, a.half().t()), "dtype|same"),
    ],
)
def test_wrong_calls_are_refused(call: Callable[[torch.Tensor], torch.Tensor], text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        call(torch.randn(3, 4).npu())
