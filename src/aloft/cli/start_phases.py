"""The phases of a start, in the order they are printed; what is in none of them is `REST`."""

from __future__ import annotations

PYTHON = "Python itself"
TORCH = "import torch"
TORCH_NPU = "import torch_npu (torch's autoload)"
VLLM = "import vllm"
PLUGINS = "aloft: platform, plugins, worker"
CONFIG = "configuration"
TOKENIZER = "tokenizer"
DEVICE = "device and process groups"
CONSTRUCTION = "model construction"
READING = "reading weights"
PACKING = "packing weights (NZ, compact form)"
FUSING = "memory check, fusing layers"
PROFILE = "profile run"
PLANNING = "KV cache planning"
ALLOCATION = "KV cache allocation, batch"
WARM_UP = "warm-up"
ENGINE = "engine: scheduler, inputs, outputs"
TEMPLATE = "chat template"
REST = "the rest"

PHASES = (
    PYTHON, TORCH, TORCH_NPU, VLLM, PLUGINS, CONFIG, TOKENIZER, DEVICE, CONSTRUCTION, READING, PACKING, FUSING, PROFILE,
    PLANNING, ALLOCATION, WARM_UP, ENGINE, TEMPLATE, REST,
)  # fmt: skip
