"""Norms, activations, rotary embeddings, cache copies and format casts against their contracts, in strict mode."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
import torch_npu  # noqa: F401

from aloft.ops.execute import run_contract
from aloft.ops.registry import standard
from aloft.runtime.choice import library_folder

OPERATORS = (
    "npu_add_layer_norm",
    "npu_add_rms_norm",
    "npu_add_rms_norm_cast",
    "npu_add_rms_norm_v2",
    "npu_apply_rotary_pos_emb",
    "npu_clipped_swiglu",
    "npu_fast_gelu",
    "npu_format_cast",
    "npu_gather_pa_kv_cache",
    "npu_geglu",
    "npu_gelu",
    "npu_gelu_mul",
    "npu_gemma_rms_norm",
    "npu_interleave_rope",
    "npu_layer_norm_eval",
    "npu_mrope",
    "npu_reshape_and_cache",
    "npu_rms_norm",
    "npu_rotary_mul",
    "npu_scatter_nd_update_",
    "npu_scatter_pa_cache",
    "npu_scatter_pa_kv_cache",
    "npu_silu",
    "npu_swiglu",
)


@pytest.fixture
def strict() -> Iterator[None]:
    library = ctypes.CDLL(str(library_folder() / "libopapi.so"))
    before = library.aloftSetContract(None)
    assert library.aloftSetContract(b"strict") == 0
    yield
    library.aloftSetContract((b"strict", b"warn", b"off")[before])


@pytest.mark.parametrize("name", OPERATORS)
def test_contract(name: str, strict: None) -> None:
    report = run_contract(standard().get(name))
    assert not report.failures
    assert report.passed == report.cases > 0


def test_functional_twins_leave_their_operands_alone() -> None:
    key, cache = torch.randn(2, 1, 8).half().npu(), torch.zeros(3, 4, 1, 8).half().npu()
    slots = torch.tensor([5, 0]).npu()
    twin = torch.ops.npu.npu_scatter_pa_kv_cache_functional
    new_key, new_value = twin(key, key, cache, cache, slots, cache_mode="Norm")
    assert torch.equal(new_key[1, 1].cpu(), key[0].cpu())
    assert torch.equal(new_key.cpu(), new_value.cpu())
    assert not cache.cpu().any()


def test_undefined_parts_are_poisoned_in_strict_mode(strict: None) -> None:
    x = torch.randn(5, 8).npu()
    y = torch.ops.npu.npu_clipped_swiglu(x, group_index=torch.tensor([2]).npu())
    assert y[:2].isfinite().all()
    assert y[2:].isnan().all()


def _gradients(call, reference, *operands: torch.Tensor) -> None:
    """Compares the gradients of sum(call · weight) with those of the float64 reference."""
    device = [t.npu().requires_grad_() for t in operands]
    wide = [t.double().requires_grad_() for t in operands]
    y = call(*device)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(operands[0].dtype)
    y.backward(weight.npu())
    reference(*wide).backward(weight.double())
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[operands[0].dtype]
    for got, want in zip(device, wide, strict=True):
        torch.testing.assert_close(got.grad.cpu().double(), want.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_gradient_of_rms_norm(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, gamma = torch.randn(3, 5, 37).to(dtype), (torch.rand(37) + 0.5).to(dtype)

    def reference(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * gamma

    _gradients(lambda x, gamma: torch.ops.npu.npu_rms_norm(x, gamma)[0], reference, x, gamma)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [-1, 1])
def test_gradient_of_swiglu(dtype: torch.dtype, dim: int) -> None:
    torch.manual_seed(0)

    def reference(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim)
        return torch.nn.functional.silu(a) * b

    _gradients(lambda x: torch.ops.npu.npu_swiglu(x, dim), reference, torch.randn(3, 8, 10).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_gradient_of_rotary_mul(dtype: torch.dtype, mode: str) -> None:
    from aloft.ops.contracts.npu_rotary_mul import turned

    torch.manual_seed(0)
    x, cos, sin = torch.randn(2, 5, 3, 64), torch.randn(2, 5, 1, 64), torch.randn(2, 5, 1, 64)
    _gradients(
        lambda x, c, s: torch.ops.npu.npu_rotary_mul(x, c, s, mode),
        lambda x, c, s: x * c + turned(x, mode) * s,
        x.to(dtype),
        cos.to(dtype),
        sin.to(dtype),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_layer_norm(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(3, 5, 37) + 1).to(dtype), torch.randn(37).to(dtype), torch.randn(37).to(dtype)
    want = torch.nn.functional.layer_norm(x.double(), (37,), weight.double(), bias.double())
    got = torch.nn.functional.layer_norm(x.npu(), (37,), weight.npu(), bias.npu())
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    torch.testing.assert_close(got.cpu().double(), want, rtol=tolerance, atol=tolerance)
    _, mean, rstd = torch.native_layer_norm(x.npu(), (37,), None, None, 1e-5)
    _, want_mean, want_rstd = torch.native_layer_norm(x.double(), (37,), None, None, 1e-5)
    torch.testing.assert_close(mean.cpu().double(), want_mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(rstd.cpu().double(), want_rstd, rtol=1e-4, atol=1e-4)
    assert mean.dtype == rstd.dtype == torch.float32
    _gradients(
        lambda x, w, b: torch.nn.functional.layer_norm(x, (37,), w, b),
        lambda x, w, b: torch.nn.functional.layer_norm(x, (37,), w, b),
        x,
        weight,
        bias,
    )
