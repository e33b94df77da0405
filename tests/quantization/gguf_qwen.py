"""Tiny Qwen2 and Qwen3 models, written as GGUF files by the format's own library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import torch

VOCABULARY, BOS, EOS = 320, 256, 257
CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
_PARTS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make(architecture: str, tied: bool) -> Any:
    """A random model in float64, whose biases and norms are none that could be left out."""
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    kinds = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
    config_class, model_class = kinds[architecture]
    config = config_class(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        # Qwen2's head size is the hidden size over the heads; Qwen3's is its own
        num_attention_heads=2 if architecture == "qwen2" else 4,
        num_key_value_heads=1 if architecture == "qwen2" else 2,
        **({"head_dim": 64} if architecture == "qwen3" else {}),
        max_position_embeddings=512,
        rope_theta=100000.0,
        tie_word_embeddings=tied,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    torch.manual_seed(5)
    model = model_class(config).double().eval()
    with torch.no_grad():
        for name, values in model.named_parameters():
            if values.dim() == 2:
                values.normal_(
                    0, (1.5 if "embed" not in name and "lm_head" not in name else 3) / values.shape[1] ** 0.5
                )
            elif name.endswith("bias"):
                values.normal_(0, 1)
            else:
                values.uniform_(0.5, 1.5)
    return model


def write(model: Any, path: Path, kind: str, others: dict[str, str] | None = None, tokenizer: bool = True) -> None:
    """Write the model; its weights become those of the file, dequantized.

    kind: type of its layers. others: tensor -> another type.
    """
    import gguf
    from gguf.quants import dequantize, quantize

    config = model.config
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if config.model_type == "qwen3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(100000.0)
    if tokenizer:
        _tokenizer(writer)
    for name, values in model.named_parameters():
        layer, _, suffix = name.rpartition(".")
        if layer.startswith("model.layers."):
            _, _, number, part = layer.split(".", 3)
            target = f"blk.{number}.{_PARTS[part]}.{suffix}"
        else:
            target = f"{_PARTS[layer]}.{suffix}"
        weight = values.data.float().numpy()
        chosen = (others or {}).get(target, kind if weight.ndim == 2 and "blk" in target else "F32")
        type_ = gguf.GGMLQuantizationType[chosen]
        if chosen == "Q4_K":  # the library reads it and does not write it
            held = numpy.zeros((weight.shape[0], weight.shape[1] // 256 * 144), numpy.uint8)
        else:
            held = quantize(weight, type_)
            values.data = torch.from_numpy(dequantize(held, type_)).double()
        writer.add_tensor(target, held, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tokenizer(writer: Any) -> None:
    """A token a byte, two control tokens, one merged token; unused ones up to the size of the table."""
    import gguf
    from tokenizers import pre_tokenizers

    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>", "th"]
    tokens += [f"<unused{number}>" for number in range(VOCABULARY - len(tokens))]
    normal, control, unused = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL, gguf.TokenType.UNUSED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([normal] * BOS + [control] * 2 + [normal] + [unused] * (VOCABULARY - EOS - 2))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
