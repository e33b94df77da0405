"""Streams, events, host reads: what must hold in every stream mode, through torch_npu."""

from __future__ import annotations

import ctypes
import threading
import time

import torch
from report import check, main

DEVICE = "npu"


libc = ctypes.CDLL(None)  # the C library, and the virtual NPU's mapped beside it
SLEEP = ctypes.cast(libc.usleep, ctypes.c_void_p)


def slow(stream: torch.npu.Stream, seconds: float = 0.05) -> None:
    """Queues something that takes a while: a host function that sleeps in stream order."""
    code = libc.aclrtLaunchHostFunc(ctypes.c_void_p(stream.npu_stream), SLEEP, ctypes.c_void_p(int(seconds * 1e6)))
    assert code == 0, code


@check
def work_of_a_stream_is_in_order() -> None:
    x = torch.zeros(1000, device=DEVICE)
    stream = torch.npu.Stream()
    stream.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(stream):
        for i in range(50):
            x.add_(1)
            x.mul_(2 if i % 10 == 9 else 1)
    stream.synchronize()
    expected = 0
    for i in range(50):
        expected = (expected + 1) * (2 if i % 10 == 9 else 1)
    assert torch.equal(x.cpu(), torch.full((1000,), float(expected)))


@check
def a_host_read_waits_for_a_slow_operator() -> None:
    x = torch.zeros(4, device=DEVICE)
    slow(torch.npu.current_stream())
    x.add_(1)
    assert x.cpu().tolist() == [1, 1, 1, 1]
    slow(torch.npu.current_stream())
    x.add_(1)
    assert x[0].item() == 2
    slow(torch.npu.current_stream())
    x.add_(1)
    assert bool((x == 3).all())
    host = torch.zeros(4)
    slow(torch.npu.current_stream())
    x.add_(1)
    host.copy_(x)
    assert host.tolist() == [4, 4, 4, 4]


@check
def a_slow_aclnn_operator_is_not_overtaken() -> None:
    import torch_npu

    x = torch.randn(8, 256, dtype=torch.bfloat16).to(DEVICE)
    gamma = torch.ones(256, dtype=torch.bfloat16, device=DEVICE)
    slow(torch.npu.current_stream())
    y, _ = torch_npu.npu_rms_norm(x, gamma, 1e-6)
    host = x.float().cpu()
    expected = host * torch.rsqrt(host.pow(2).mean(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(y.float().cpu(), expected, atol=2e-2, rtol=2e-2)


@check
def events_order_streams() -> None:
    producer, consumer = torch.npu.Stream(), torch.npu.Stream()
    source = torch.zeros(64, device=DEVICE)
    target = torch.zeros(64, device=DEVICE)
    torch.npu.synchronize()
    ready, taken = torch.npu.Event(), torch.npu.Event()
    pinned = torch.zeros(20, 64).pin_memory()
    for i in range(20):
        with torch.npu.stream(producer):
            producer.wait_event(taken)
            if i % 7 == 0:
                slow(producer, 0.005)
            source.fill_(i + 1)
            ready.record(producer)
        with torch.npu.stream(consumer):
            consumer.wait_event(ready)
            target.copy_(source)
            taken.record(consumer)
            pinned[i].copy_(target, non_blocking=True)
    consumer.synchronize()
    assert pinned[:, 5].tolist() == list(range(1, 21))


@check
def wait_stream_orders_and_query_tells() -> None:
    stream = torch.npu.Stream()
    event = torch.npu.Event()
    x = torch.zeros(1, device=DEVICE)
    torch.npu.synchronize()
    with torch.npu.stream(stream):
        slow(stream)
        x.fill_(3)
        event.record(stream)
    torch.npu.current_stream().wait_stream(stream)
    x.add_(1)
    assert x.item() == 4
    event.synchronize()
    assert event.query() and stream.query()


@check
def event_times_are_milliseconds_in_order() -> None:
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    start.record()
    slow(torch.npu.current_stream(), 0.03)
    end.record()
    end.synchronize()
    assert 25 < start.elapsed_time(end) < 2000


@check
def non_blocking_copies_from_pageable_memory_keep_the_value() -> None:
    host = torch.arange(100.0)
    device = torch.empty(100, device=DEVICE)
    slow(torch.npu.current_stream(), 0.02)
    device.copy_(host, non_blocking=True)
    host.zero_()
    assert device.cpu().tolist() == list(range(100))


@check
def record_stream_protects_memory() -> None:
    side = torch.npu.Stream()
    for i in range(5):
        x = torch.full((1 << 18,), float(i), device=DEVICE)
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            slow(side, 0.005)
            y = x * 2
        x.record_stream(side)
        del x
        torch.full((1 << 18,), -1.0, device=DEVICE)  # may take x's memory only when `side` is done with it
        side.synchronize()
        assert y.cpu()[7].item() == 2 * i


@check
def threads_with_their_own_streams() -> None:
    failures: list[str] = []

    def body(number: int) -> None:
        torch.npu.set_device(0)
        stream = torch.npu.Stream()
        with torch.npu.stream(stream):
            x = torch.zeros(100, device=DEVICE)
            for _ in range(30):
                x.add_(number)
            stream.synchronize()
            if x.cpu()[3].item() != 30 * number:
                failures.append(f"thread {number}: {x.cpu()[3].item()}")

    threads = [threading.Thread(target=body, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@check
def an_external_event_may_be_waited_for_before_it_is_recorded() -> None:
    waiting, recording = torch.npu.Stream(), torch.npu.Stream()
    x = torch.zeros(1, device=DEVICE)
    one = torch.ones(1, device=DEVICE)
    event = torch.npu.ExternalEvent()
    torch.npu.synchronize()
    for i in range(5):
        with torch.npu.stream(waiting):
            event.wait(waiting)
            event.reset(waiting)
            x.add_(one)
        assert not waiting.query()
        event.record(recording)
        waiting.synchronize()
        assert x.item() == i + 1


@check
def a_wait_nobody_satisfies_is_an_error_not_a_hang() -> None:
    stream = torch.npu.Stream()
    event = torch.npu.ExternalEvent()
    event.wait(stream)
    start = time.monotonic()
    try:
        stream.synchronize()
    except RuntimeError as error:
        assert "aclrtValueWait" in str(error), error
    else:
        raise AssertionError("no error")
    assert time.monotonic() - start < 10
    stream.synchronize()  # usable again


@check
def devices_are_separate() -> None:
    assert torch.npu.device_count() == 2
    a = torch.full((3,), 1.0, device="npu:0")
    b = torch.full((3,), 2.0, device="npu:1")
    assert a.device.index == 0 and b.device.index == 1
    assert (a + 1).cpu().tolist() == b.cpu().tolist()
    b = a.to("npu:1")
    assert b.device.index == 1 and b.cpu().tolist() == [1, 1, 1]
    with torch.npu.device(1):
        assert torch.npu.current_device() == 1
        assert torch.empty(1, device="npu").device.index == 1
    assert torch.npu.current_device() == 0


main()
