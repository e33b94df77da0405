"""The platform: every hook defined, every limit refused in one sentence, loading order and messages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from aloft import compat, limits, offline, plugin
from aloft.errors import UnsupportedFeature, UnsupportedVersion
from aloft.platform import AloftPlatform

# Section 3 of the reference: members without a usable default, and those whose default is wrong for an NPU
HOOKS = [
    "_enum",
    "device_name",
    "device_type",
    "dispatch_key",
    "dist_backend",
    "simple_compile_backend",
    "device_control_env_var",
    "supported_quantization",
    "get_device_name",
    "get_device_total_memory",
    "get_device_uuid",
    "set_device",
    "manual_seed_all",
    "get_current_memory_usage",
    "num_compute_units",
    "check_if_supports_dtype",
    "stateless_init_device_torch_dist_pg",
    "get_punica_wrapper",
    "check_runner_kv_caches_multi_layer",
    "get_all_gpu_pci_bus_ids",
    "get_attn_backend_cls",
    "check_and_update_config",
    "support_hybrid_kv_cache",
    "support_static_graph_mode",
    "is_sleep_mode_available",
    "is_pin_memory_available",
    "opaque_attention_op",
    "supported_dtypes",
    "import_kernels",
    "import_ir_kernels",
    "get_default_ir_op_priority",
    "register_triton_kernel_overrides",
    "pre_register_and_update",
    "apply_config_platform_defaults",
    "update_block_size_for_backend",
    "register_custom_kv_cache_specs",
    "validate_request",
    "synchronize",
    "empty_cache",
]


@pytest.mark.parametrize("name", HOOKS)
def test_hook_is_defined_by_us(name):
    """Platform.__getattr__ answers None for what is missing, so presence is checked on the class itself."""
    assert name in vars(AloftPlatform)


def test_every_touched_name_resolves():
    for name in compat.TOUCHED:
        compat.resolve(name)


def test_a_missing_name_is_a_clear_error():
    with pytest.raises(UnsupportedVersion, match=r"vllm\.config:Gone"):
        compat.resolve("vllm.config:Gone")


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(compat.metadata, "version", lambda name: "0.40.1")
    with pytest.raises(UnsupportedVersion, match=r"0\.32\.x.*0\.40\.1"):
        compat.check_version()


def test_vllm_picks_the_platform_in_a_fresh_process():
    """Also: usage statistics are off, importing the platform module pulls in no vllm.config, plugins load twice."""
    script = """
