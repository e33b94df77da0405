"""The runtime through the real torch_npu: each program runs once per stream mode, its checks are the tests."""

from __future__ import annotations

import pytest
from running import MODES, checks, expect


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", checks("ordering"))
def test_ordering(name: str, mode: str) -> None:
    expect("ordering", name, ALOFT_STREAMS=mode, ALOFT_DEVICES="2", ALOFT_HBM_GIB="1", ALOFT_WAIT_TIMEOUT="3")


@pytest.mark.parametrize("name", checks("ordering"))
def test_ordering_behind_the_task_queue(name: str) -> None:
    """torch_npu's own queue of host calls must not make a host read stale."""
    settings = {"ALOFT_STREAMS": "async", "ALOFT_DEVICES": "2", "ALOFT_HBM_GIB": "1", "ALOFT_WAIT_TIMEOUT": "3"}
    expect("ordering", name, TASK_QUEUE_ENABLE="1", **settings)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", checks("graphs"))
def test_graphs(name: str, mode: str) -> None:
    expect("graphs", name, ALOFT_STREAMS=mode, ALOFT_HBM_GIB="1", ALOFT_WAIT_TIMEOUT="3")


@pytest.mark.parametrize("name", checks("graphs"))
@pytest.mark.parametrize(("mode", "segments"), [("inline", ""), ("inline", "expandable_segments:True"), ("async", "")])
def test_graphs_in_strict_mode(name: str, mode: str, segments: str) -> None:
    settings = {"ALOFT_CONTRACT": "strict", "ALOFT_STREAMS": mode, "ALOFT_HBM_GIB": "1", "ALOFT_WAIT_TIMEOUT": "3"}
    expect("graphs", name, **settings, **({"PYTORCH_NPU_ALLOC_CONF": segments} if segments else {}))


@pytest.mark.parametrize(("mode", "threads"), [("inline", 2), ("inline", 4), ("async", 2)])
@pytest.mark.parametrize("name", checks("beside"))
def test_beside(name: str, mode: str, threads: int) -> None:
    settings = {"ALOFT_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    expect("beside", name, ALOFT_STREAMS=mode, ALOFT_HBM_GIB="1", ALOFT_WAIT_TIMEOUT="3", **settings)


@pytest.mark.parametrize("name", checks("memory"))
def test_memory(name: str) -> None:
    expect("memory", name, ALOFT_HBM_GIB="1")


@pytest.mark.parametrize("name", checks("memory"))
def test_memory_in_expandable_segments(name: str) -> None:
    expect("memory", name, ALOFT_HBM_GIB="1", PYTORCH_NPU_ALLOC_CONF="expandable_segments:True")
