"""Names of a GGUF file's tensors, and the row order of those that llama.cpp rearranges."""

from __future__ import annotations

from typing import TypeVar

#: GGUF's architectures -> the model's class
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
#: whose query and key rows lie in the order of interleaved rope
PERMUTED = ("llama",)
TABLES = {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight"}
#: factors of stretched rope, which config.json states as well
FREQUENCIES = "rope_freqs.weight"

_OUTSIDE = TABLES | {"output_norm.weight": "model.norm.weight"}
# Below "blk.N." and below "model.layers.N.".
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_Rows = TypeVar("_Rows")


def checkpoint_name(name: str) -> str:
    """The Hugging Face name of a tensor.

    Raises:
        ValueError: it is none of a dense decoder's.
    """
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    parts = name.split(".")
    if len(parts) != 4 or parts[0] != "blk" or parts[2] not in _LAYER or parts[3] not in ("weight", "bias"):
        raise ValueError(f"the GGUF tensor {name!r} is not one of a dense decoder's; there is no layer for it")
    return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"


def head_kind(name: str) -> str:
    """ "attn_q" or "attn_k" for tensors whose rows are rearranged for rope in PERMUTED architectures, else ""."""
    kind = name.split(".")[2] if name.startswith("blk.") else ""
    return kind if kind in ("attn_q", "attn_k") else ""


def unpermute(rows: _Rows, num_heads: int) -> _Rows:
    """Undoes the row order of interleaved rope; numpy or torch.

    Args:
        rows: ``[num_heads * head_dim, ...]``, rows of a head ordered (0, d/2, 1, d/2 + 1, ...).

    Returns:
        The same shape, rows of a head ordered 0 .. d-1.
    """
    array: object = rows
    count, *rest = array.shape  # type: ignore[attr-defined]
    split = array.reshape(num_heads, count // num_heads // 2, 2, *rest)  # type: ignore[attr-defined]
    return split.swapaxes(1, 2).reshape(count, *rest)
