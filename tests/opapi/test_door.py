"""The aclnn door itself, called through its C interface: operands, executors, contract modes, refusals."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from ctypes import POINTER, byref, c_double, c_int64, c_uint64

import pytest
import torch
import torch_npu  # noqa: F401
from aclnn_door import INVALID, NULL, Door

from aloft.runtime.choice import library_folder

GELU = "aclnnFastGelu"


@pytest.fixture(scope="module")
def door() -> Door:
    return Door()


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, 4).npu(), torch.zeros(3, 4).npu()


def test_an_executor_runs_once(door: Door, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = map(door.tensor, pair)
    code, executor = door.plan(GELU, x, y)
    assert code == 0 and executor.value
    # what was planned must not depend on the operand objects any more
    door.opapi.aclDestroyTensor(x)
    door.opapi.aclDestroyTensor(y)
    assert door.run(GELU, executor) == 0
    want = pair[0].cpu() * torch.sigmoid(1.702 * pair[0].cpu())
    torch.testing.assert_close(pair[1].cpu(), want)
    assert door.run(GELU, executor) == INVALID
    assert "used before" in door.message()


def test_a_repeatable_executor_runs_until_destroyed(door: Door, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    _, executor = door.plan(GELU, *map(door.tensor, pair))
    assert door.opapi.aclSetAclOpExecutorRepeatable(executor) == 0
    assert [door.run(GELU, executor) for _ in range(3)] == [0, 0, 0]
    assert door.opapi.aclDestroyAclOpExecutor(executor) == 0
    assert door.run(GELU, executor) == INVALID
    assert door.opapi.aclDestroyAclOpExecutor(executor) != 0


def test_plans_that_never_run_do_not_pile_up(door: Door, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = map(door.tensor, pair)
    first = door.plan(GELU, x, y)[1]
    seen = {door.plan(GELU, x, y)[1].value for _ in range(70_000)}
    assert len(seen) < 66_000
    code, last = door.plan(GELU, x, y)
    assert code == 0 and door.run(GELU, last) == 0
    assert first.value in seen  # the oldest was taken back


def test_missing_operands(door: Door, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    code, executor = door.plan(GELU, None, door.tensor(pair[1]))
    assert (code, executor.value) == (NULL, None)
    message = door.message()
    assert "aclnnFastGelu" in message and "self is missing" in message and "161001" in message
    assert door.run(GELU, executor) == NULL
    assert "GetWorkspaceSize failed" in door.message()
    assert door.opapi.aclnnFastGeluGetWorkspaceSize(door.tensor(pair[0]), door.tensor(pair[1]), None, None) == NULL


def test_operands_are_checked(door: Door, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    y = door.tensor(pair[1])
    assert door.plan(GELU, door.tensor(pair[0], (1,) * 9), y)[0] == INVALID
    assert "9 dimensions" in door.message()
    assert door.plan(GELU, door.tensor(pair[0], layout=29), y)[0] == INVALID
    assert "FRACTAL_NZ" in door.message()
    assert door.plan(GELU, door.tensor(pair[0], (4, 3)), y)[0] == INVALID
    assert "out must" in door.message()


def test_an_operand_without_memory_is_refused(door: Door, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    freed = torch.ones(3, 4).npu()
    freed.untyped_storage().resize_(0)
    assert door.plan(GELU, freed, pair[1])[0] == INVALID
    assert "self has no memory" in door.message()


def test_view_shape_is_a_copy_the_caller_owns(door: Door, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    sizes, n = POINTER(c_int64)(), c_uint64()
    assert door.opapi.aclGetViewShape(door.tensor(pair[0]), byref(sizes), byref(n)) == 0
    assert sizes[: n.value] == [3, 4]
    assert door.opapi.aclGetViewShape(None, byref(sizes), byref(n)) == NULL


def test_scalars(door: Door) -> None:
    assert door.opapi.aclCreateScalar(byref(c_double(2.5)), 11)
    assert not door.opapi.aclCreateScalar(None, 11)
    assert "null pointer" in door.message()
    assert not door.opapi.aclCreateScalar(byref(c_double(2.5)), 13)
    assert "no scalar form" in door.message()


@pytest.fixture
def mode(door: Door) -> Iterator[ctypes.CDLL]:
    before = door.opapi.aloftSetContract(None)
    yield door.opapi
    door.opapi.aloftSetContract((b"strict", b"warn", b"off")[before])


def _beyond_the_limits() -> torch.Tensor:
    x, table = torch.ones(1, 1, 1000).npu(), torch.ones(1, 1, 1000).npu()
    return torch.ops.npu.npu_rotary_mul(x, table, table)


def test_contract_modes(mode: ctypes.CDLL, capfd: pytest.CaptureFixture[str]) -> None:
    assert mode.aloftSetContract(b"off") == 2
    _beyond_the_limits()
    assert "aloft" not in capfd.readouterr().err
    assert mode.aloftSetContract(b"warn") == 1
    result = _beyond_the_limits()
    warning = capfd.readouterr().err
    assert "aclnnRotaryPositionEmbedding" in warning and "below 896" in warning and "ALOFT_CONTRACT" in warning
    _beyond_the_limits()
    assert capfd.readouterr().err == ""
    assert torch.equal(result.cpu(), torch.cat((torch.zeros(500), torch.full((500,), 2.0))).view(1, 1, -1))
    assert mode.aloftSetContract(b"strict") == 0
    with pytest.raises(RuntimeError, match=r"(?s)161002.*aclnnRotaryPositionEmbedding.*below 896"):
        _beyond_the_limits()


def test_unknown_contract_mode(door: Door, mode: ctypes.CDLL) -> None:
    assert mode.aloftSetContract(b"loud") == -1
    assert "strict, warn, off" in door.message()


def test_bad_environment_is_named_by_the_first_operator() -> None:
    program = """
