"""The ladder of captured sizes, and what a graph that cannot be captured leads to."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from aloft.attention.captured import DeviceLengths, HostLengths, chosen
from aloft.ops import paged_attention
from aloft.runner.graphs import DecodeGraphs, ladder


@pytest.mark.parametrize(
    ("sizes", "most", "want"),
    [
        ([1, 2, 4, 8], 8, [0, 1, 2, 4, 4, 8, 8, 8, 8]),
        ([8, 2], 3, [0, 2, 2, 3]),
        ([2], 4, [0, 2, 2, 0, 0]),
        ([], 2, [0, 0, 0]),
        ([16], 2, [0, 2, 2]),
    ],
)
def test_every_number_of_rows_finds_the_next_size(sizes, most, want):
    assert ladder(sizes, most) == want


@pytest.mark.parametrize("native", [True, False])
def test_how_lengths_arrive_follows_the_runtime_unless_forced(monkeypatch, native):
    monkeypatch.setattr(paged_attention, "decode_native", lambda: native)
    assert chosen("auto") is (DeviceLengths if native else HostLengths)
    assert chosen("host") is HostLengths
    if native:
        assert chosen("device") is DeviceLengths
    else:
        with pytest.raises(ValueError, match="'host'"):
            chosen("device")


def graphs(run, sizes=(1, 2, 4), padding=16):
    return DecodeGraphs(sizes, 4, padding, DeviceLengths, lambda size: size, run)


@torch.inference_mode()
def test_a_graph_is_captured_once_when_first_needed_and_replays():
    x = torch.ones(4, 3, device="npu")
    sizes = []

    def run(size, attention):
        sizes.append(size)
        hidden = x[:size] * 2
        return hidden, hidden + torch.arange(3, device="npu")

    made = graphs(run)
    one, three, four = (made.find(n, True) for n in (1, 3, 4))
    assert sizes == [1, 4] and three is four
    x[0, 0] = 9
    three.graph.replay()
    assert three.tokens.tolist() == [[0], [2], [2], [2]]
    assert three.logits.tolist()[0] == [18, 3, 4]
    one.graph.replay()
    assert one.tokens.tolist() == [[0]]
    assert made.find(2, False).tokens is None
    made.clear()


def test_padding_needs_slots_in_one_block():
    assert graphs(None, sizes=[1, 4], padding=1).size_for == [0, 1, 0, 4, 4]


@torch.inference_mode()
def test_what_cannot_be_captured_runs_eagerly_and_says_why_once(monkeypatch):
    x = torch.ones(2, 3, device="npu")
    said = []
    monkeypatch.setattr(
        logging.getLogger("vllm.aloft.graphs"), "warning", lambda text, *args, **kwargs: said.append(text % args)
    )

    def run(size, attention):
        return x, x[x > 0]  # a shape that depends on data

    made = graphs(run)
    assert made.find(2, True) is None and made.find(1, True) is None
    assert len(said) == 1 and "without graph replay" in said[0] and "captur" in said[0]
    assert (x + 1).sum().item() == 12, "the device serves on"


@torch.inference_mode()
def test_a_closed_graph_fetches_its_inputs_and_leaves_its_tokens():
    words = torch.zeros(4, dtype=torch.int32, device="npu")
    stage = SimpleNamespace(words=torch.zeros(2, dtype=torch.int32, pin_memory=True))

    def run(inputs, attention):
        hidden = torch.nn.functional.one_hot(inputs.words.long(), 5).float()
        return hidden, hidden

    made = DecodeGraphs(
        [2], 4, 16, DeviceLengths, lambda size: SimpleNamespace(words=words[:size]), run, lambda _: stage
    )
    open_, closed, sampled = made.find(2, True), made.find(2, True, closed=True), made.find(1, False, closed=True)
    assert len(made.graphs) == 3 and open_.stage is None and sampled.results is None
    for tokens in ([3, 1], [0, 4]):
        stage.words[:] = torch.tensor(tokens)
        closed.replay(SimpleNamespace(lengths=np.zeros(2)))
        torch.npu.synchronize()
        assert closed.results_of(2).tolist() == tokens and closed.results_of(1).tolist() == tokens[:1]
    made.clear()


@torch.inference_mode()
def test_where_the_copies_cannot_be_captured_the_other_kind_serves():
    x = torch.ones(2, 3, device="npu")

    def run(inputs, attention):
        return x, x * 2

    def no_stage(size):
        raise RuntimeError("no pinned memory")

    made = DecodeGraphs([2], 4, 16, DeviceLengths, lambda size: size, run, no_stage)
    assert made.find(2, True, closed=True).stage is None and not made.refused
    made.clear()
