"""One decoder layer at a time: the tensors of a Hugging Face folder, and the modules transformers builds from them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

#: the linear layers of a block by the input they share, and the module whose output that input is (scaled by)
STAGES: dict[str, tuple[tuple[str, ...], str]] = {
    "qkv": (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "input_layernorm"),
    "o": (("self_attn.o_proj",), "self_attn.v_proj"),
    "gate_up": (("mlp.gate_proj", "mlp.up_proj"), "post_attention_layernorm"),
    "down": (("mlp.down_proj",), "mlp.up_proj"),
}
LINEARS = tuple(name for names, _ in STAGES.values() for name in names)


class Decoder:
    """A decoder-only model whose blocks are loaded one by one.

    Raises:
        ValueError: the folder holds no such model, or one whose blocks are built otherwise.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.open(folder)
        with torch.device("meta"):
            skeleton: Any = AutoModelForCausalLM.from_config(self.config, dtype=torch.bfloat16)
        self.body: Any = getattr(skeleton, "model", torch.nn.Module())
        first = getattr(self.body, "layers", [None])[0]
        missing = [name for name in LINEARS if first is None or _linear(first, name) is None]
        if missing:
            raise ValueError(
                f"{folder}: the blocks of {self.config.model_type} have no {missing[0]}; the tool knows models with "
                f"{', '.join(LINEARS)}"
            )
        self.rotary: Any = type(self.body.rotary_emb)(config=self.config)
        self.num_layers = len(self.body.layers)

    def open(self, folder: Path) -> None:
        """Reads what the folder says about itself."""
        from transformers import AutoConfig

        if not (folder / "config.json").is_file():
            raise ValueError(f"{folder} is no model folder: it has no config.json")
        self.folder = folder
        self.config = AutoConfig.from_pretrained(folder)
        described = any(folder.glob("quant_model_description*.json"))
        if described or getattr(self.config, "quantization_config", None) is not None:
            raise ValueError(f"{folder} is quantized already; the tool starts from a bfloat16 or float16 model")
        self.where = tensor_files(folder)
        self.tied = bool(self.config.tie_word_embeddings) and "lm_head.weight" not in self.where

    def input_features(self) -> set[int]:
        """The linear layers' numbers of input features."""
        return {submodule(self.body.layers[0], name).in_features for name in LINEARS}

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor of the checkpoint."""
        from safetensors import safe_open

        with safe_open(self.folder / self.where[name], framework="pt") as file:
            return file.get_tensor(name)

    def layer(self, index: int) -> torch.nn.Module:
        """Block ``index`` with its weights, on the CPU, in the checkpoint's dtype rounded to bfloat16."""
        with torch.device("meta"):
            layer = copy.deepcopy(self.body.layers[index])
        prefix = f"model.layers.{index}."
        state = {}
        from safetensors import safe_open

        with ExitStack() as stack:
            files: dict[str, Any] = {}
            for name, file in self.where.items():
                if name.startswith(prefix):
                    if file not in files:
                        files[file] = stack.enter_context(safe_open(self.folder / file, framework="pt"))
                    state[name[len(prefix) :]] = files[file].get_tensor(name).to(torch.bfloat16)
        made = layer.to_empty(device="cpu")
        made.load_state_dict(state, strict=True)
        return made.eval()

    def norm(self, gain: torch.Tensor) -> torch.nn.Module:
        """The norm after the last block with a gain ``[hidden]``."""
        with torch.device("meta"):
            norm = copy.deepcopy(self.body.norm)
        made = norm.to_empty(device="cpu").requires_grad_(False)
        made.load_state_dict({"weight": gain.to(torch.bfloat16)}, strict=True)
        return made

    def others(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor that belongs to no block."""
        for name in self.where:
            if not name.startswith("model.layers."):
                yield name, self.tensor(name)


def submodule(layer: torch.nn.Module, name: str) -> Any:
    return layer.get_submodule(name)


def _linear(layer: Any, name: str) -> torch.nn.Linear | None:
    try:
        found = layer.get_submodule(name)
    except AttributeError:
        return None
    return found if isinstance(found, torch.nn.Linear) else None


def tensor_files(folder: Path) -> dict[str, str]:
    """Tensor name -> file."""
    from safetensors import safe_open

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return dict(json.loads(index.read_text())["weight_map"])
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no *.safetensors files")
    where = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            where.update(dict.fromkeys(opened.keys(), file.name))
    return where