import ctypes, sys
runtime = ctypes.CDLL(sys.argv[1] + "/libascendcl.so", ctypes.RTLD_GLOBAL)
opapi = ctypes.CDLL(sys.argv[1] + "/libopapi.so")
runtime.aclGetRecentErrMsg.restype = ctypes.c_char_p
size, executor = ctypes.c_uint64(), ctypes.c_void_p()
print(opapi.aclnnFastGeluGetWorkspaceSize(None, None, ctypes.byref(size), ctypes.byref(executor)))
print(runtime.aclGetRecentErrMsg().decode())
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", program, str(library_folder())],
        env={**os.environ, "ALOFT_CONTRACT": "loud"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[0] == str(INVALID)
    assert 'ALOFT_CONTRACT is "loud"; valid values: strict, warn, off' in done.stdout


def test_the_exception_of_torch_npu_carries_it_all() -> None:
    x = torch.ones(4, 8).npu()
    with pytest.raises(RuntimeError, match=r"(?s)161002.*aclnnRmsNorm: gamma has the shape \[5\].*\[4, 8\]"):
        torch.ops.npu.npu_rms_norm(x, torch.ones(5).npu())
    assert torch.ops.npu.npu_rms_norm(x, torch.ones(8).npu())[0].cpu().isfinite().all()


def test_work_is_recorded_and_replayed() -> None:
    x, gamma = torch.randn(4, 8).npu(), torch.ones(8).npu()
    y = torch.ops.npu.npu_swiglu(torch.ops.npu.npu_rms_norm(x, gamma)[0])
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        z = torch.ops.npu.npu_swiglu(torch.ops.npu.npu_rms_norm(x, gamma)[0])
    for _ in range(2):
        x.copy_(torch.randn(4, 8).npu())
        graph.replay()
        torch.npu.synchronize()
        y = torch.ops.npu.npu_swiglu(torch.ops.npu.npu_rms_norm(x, gamma)[0])
        assert torch.equal(y.cpu(), z.cpu())


def test_a_refusal_is_seen_with_the_task_queue_asked_for() -> None:
    program = (
        "import torch, torch_npu\n"
        "x = torch.ones(4, 8).npu()\n"
        "try:\n"
        "    torch.ops.npu.npu_rms_norm(x, torch.ones(5).npu())\n"
        "except RuntimeError as error:\n"
        "    print('refused', 'gamma' in str(error))\n"
        "print(torch.ops.npu.npu_rms_norm(x, torch.ones(8).npu())[0].sum().round().item())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TASK_QUEUE_ENABLE": "2"},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert done.stdout.split() == ["refused", "True", "32.0"]
