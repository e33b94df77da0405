"""Tiny random mixtures of experts, beside ``tiny``'s Llama: 8 experts, 2 a token."""

from __future__ import annotations

import json
import math
from pathlib import Path

import tiny
import torch

EXPERTS, TOP_K, WIDTH = 8, 2, 96
KINDS = ("qwen3_moe", "qwen2_moe", "mixtral")


def _model(kind: str):
    import transformers

    shape = {
        "vocab_size": 320,
        "hidden_size": tiny.HIDDEN,
        "intermediate_size": 160,
        "num_hidden_layers": tiny.LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": tiny.MAX_LEN,
        "bos_token_id": 256,
        "eos_token_id": tiny.EOS,
        "tie_word_embeddings": False,
        "num_experts_per_tok": TOP_K,
    }
    if kind == "mixtral":
        shape |= {"num_local_experts": EXPERTS, "intermediate_size": WIDTH}
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(**shape))
    shape |= {"num_experts": EXPERTS, "moe_intermediate_size": WIDTH, "decoder_sparse_step": 1}
    if kind == "qwen3_moe":
        shape |= {"norm_topk_prob": True, "head_dim": tiny.HEAD_DIM}
        return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**shape))
    shape |= {"norm_topk_prob": False, "shared_expert_intermediate_size": 160}
    return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**shape))


def make(folder: Path, kind: str, seed: int = 0) -> Path:
    """Writes a model of one of ``KINDS`` (bfloat16 weights) and its tokenizer; returns the folder."""
    torch.manual_seed(seed)
    model = _model(kind)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() < 2:
                continue
            gain = {"embed_tokens": math.sqrt(weight.shape[-1]), "lm_head": 3.0, "mlp.gate.": 4.0}
            scale = next((g for part, g in gain.items() if part in name), 1.5)
            weight.normal_(0, scale / math.sqrt(weight.shape[-1]))
            if "gate.weight" in name and weight.shape[0] == EXPERTS:
                weight[5] = -weight[0]  # chosen where the first is far from it
        model.lm_head.weight[tiny.EOS :] = 0
    model.to(torch.bfloat16).save_pretrained(folder)
    tiny._tokenizer().save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": tiny.EOS}))
    return folder
