"""The vocabulary of ``--additional-config``: keys of vllm-ascend that mean nothing here, each with the reason.

A key that is known from the peer but has no effect is accepted with a warning, so that a command line written for
vllm-ascend starts; a key nobody knows is refused (see ``aloft.config``).
"""

from __future__ import annotations

_LATER = "not implemented yet"
_REMOVED = "vllm-ascend removed it"
_MOE = "mixture-of-experts communication is not implemented yet"
_GRAPH = "not implemented yet; decode steps are captured as a whole (cudagraph_mode, cudagraph_capture_sizes)"
_SCHED = "only vLLM's own scheduler is used"

# key (sections dotted) -> why it has no effect. A section listed without its members covers all of them.
WITHOUT_EFFECT: dict[str, str] = {
    "refresh": "the configuration is parsed once per engine, there is nothing to refresh",
    "pa_shape_list": "one attention operator serves every shape",
    "enable_transpose_kv_cache_by_block": "prefill/decode disaggregation is not implemented yet",
    "enable_reduce_sample": "sampling is not split over ranks",
    "enable_dsa_cp": "context parallelism is not implemented yet",
    "enable_cpu_binding": "threads are shared between engines instead of pinned",
    "enable_mlapo": "multi-head latent attention is not implemented yet",
    "enable_kv_nz": "the KV cache is kept in ND layout",
    "enable_fused_mc2": _MOE,
    "enable_prefill_mc2": _MOE,
    "enable_mc2_hierarchy_comm": _MOE,
    "mega_moe_max_tokens": _MOE,
    "enable_shared_expert_dp": _MOE,
    "multistream_overlap_shared_expert": _MOE,
    "mix_placement": _MOE,
    "msmonitor_use_daemon": "there is no msmonitor here",
    "dump_config": _LATER,
    "dump_config_path": _LATER,
    "ascend_log_path": "the runtime logs through Python logging",
    "ascend_compilation_config": _GRAPH,
    "ascend_fusion_config": _GRAPH,
    "xlite_graph_config": "there is no external graph runtime here",
    "scheduler_config": _SCHED,
    "enable_balance_scheduling": _SCHED,
    "recompute_scheduler_enable": _SCHED,
    "eplb_config": _MOE,
    "rl_config": _LATER,
    "enable_sleep_mode_extra_cleanup": "a sleep always drops captured steps, and there are no communicators",
    "rejection_sampler_config": "speculative decoding is not implemented yet",
    "dynamic_spec_config": "speculative decoding is not implemented yet",
    "sparse_kv_offload_config": "KV offload is not implemented yet",
    "finegrained_tp_config": "tensor parallelism is not implemented yet",
    "layer_sharding": _REMOVED,
    "SLO_limits_for_dynamic_batch": _REMOVED,
    "weight_prefetch_config": _REMOVED,
    "enable_flashcomm1": _REMOVED,
    # spellings of the peer's documentation, reserved for later issues
    "torchair_graph_config": _GRAPH,
    "ascend_scheduler_config": _SCHED,
    "expert_map_path": _MOE,
}
