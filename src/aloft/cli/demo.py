"""`aloft demo`: one answer offline through vllm.LLM, with the time each part took."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from typing import Any

from aloft.cli.demo_model import ensure
from aloft.cli.reason import told
from aloft.runtime.choice import device_line


def demo(prompt: str, max_tokens: int) -> int:
    """Print the demo model's answer, the device, and where the time went; return 0.

    The engine runs in this process: a second one would import everything again.
    """
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    marks = [time.perf_counter()]
    folder = ensure()
    marks.append(time.perf_counter())
    import torch  # noqa: F401
    import torch_npu  # noqa: F401
    from vllm import LLM, SamplingParams

    marks.append(time.perf_counter())
    with told():
        llm = LLM(model=str(folder), max_model_len=1024, max_num_seqs=8, disable_log_stats=True)
    marks.append(time.perf_counter())
    parameters = SamplingParams(temperature=0, max_tokens=max_tokens)
    messages: list[Any] = [{"role": "user", "content": prompt}]
    output = llm.chat(messages, parameters, use_tqdm=False)[0].outputs[0]
    marks.append(time.perf_counter())
    model_s, imports_s, engine_s, generation_s = (after - before for before, after in pairwise(marks))
    num_tokens = len(output.token_ids)
    print(f"question  {prompt}")
    print(f"answer    {output.text.strip()}")
    print(f"speed     {num_tokens} tokens in {generation_s:.2f} s")
    print(f"device    {device_line()}")
    print(
        f"time      model folder {model_s:.1f} s, imports (torch, torch_npu, vllm) {imports_s:.1f} s, "
        f"engine start {engine_s:.1f} s, generation {generation_s:.1f} s",
        flush=True,
    )
    return 0
