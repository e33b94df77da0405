"""Small random checkpoints for every architecture we claim, and their greedy continuations by Hugging Face.

The weights are scaled so that a test of greedy tokens can fail: attention scores have a spread of
about 2.5 (softmax is neither uniform nor one-hot), every sub-layer moves the residual stream, and the
logits spread over about 8 units, so that the text keeps changing (at least 16 distinct tokens) and
the best token leads the second by a margin far above float32 rounding. `check_bites` asserts both.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

VOCAB = 640
NEW_TOKENS = 32
# Longer than the chunk the engine tests use (64 tokens) and than several cache blocks of 16.
LONG_PROMPT = 150
MAX_LEN = 256


@dataclass(frozen=True)
class Family:
    """One architecture: `config()` is a transformers configuration of a few layers."""

    name: str
    config: Callable[[], object]
    #: chosen so that `check_bites` holds with room (the smallest lead of a best token is above 0.015)
    seed: int
    #: names of norm weights that are stored as an offset from one (Gemma)
    norm_offset: bool = False


def _llama() -> object:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCAB, hidden_size=192, intermediate_size=320, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=MAX_LEN, rope_theta=1e4,
        tie_word_embeddings=False,
    )  # fmt: skip


def _qwen2() -> object:
    from transformers import Qwen2Config

    return Qwen2Config(
        vocab_size=VOCAB, hidden_size=256, intermediate_size=320, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=MAX_LEN, tie_word_embeddings=False, rope_theta=1e6,
    )  # fmt: skip


def _qwen3() -> object:
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=VOCAB, hidden_size=192, intermediate_size=320, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=128, max_position_embeddings=MAX_LEN, tie_word_embeddings=False,
    )  # fmt: skip


def _mistral() -> object:
    from transformers import MistralConfig

    return MistralConfig(
        vocab_size=VOCAB, hidden_size=192, intermediate_size=320, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=3, head_dim=32, max_position_embeddings=MAX_LEN, sliding_window=21,
        tie_word_embeddings=False,
    )  # fmt: skip


def _glm4() -> object:
    from transformers import Glm4Config

    return Glm4Config(
        vocab_size=VOCAB, hidden_size=192, intermediate_size=320, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=MAX_LEN, partial_rotary_factor=0.5,
        tie_word_embeddings=False, attention_bias=True, pad_token_id=0, eos_token_id=[1],
    )  # fmt: skip


def _gemma3() -> object:
    from transformers import Gemma3TextConfig

    return Gemma3TextConfig(
        vocab_size=VOCAB, hidden_size=192, intermediate_size=320, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=256, max_position_embeddings=MAX_LEN, sliding_window=21,
        query_pre_attn_scalar=256, tie_word_embeddings=True,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    )  # fmt: skip


def _opt() -> object:
    from transformers import OPTConfig

    return OPTConfig(
        vocab_size=VOCAB, hidden_size=192, ffn_dim=320, num_hidden_layers=3, num_attention_heads=6,
        max_position_embeddings=MAX_LEN, word_embed_proj_dim=192, do_layer_norm_before=True,
        tie_word_embeddings=False,
    )  # fmt: skip


FAMILIES = {
    f.name: f
    for f in (
        Family("llama", _llama, seed=9),
        Family("qwen2", _qwen2, seed=0),
        Family("qwen3", _qwen3, seed=6),
        Family("mistral", _mistral, seed=9),
        Family("glm4", _glm4, seed=7),
        Family("gemma3", _gemma3, seed=7, norm_offset=True),
        Family("opt", _opt, seed=6),
    )
}


def prompts(seed: int = 0) -> list[list[int]]:
    """Eight prompts of 1 to LONG_PROMPT tokens; two share a long prefix."""
    generator = torch.Generator().manual_seed(1000 + seed)
    lengths = (1, 5, 16, 31, 47, LONG_PROMPT, 97)
    made = [torch.randint(3, VOCAB, (n,), generator=generator).tolist() for n in lengths]
    made.append(made[5][:96] + made[3][:9])
    return made


@torch.no_grad()
def _rescale(model: torch.nn.Module, family: Family, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def normal(p: torch.Tensor, std: float, mean: float = 0.0) -> None:
        p.copy_(torch.randn(p.shape, generator=generator) * std + mean)

    tied = getattr(model.config, "tie_word_embeddings", False)
    for name, p in model.named_parameters():
        if p.dim() == 2 and "embed" in name:
            # Tied (Gemma, which multiplies the embedding by sqrt(hidden)): small, so that a token does
            # not predict itself; the final norm below restores the spread of the logits.
            normal(p, 0.05 / math.sqrt(p.shape[1]) if tied else 1.0)
        elif p.dim() == 2 and "lm_head" in name:
            normal(p, 8.0 / math.sqrt(p.shape[1]))
        elif p.dim() == 2:
            # fc2 follows a ReLU (OPT): its input has a mean, which would pin the text to few tokens
            gain = 1.6 if any(s in name for s in ("q_proj", "k_proj")) else 0.8 if "fc2" in name else 2.0
            normal(p, gain / math.sqrt(p.shape[1]))
        elif name.endswith("bias"):
            normal(p, 0.1)
        elif any(s in name for s in ("q_norm", "k_norm")):
            normal(p, 0.1, 0.6 if family.norm_offset else 1.6)
        elif tied and name == "model.norm.weight":
            normal(p, 2.0, 160.0)
        else:
            normal(p, 0.2, 0.0 if family.norm_offset else 1.0)


@cache
def build(name: str, root: Path, seed: int | None = None) -> Path:
    """The checkpoint folder of family `name` below `root` (made once), in float32 safetensors."""
    from transformers import AutoModelForCausalLM

    family = FAMILIES[name]
    seed = family.seed if seed is None else seed
    folder = root / f"{name}-{seed}"
    if not (folder / "config.json").exists():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(family.config(), dtype=torch.float32).eval()
        _rescale(model, family, seed)
        model.save_pretrained(folder)
    return folder


def quantized(folder: Path, scheme: str, out: Path) -> Path:
    """The checkpoint as `aloft quantize` rounds it, 4-bit weights in groups of 64."""
    from safetensors.torch import load_file, save_file

    from aloft.quantizer import Settings, quantize

    halved = out.with_name(f"{out.name}-bfloat16")
    shutil.copytree(folder, halved)
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, halved / "model.safetensors", metadata={"format": "pt"})
    quantize(halved, out, Settings(scheme, algorithm="minmax", group=64 if scheme.startswith("w4") else None))
    return out


@dataclass(frozen=True)
class Reference:
    """Greedy continuation of one prompt, with the lead of the best logit over the second at each step."""

    tokens: list[int]
    margins: list[float]


@torch.no_grad()
def greedy(folder: Path, prompt: list[int], steps: int = NEW_TOKENS) -> Reference:
    """Greedy tokens by transformers in float32 on the CPU, whole prefill, eager attention."""
    model = _load(folder)
    ids = torch.tensor([prompt])
    past = None
    tokens: list[int] = []
    margins: list[float] = []
    for _ in range(steps):
        out = model(ids, past_key_values=past, use_cache=True)
        past = out.past_key_values
        top = out.logits[0, -1].topk(2)
        tokens.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
        ids = top.indices[:1].view(1, 1)
    return Reference(tokens, margins)


@cache
def _load(folder: Path) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def check_bites(references: list[Reference]) -> None:
    """The references can tell a wrong engine from a right one: varied text, clear margins."""
    for r in references:
        assert len(set(r.tokens)) >= 16, f"only {len(set(r.tokens))} distinct tokens: {r.tokens}"
    least = min(min(r.margins) for r in references)
    assert least > 5e-3, f"the smallest lead of a best token is {least:.5f}: choose another seed"
