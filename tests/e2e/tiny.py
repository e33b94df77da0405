"""A tiny random Llama with a byte tokenizer: a Hugging Face folder that loads in a blink.

The weights are scaled so that greedy text keeps changing and the best token leads clearly; head size 64 takes the
same operators a real model takes.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

LAYERS, HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 2, 4, 2, 64, 128
MAX_LEN = 512
EOS = 257


def make(folder: Path, seed: int = 0) -> Path:
    """Writes the model (bfloat16 weights) and its tokenizer; returns the folder."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer()
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=HIDDEN,
        intermediate_size=192,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_LEN,
        bos_token_id=256,
        eos_token_id=EOS,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() < 2:
                continue
            gain = {"embed_tokens": math.sqrt(weight.shape[1]), "lm_head": 3.0, "q_proj": 2.0, "k_proj": 2.0}
            scale = next((g for part, g in gain.items() if part in name), 1.5)
            weight.normal_(0, scale / math.sqrt(weight.shape[1]))
        model.lm_head.weight[EOS:] = 0  # neither the end nor the unused ids win by chance
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    return folder


def _tokenizer():
    """One token a byte (GPT-2's byte alphabet), then <s> and </s>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False
    )
