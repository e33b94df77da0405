"""Step inputs against a plain-Python computation of the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from steps import BLOCK, Event, cached, new, step

from aloft.runner.inputs import InputBuilder


def build(requests, counts):
    device = torch.device("npu:0")
    if not hasattr(requests, "builder"):
        requests.builder = InputBuilder(requests.batch, 128, device)
    scheduled = np.array([counts[r] for r in requests.batch.req_ids], dtype=np.int32)
    return requests.builder.build(scheduled, requests.sampled, False)


def expected(requests, counts):
    ids, positions, slots = [], [], []
    for row, req_id in enumerate(requests.batch.req_ids):
        start = int(requests.batch.num_computed_tokens_cpu[row])
        for position in range(start, start + counts[req_id]):
            ids.append(int(requests.batch.token_ids_cpu[row, position]))
            positions.append(position)
            block = int(requests.batch.block_table[0].block_table.np[row, position // BLOCK])
            slots.append(block * BLOCK + position % BLOCK)
    return ids, positions, slots


@pytest.mark.parametrize("chunk", [1, 5, 16, 17, 40])
def test_mixed_rows(requests, chunk):
    counts = {"a": chunk, "b": 1, "c": 20}
    news = [
        new("a", range(50), [3, 4, 5, 6]),
        new("b", range(50, 83), [7, 8, 9], computed=32),
        new("c", range(10, 60), [11, 12, 13, 14], computed=30),
    ]
    requests.update(step(counts, news))
    inputs = build(requests, counts)
    ids, positions, slots = expected(requests, counts)
    assert inputs.input_ids.tolist() == ids
    assert inputs.positions.tolist() == positions
    (common,) = inputs.common
    assert common.slot_mapping.tolist() == slots
    assert common.query_start_loc.tolist() == [0, chunk, chunk + 1, chunk + 21]
    assert common.seq_lens.tolist() == [chunk, 33, 50]
    assert inputs.finishing.tolist() == [False, True, True]
    assert inputs.logits_rows.tolist() == [chunk, chunk + 20], "the prompt of a goes on: nobody asks for its logits"
    assert inputs.part.rows.tolist() == [1, 2] and inputs.part.places.tolist() == [0, 0, 1]


def test_pure_decode_needs_no_gather_of_rows(requests):
    counts = {"a": 1, "b": 1}
    requests.update(step(counts, [new("a", [5], [1]), new("b", [6], [2])]))
    inputs = build(requests, counts)
    assert inputs.logits_rows is None and inputs.part is None and inputs.input_ids.tolist() == [5, 6]


def test_prompts_that_go_on_by_one_token_have_no_logits(requests):
    counts = {"a": 1, "b": 1, "c": 1}
    news = [new("a", range(9), [1]), new("b", [6], [2]), new("c", range(5), [3], computed=2)]
    requests.update(step(counts, news))
    inputs = build(requests, counts)
    assert inputs.logits_rows.tolist() == [1]
    assert inputs.part.rows.tolist() == [1] and inputs.part.places.tolist() == [0, 0, 0]


def test_no_row_samples(requests):
    counts = {"a": 4, "b": 2}
    requests.update(step(counts, [new("a", range(9), [1]), new("b", range(9), [2])]))
    inputs = build(requests, counts)
    assert not inputs.finishing.any() and inputs.logits_rows.tolist() == inputs.part.rows.tolist() == []


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
def test_ids_the_host_does_not_know_come_from_the_device(requests, moved, chunked):
    first = {"a": 1, "b": 1, "c": 1}
    requests.update(step(first, [new(r, [i], [i + 1]) for i, r in enumerate("abc")]))
    build(requests, first)
    on_device = torch.tensor([[11], [12], [13]], dtype=torch.int32).to("npu:0")
    late = Event(arrived=False)
    requests.sampled.add(on_device, np.zeros(3, dtype=np.int32), late, np.arange(3), [])
    rows = [(r, 1, 1, None) for r in ("bc" if moved else "abc")]
    counts = {r[0]: 1 for r in rows}
    news = []
    if chunked:
        news, counts["d"] = [new("d", range(40, 60), [8, 9])], 7
    requests.update(step(counts, news, cached(*rows), finished=["a"] if moved else []))
    inputs = build(requests, counts)
    want = {"a": [11], "b": [12], "c": [13], "d": list(range(40, 47))}
    assert inputs.input_ids.tolist() == [t for r in requests.batch.req_ids for t in want[r]]
    assert not late.waited


def test_two_steps_are_staged_in_different_host_buffers(requests):
    counts = {"a": 1}
    requests.update(step(counts, [new("a", [5], [1])]))
    first, second, third = (build(requests, counts) for _ in range(3))
    at = [inputs.common[0].query_start_loc_cpu.data_ptr() for inputs in (first, second, third)]
    assert at[0] != at[1] and at[0] == at[2]
    assert first.input_ids.data_ptr() == second.input_ids.data_ptr()  # in stream order


@pytest.mark.parametrize("size", [3, 8])
def test_a_captured_step_finds_its_inputs_at_fixed_places(requests, size):
    requests.batch.block_table[0].block_table.np[:] = 0
    prompts = {"a": range(5), "b": range(40, 73), "c": range(9)}
    blocks = {"a": [3], "b": [4, 5, 6], "c": [7]}
    news = [new(r, prompts[r], blocks[r], computed=len(prompts[r]) - 1) for r in "abc"]
    requests.update(step(dict.fromkeys("abc", 1), news))
    build(requests, dict.fromkeys("abc", 1))  # leaves something else in the buffers
    builder = requests.builder
    inputs = builder.build_decode(size, requests.sampled, True)
    at = builder.decode_inputs(size)
    padding = size - 3
    assert at.positions.tolist() == [4, 32, 8] + [0] * padding
    assert at.input_ids.tolist() == [4, 72, 8] + [0] * padding
    assert at.lengths.tolist() == inputs.lengths.tolist() == [5, 33, 9] + [0] * padding
    assert at.slots[0].tolist() == [3 * BLOCK + 4, 6 * BLOCK, 7 * BLOCK + 8, *range(padding)]
    assert at.block_tables[0][:3, :3].tolist() == [[3, 0, 0], [4, 5, 6], [7, 0, 0]]
    assert at.words.data_ptr() == builder.decode_inputs(size).words.data_ptr()
    assert inputs.finishing.tolist() == [True] * 3 and inputs.num_tokens == 3


@pytest.mark.parametrize("size", [3, 4])
def test_inputs_advanced_in_place_are_those_built_anew(requests, size):
    """Up to the step in which a row begins a block; the batch learns of the tokens when asked to."""
    requests.batch.block_table[0].block_table.np[:] = 0
    prompts = {"a": range(5), "b": range(40, 67), "c": range(9)}  # b: 27 tokens, 5 from the end of its block
    blocks = {"a": [3], "b": [4, 5], "c": [7]}
    news = [new(r, prompts[r], blocks[r], computed=len(prompts[r]) - 1) for r in "abc"]
    requests.update(step(dict.fromkeys("abc", 1), news))
    builder, batch = InputBuilder(requests.batch, 128, torch.device("npu:0")), requests.batch
    stage, other = builder.closed_stage(size), builder.closed_stage(size)
    builder.build_closed(stage, True)
    requests.blocks_changed = False
    lengths = batch.num_tokens_no_spec[:3].copy()
    for count in range(1, 6):
        values = np.array([count, 10 + count, 20 + count], dtype=np.int32)
        requests.sampled.add_lately(values)
        computed = [int(n) - 1 + count for n in lengths]
        rows = [(r, n, count, None) for r, n in zip("abc", computed, strict=True)]
        assert requests.goes_on(step(dict.fromkeys("abc", 1), olds=cached(*rows)))
        assert stage.advance(values)
        if count == 3:
            requests.sampled.catch_up()
    assert not stage.advance(values)
    rows[1] = ("b", 32, 6, [9])
    assert not requests.goes_on(step(dict.fromkeys("abc", 1), olds=cached(*rows)))
    requests.sampled.catch_up()
    assert batch.num_tokens_no_spec[:3].tolist() == (lengths + 5).tolist()
    assert batch.token_ids_cpu[1, 27:32].tolist() == [11, 12, 13, 14, 15]
    batch.num_computed_tokens_cpu[:3] = computed
    builder.build_closed(other, False)
    assert stage.numpy.tolist() == other.numpy.tolist()
    assert other.steps_left == 0
