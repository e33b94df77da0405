"""Modules that a start has no use for are not imported: each of them would be seen in every start's time.

Lists are of what is installed here and absent today. vLLM and torch_npu import much more than is used (sympy,
torch._inductor, openai, ...); that is theirs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
import torch
after_torch = sorted(name for name, module in sys.modules.items() if module is not None)
from vllm import LLM
LLM(model=sys.argv[1], max_model_len=64, max_num_seqs=2)
after_llm = sorted(name for name, module in sys.modules.items() if module is not None)
print(json.dumps([after_torch, after_llm]))
"""
# what import torch brings, torch_npu with it, of aloft: the standard library's users only
AUTOLOAD = {"aloft", "aloft.runtime", "aloft.runtime.autoload", "aloft.runtime.choice"}
NOT_WITH_TORCH = {
    "triton", "torch._dynamo", "torch._inductor", "torch.onnx", "torch.utils.tensorboard",
    "torch.distributed.pipelining", "vllm", "transformers", "tokenizers", "safetensors", "huggingface_hub", "PIL",
    "cv2", "networkx", "jinja2", "pydantic", "requests", "aiohttp", "psutil", "regex", "typer", "rich",
}  # fmt: skip
NOT_WITH_ENGINE = {
    "triton", "torch.utils.tensorboard", "torch.distributed.pipelining", "torch_npu._inductor", "gguf",
    "mistral_common", "lmformatenforcer", "outlines_core", "depyf", "anthropic", "mcp", "uvicorn", "typer", "rich",
    "jsonschema", "cryptography", "pycountry",
    "aloft.cli", "aloft.quantizer", "aloft.evaluation", "aloft.ops.contracts", "aloft.ops.families",
    "aloft.ops.conformance", "aloft.ops.generate", "aloft.ops.execute",
}  # fmt: skip
MODELS = "vllm.model_executor.models."
# of vLLM's models: the one that is served, and what its registry needs
SERVED = {"adapters", "config", "interfaces", "interfaces_base", "llama", "registry", "utils", "vision"}


@pytest.fixture(scope="module")
def imported(model: Path) -> tuple[set[str], set[str]]:
    """Names of the modules after `import torch`, and after an engine has started in the process."""
    quiet = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    # a test run's own start-up hooks import modules
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    command = [sys.executable, "-c", PROGRAM, str(model)]
    result = subprocess.run(command, env=kept | quiet, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    after_torch, after_llm = json.loads(result.stdout.strip().splitlines()[-1])
    return set(after_torch), set(after_llm)


def test_names_of_ours_are_not_stale() -> None:
    own = {name for name in NOT_WITH_ENGINE | AUTOLOAD if name.partition(".")[0] == "aloft"}
    assert [name for name in sorted(own) if importlib.util.find_spec(name) is None] == []


def test_torch(imported: tuple[set[str], set[str]]) -> None:
    names, _ = imported
    assert "torch_npu" in names  # by its autoload
    assert sorted(names & NOT_WITH_TORCH) == []
    assert {name for name in names if name.partition(".")[0] == "aloft"} == AUTOLOAD


def test_engine(imported: tuple[set[str], set[str]]) -> None:
    _, names = imported
    assert "aloft.runner.worker" in names
    assert sorted(names & NOT_WITH_ENGINE) == []


def test_models_that_are_not_served_stay_out(imported: tuple[set[str], set[str]]) -> None:
    _, names = imported
    own = {name.removeprefix(MODELS) for name in names if name.startswith(MODELS)}
    assert own == SERVED
    zoo = {name for name in names if name.startswith("transformers.models.") and ".modeling_" in name}
    assert zoo == {"transformers.models.auto.modeling_auto"}
