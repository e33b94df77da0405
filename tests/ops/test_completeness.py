"""Every operator that aloft names has a contract, and what libopapi exports is known to torch_npu."""

from __future__ import annotations

import subprocess
import sys

from aloft.ops.registry import overloads, standard

NAMED = [
    *("linear", "mm", "addmm", "bmm", "baddbmm", "embedding"),
    *("npu_rms_norm", "npu_add_rms_norm", "npu_gemma_rms_norm", "npu_swiglu"),
    *("npu_rotary_mul", "npu_apply_rotary_pos_emb", "_npu_rotary_embedding", "npu_mrope"),
    *("npu_scatter_pa_kv_cache", "npu_gather_pa_kv_cache"),
    *("npu_fused_infer_attention_score", "npu_fused_infer_attention_score_v2"),
    *("npu_fusion_attention", "npu_attention_update"),
    *("npu_top_k_top_p", "npu_format_cast"),
    *("npu_moe_gating_top_k_softmax", "npu_moe_gating_top_k", "npu_moe_init_routing_v2", "npu_moe_token_unpermute"),
    *("npu_grouped_matmul", "npu_grouped_matmul_swiglu_quant"),
    *("paged_attention", "decode_attention", "attention_input", "mlp_block", "gated_matmul", "decoder_stack"),
    *("greedy_tokens", "draw_tokens", "sample_tokens", "uniform_numbers"),
    *("softmax", "log_softmax", "argmax", "topk", "sort", "cumsum", "index_select", "scatter"),
]


def test_named_operators_have_contracts() -> None:
    missing = set(NAMED) - set(standard().names())
    assert not missing, f"without a contract: {sorted(missing)}"


def test_schemas_exist_in_the_binary() -> None:
    missing = [
        schema
        for contract in standard().all()
        for schema in contract.schemas
        if not contract.optional and not overloads(schema)
    ]
    assert missing == []


def test_tolerances_say_why() -> None:
    for contract in standard().all():
        for tolerance in contract.tolerance.values():
            assert len(tolerance.why.split()) >= 2, f"{contract.name}: {tolerance}"


def test_ops_never_imports_vllm() -> None:
    code = (
        "import sys, aloft.ops.conformance, aloft.ops.registry as registry\n"
        "registry.standard().all()\n"
        "assert 'vllm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
