"""The persistent batch under both scheduler formats."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from steps import Event, cached, new, step
from vllm.sampling_params import SamplingParams


def sample(requests, values, rows=None, event=None):
    """What the runner does after a step: ``values`` by row."""
    rows = np.arange(len(values)) if rows is None else np.array(rows)
    tokens = torch.tensor(values, dtype=torch.int32).unsqueeze(1)
    requests.sampled.add(tokens, tokens[:, 0].numpy().copy(), event or Event(), rows, requests.tracked_rows())


def tokens_of(requests, req_id):
    batch = requests.batch
    row = batch.req_id_to_index[req_id]
    return batch.token_ids_cpu[row, : batch.num_tokens_no_spec[row]].tolist()


def test_new_decode_finish(requests):
    assert requests.update(step({"a": 3, "b": 2}, [new("a", [1, 2, 3], [1]), new("b", [4, 5], [2])]))
    sample(requests, [7, 8])
    olds = cached(("a", 3, 1, None), ("b", 2, 1, [5]))
    assert not requests.update(step({"a": 1, "b": 1}, olds=olds))
    assert tokens_of(requests, "a") == [1, 2, 3, 7] and tokens_of(requests, "b") == [4, 5, 8]
    assert requests.batch.block_table[0].block_table.np[1, :2].tolist() == [2, 5]
    sample(requests, [9, 10])
    assert requests.update(step({"b": 1}, olds=cached(("b", 3, 2, None)), finished=["a"]))
    assert tokens_of(requests, "b") == [4, 5, 8, 10]
    assert "a" not in requests.states
    requests.check_integrity()


def test_a_finished_id_can_come_back_in_the_same_step(requests):
    requests.update(step({"a": 3}, [new("a", [1, 2, 3], [1])]))
    sample(requests, [7])
    requests.update(step({"a": 2}, [new("a", [4, 5], [3])], finished=["a"]))
    assert tokens_of(requests, "a") == [4, 5]
    assert requests.batch.block_table[0].block_table.np[0, 0] == 3


def test_finished_rows_leave_even_when_nothing_is_scheduled(requests):
    requests.update(step({"a": 1}, [new("a", [1], [1])]))
    requests.update(step({}, finished=["a"]))
    assert not requests.states and not requests.batch.req_ids


@pytest.mark.parametrize("version", ["V1", "V2"])
def test_preempted_and_resumed(requests, version):
    prompt = [1, 2, 3]
    requests.update(step({"a": 3, "b": 1}, [new("a", prompt, [1]), new("b", [9], [2])]))
    sample(requests, [7, 8])
    requests.update(step({"b": 1}, olds=cached(("b", 1, 1, None)), preempted=["a"]))
    sample(requests, [6])
    assert requests.states["a"].output_token_ids == [7]
    if version == "V1":
        olds = cached(("b", 2, 2, None), ("a", 0, 1, [4, 5]), resumed=["a"], tokens={"a": [*prompt, 7]})
        requests.update(step({"b": 1, "a": 4}, olds=olds))
    else:
        back = new("a", prompt, [4, 5], prefill=[*prompt, 7])
        requests.update(step({"b": 1, "a": 4}, [back], olds=cached(("b", 2, 2, None))))
    assert tokens_of(requests, "a") == [1, 2, 3, 7] and tokens_of(requests, "b") == [9, 8, 6]
    row = requests.batch.req_id_to_index["a"]
    assert requests.batch.block_table[0].block_table.np[row, :2].tolist() == [4, 5]
    assert requests.batch.num_computed_tokens_cpu[row] == 0
    requests.check_integrity()


@pytest.mark.parametrize("version", ["V1", "V2"])
def test_skipped_for_a_step_keeps_its_tokens(requests, version):
    """Not scheduled, not preempted: V1 sends the tokens again, V2 relies on the runner."""
    requests.update(step({"a": 3, "b": 1}, [new("a", [1, 2, 3], [1]), new("b", [9], [2])]))
    sample(requests, [7, 8], event=Event(arrived=False))
    requests.update(step({"b": 1}, olds=cached(("b", 1, 1, None))))
    sample(requests, [6])
    told = {"a": [1, 2, 3, 7]} if version == "V1" else {}
    requests.update(step({"b": 1, "a": 1}, olds=cached(("b", 2, 2, None), ("a", 3, 1, [8]), tokens=told)))
    assert tokens_of(requests, "a") == [1, 2, 3, 7]
    row = requests.batch.req_id_to_index["a"]
    assert requests.batch.block_table[0].block_table.np[row, :2].tolist() == [1, 8]


def test_forced_preemption_resumes_in_the_same_step(requests):
    requests.update(step({"a": 2}, [new("a", [1, 2], [1])]))
    sample(requests, [7])
    olds = cached(("a", 0, 1, [6]), resumed=["a"], tokens={"a": [1, 2, 7]})
    requests.update(step({"a": 3}, olds=olds))
    assert tokens_of(requests, "a") == [1, 2, 7]
    assert requests.batch.block_table[0].block_table.np[0, 0] == 6


def test_a_session_continues_with_a_longer_prompt(requests):
    requests.update(step({"a": 2}, [new("a", [1, 2], [1])]))
    sample(requests, [7])
    requests.update(step({"a": 3}, [new("a", [1, 2, 7, 8, 9], [1, 2], computed=2)]))
    assert tokens_of(requests, "a") == [1, 2, 7, 8, 9]
    assert requests.batch.num_prompt_tokens[0] == 5


def test_tokens_on_their_way_are_placed_after_rows_moved(requests):
    requests.update(step({"a": 1, "b": 1, "c": 1}, [new(r, [i], [i + 1]) for i, r in enumerate("abc")]))
    slow = Event(arrived=False)
    sample(requests, [11, 12, 13], event=slow)
    requests.update(step({"b": 1, "c": 1}, olds=cached(("b", 1, 1, None), ("c", 1, 1, None)), finished=["a"]))
    device, source, target = requests.sampled.on_device()
    found = {requests.batch.req_ids[t]: int(device[s, 0]) for s, t in zip(source, target, strict=True)}
    assert found == {"b": 12, "c": 13}
    slow.arrived = True
    requests.sampled.settle()
    assert tokens_of(requests, "b") == [1, 12] and tokens_of(requests, "c") == [2, 13]


def test_penalised_rows_see_their_output_and_others_cost_nothing(requests):
    params = SamplingParams(temperature=0, presence_penalty=0.5)
    requests.update(step({"a": 1, "b": 1}, [new("a", [1], [1], params), new("b", [2], [2])]))
    slow = Event(arrived=False)
    sample(requests, [11, 12], event=slow)
    assert requests.states["a"].output_token_ids == [-1] and requests.states["b"].output_token_ids == []
    requests.sampled.settle(wait=True)
    assert slow.waited and requests.states["a"].output_token_ids == [11]
    assert requests.batch.sampling_metadata.output_token_ids[0] is requests.states["a"].output_token_ids


def test_seeded_rows_know_their_position(requests):
    params = SamplingParams(temperature=1, seed=5)
    requests.update(step({"a": 2, "b": 1}, [new("a", [1, 2], [1]), new("b", [2], [2], params)]))
    assert [(seed, at) for _, seed, at in requests.positions_of_seeded()] == [(5, 0)]
    sample(requests, [3, 4])
    assert [(seed, at) for _, seed, at in requests.positions_of_seeded()] == [(5, 1)]
