"""A persistent batch for tests that need no engine."""

from __future__ import annotations

import pytest
import torch
from steps import BLOCK, VOCAB
from vllm.v1.worker.gpu_input_batch import InputBatch

from aloft.runner.logprobs import PromptLogprobs
from aloft.runner.requests import Requests


@pytest.fixture
def batch():
    return InputBatch(
        max_num_reqs=8,
        max_model_len=256,
        max_num_batched_tokens=128,
        device=torch.device("cpu"),
        vocab_size=VOCAB,
        block_sizes=[BLOCK],
        max_num_blocks_per_req=[16],
    )


@pytest.fixture
def requests(batch):
    prompt_logprobs = PromptLogprobs(VOCAB, "raw_logprobs", lambda hidden: hidden)
    return Requests(batch, torch.device("cpu"), prompt_logprobs, custom_processors=False)