import json, os, sys
import aloft.platform
early = [m for m in sys.modules if m == "vllm.v1.worker.worker_base"]
from vllm.platforms import current_platform as p
from vllm import plugins
from aloft import plugin
plugins.load_general_plugins(); plugin.general(); plugin._general_done = False; plugin.general()
from vllm.usage.usage_lib import is_usage_stats_enabled
print(json.dumps([type(p).__name__, p.device_type, early, is_usage_stats_enabled()]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == ["AloftPlatform", "npu", [], False]


def test_two_active_platforms_are_named(monkeypatch, caplog):
    rival = SimpleNamespace(name="ascend", value="vllm_ascend:register", load=lambda: lambda: "vllm_ascend.NPU")
    monkeypatch.setattr(plugin.metadata, "entry_points", lambda group: [rival])
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.setattr("logging.Logger.propagate", True, raising=False)
    messages = []
    monkeypatch.setattr(plugin.logger, "error", lambda text, *args: messages.append(text % args))
    assert plugin.platform() == plugin.PLATFORM
    assert "VLLM_PLUGINS=aloft" in messages[0] and "VLLM_PLUGINS=ascend" in messages[0]
    messages.clear()
    monkeypatch.setenv("VLLM_PLUGINS", "aloft")
    plugin.platform()
    assert not messages


def test_usage_statistics_respect_the_user(monkeypatch):
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "0")
    offline.no_usage_stats()
    assert os.environ["VLLM_NO_USAGE_STATS"] == "0"


def test_hub_goes_offline_for_local_paths_only(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert not offline.hub_offline(str(tmp_path), "some/repo")
    assert not constants.HF_HUB_OFFLINE
    assert offline.hub_offline(str(tmp_path), None)
    assert constants.HF_HUB_OFFLINE and os.environ["HF_HUB_OFFLINE"] == "1"
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert not offline.hub_offline(str(tmp_path))


def _config(**changes):
    parallel = dict.fromkeys(limits.PARALLEL, 1) | dict.fromkeys(
        ("enable_expert_parallel", "enable_eplb", "enable_dbo", "enable_elastic_ep"), False
    )
    model = dict.fromkeys(
        [
            "quantization",
            "is_encoder_decoder",
            "is_multimodal_model",
            "use_mla",
            "is_hybrid",
            "has_inner_state",
            "enable_sleep_mode",
            "sleep_preserve_parameter_names",
            "sleep_mode_offload_cudagraph",
            "enable_prompt_embeds",
        ]
    ) | {"runner_type": "generate", "model": "M", "dtype": torch.bfloat16, "sleep_mode_backend": "cumem"}
    top = dict.fromkeys(
        ("lora_config", "speculative_config", "kv_transfer_config", "weight_transfer_config", "aux_output_config")
    )
    cache = {"cache_dtype": "auto", "kv_offloading_size": None, "kv_cache_dtype_skip_layers": []}
    scheduler = {"disable_hybrid_kv_cache_manager": None}
    for name, value in changes.items():
        (part,) = [part for part in (parallel, model, top, cache, scheduler) if name in part]
        part[name] = value
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**parallel),
        model_config=SimpleNamespace(**model),
        cache_config=SimpleNamespace(**cache),
        scheduler_config=SimpleNamespace(**scheduler),
        profiler_config=SimpleNamespace(profiler=None),
        offload_config=SimpleNamespace(
            uva=SimpleNamespace(cpu_offload_gb=0), prefetch=SimpleNamespace(offload_group_size=0)
        ),
        **top,
    )


@pytest.mark.parametrize(
    ("change", "flag"),
    [
        ({"tensor_parallel_size": 2}, "--tensor-parallel-size"),
        ({"pipeline_parallel_size": 2}, "--pipeline-parallel-size"),
        ({"data_parallel_size": 2}, "--data-parallel-size"),
        ({"prefill_context_parallel_size": 2}, "--prefill-context-parallel-size"),
        ({"decode_context_parallel_size": 2}, "--decode-context-parallel-size"),
        ({"enable_expert_parallel": True}, "--enable-expert-parallel"),
        ({"enable_eplb": True}, "--enable-eplb"),
        ({"lora_config": object()}, "--enable-lora"),
        ({"speculative_config": object()}, "--speculative-config"),
        ({"kv_transfer_config": object()}, "--kv-transfer-config"),
        ({"cache_dtype": "fp8_e5m2"}, "--kv-cache-dtype must be auto, bfloat16, fp8 or fp8_e4m3, not fp8_e5m2"),
        ({"cache_dtype": "bfloat16", "dtype": torch.float32}, "--kv-cache-dtype must be auto, fp8 or fp8_e4m3, not"),
        ({"cache_dtype": "fp8", "kv_cache_dtype_skip_layers": ["0"]}, "--kv-cache-dtype-skip-layers"),
        ({"cache_dtype": "fp8_e4m3", "disable_hybrid_kv_cache_manager": True}, "--disable-hybrid-kv-cache-manager"),
        ({"weight_transfer_config": object()}, "--weight-transfer-config"),
        ({"kv_offloading_size": 1.0}, "--kv-offloading-size"),
        ({"runner_type": "pooling"}, "--runner"),
        ({"enable_sleep_mode": True, "sleep_mode_backend": "criu"}, "--sleep-mode-backend criu"),
        ({"enable_sleep_mode": True, "sleep_preserve_parameter_names": ["*"]}, "--sleep-preserve-parameter-names"),
        ({"enable_sleep_mode": True, "sleep_mode_offload_cudagraph": True}, "--sleep-mode-offload-cudagraph"),
        ({"enable_prompt_embeds": True}, "--enable-prompt-embeds"),
        ({"is_multimodal_model": True}, "--model"),
        ({"is_encoder_decoder": True}, "--model"),
        (
            {"aux_output_config": SimpleNamespace(enable_return_routed_experts=True)},
            "--enable-return-routed-experts",
        ),
        ({"use_mla": True}, "--model"),
        ({"is_hybrid": True}, "--model"),
    ],
)
def test_limit_is_one_sentence_naming_the_flag(change, flag):
    with pytest.raises(UnsupportedFeature) as raised:
        limits.check(_config(**change))
    text = str(raised.value)
    assert flag in text and text.endswith(".") and len(re.findall(r"[.!?](\s|$)", text)) == 1


def test_a_plain_configuration_is_accepted():
    limits.check(_config())
    limits.check(_config(cache_dtype="fp8"))
    limits.check(_config(enable_sleep_mode=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(ValueError, match="--dtype"):
        AloftPlatform.check_if_supports_dtype(dtype)


def test_wrong_settings_are_said_before_anything_starts(monkeypatch):
    from aloft import platform
    from aloft.errors import PlatformUnavailable
    from aloft.runtime import settings

    monkeypatch.setattr(settings, "complaint", lambda: "ALOFT_SOC=x is not a known device; valid: 910B3")
    with pytest.raises(PlatformUnavailable, match=r"^ALOFT_SOC=x is not a known device; valid: 910B3\.$"):
        platform._require_device.__wrapped__()


def test_worker_has_every_method_vllm_calls_by_name():
    from aloft.runner.worker import AloftWorker

    called = [
        "init_device",
        "load_model",
        "get_kv_cache_spec",
        "get_supported_kv_cache_layouts",
        "set_kv_cache_layout",
        "determine_available_memory",
        "update_max_model_len",
        "initialize_from_config",
        "compile_or_warm_up_model",
        "get_supported_tasks",
        "execute_model",
        "sample_tokens",
        "take_draft_token_ids",
        "execute_dummy_batch",
        "check_health",
        "synchronize_device",
        "add_lora",
        "remove_lora",
        "pin_lora",
        "list_loras",
        "sleep",
        "wake_up",
        "discard",
        "reset_mm_cache",
        "reset_encoder_cache",
        "profile",
        "save_sharded_state",
        "compute_weight_checksums",
        "supports_draft_weight_updates",
        "init_weight_transfer_engine",
        "start_weight_update",
        "start_draft_weight_update",
        "update_weights",
        "finish_weight_update",
        "shutdown_weight_transfer_engine",
        "checkpoint_prepare",
        "checkpoint_restore",
        "apply_model",
        "get_model",
        "get_model_inspection",
        "reinitialize_distributed",
        "handle_ft_command",
        "elastic_ep_execute",
        "shutdown",
        "get_kv_connector_handshake_metadata",
        "get_simple_cpu_offload_num_cpu_blocks",
    ]
    assert [name for name in called if not callable(getattr(AloftWorker, name, None))] == []


def test_refused_worker_methods_raise_a_sentence():
    from aloft.runner.worker import AloftWorker

    worker = object.__new__(AloftWorker)
    for call in (worker.execute_dummy_batch, worker.reset_weights, worker.list_loras, worker.compute_weight_checksums):
        with pytest.raises(UnsupportedFeature, match=r"^aloft does not support .*\.$"):
            call()


def test_a_grammar_with_a_list_of_tokens_is_refused():
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    from aloft.platform import AloftPlatform

    grammar = StructuredOutputsParams(json='{"type": "object"}')
    AloftPlatform.validate_request(None, SamplingParams(structured_outputs=grammar))
    AloftPlatform.validate_request(None, SamplingParams(allowed_token_ids=[1, 2]))
    with pytest.raises(ValueError, match="structured output and allowed_token_ids cannot be combined"):
        AloftPlatform.validate_request(None, SamplingParams(structured_outputs=grammar, allowed_token_ids=[1, 2]))


@pytest.mark.parametrize(("cache", "window", "warns"), [("auto", 64, True), ("auto", 128, False), ("fp8", 64, False)])
def test_a_window_without_an_fp8_cache_is_said(monkeypatch, cache, window, warns):
    from aloft import platform

    said: list[str] = []
    monkeypatch.setattr(platform.logger, "warning_once", said.append)
    platform._check_window(cache, window)
    assert [("kv_fp8_window" in text) for text in said] == [True] * warns
