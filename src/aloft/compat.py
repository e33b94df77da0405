"""Everything aloft touches in vLLM beyond its documented plugin hooks, in one place.

``TOUCHED`` lists each internal name with the reason; a test resolves all of them, so an upgrade of vLLM shows at
once what has moved. No module of aloft patches vLLM.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from importlib import metadata
from typing import TYPE_CHECKING

from aloft.errors import UnsupportedVersion

if TYPE_CHECKING:
    from vllm.engine.arg_utils import EngineArgs

SUPPORTED = ("0.32.",)
#: how far up engine_args() looks: between its caller and EngineArgs are helpers of ours and VllmConfig's construction
_CALLERS = 8

# "module:qualified.name" -> why aloft needs it
TOUCHED: dict[str, str] = {
    "vllm.engine.arg_utils:EngineArgs.create_engine_config": "asks the platform, which looks what the user gave it",
    "vllm.v1.worker.worker_base:WorkerBase": "base class of the worker",
    "vllm.v1.worker.worker_base:CompilationTimes": "return value of compile_or_warm_up_model",
    "vllm.v1.worker.gpu_input_batch:InputBatch": "persistent batch, sampling metadata",
    "vllm.v1.worker.gpu_input_batch:CachedRequestState": "per-request state",
    "vllm.v1.worker.gpu_input_batch:InputBatch.update_async_output_token_ids": "penalties under async scheduling",
    "vllm.v1.worker.gpu_input_batch:InputBatch.set_async_sampled_token_ids": "penalties under async scheduling",
    "vllm.v1.worker.block_table:BlockTable": "rows of block ids (numpy)",
    "vllm.v1.sample.sampler:Sampler": "logits processors, penalties, temperature",
    "vllm.v1.sample.ops.topk_topp_sampler:random_sample": "sampling with use_fp64_gumbel",
    "vllm.v1.sample.logits_processor:build_logitsprocs": "built-in and custom logits processors",
    "vllm.v1.sample.metadata:SamplingMetadata": "parameters of a sampling step",
    "vllm.v1.outputs:ModelRunnerOutput": "result of a step",
    "vllm.v1.outputs:AsyncModelRunnerOutput": "result of a step under async scheduling",
    "vllm.v1.outputs:LogprobsTensors": "log-probabilities on the device",
    "vllm.v1.outputs:SamplerOutput": "result of sampling",
    "vllm.v1.outputs:EMPTY_MODEL_RUNNER_OUTPUT": "result of an empty step",
    "vllm.compilation.cuda_graph:CUDAGraphStat": "what --cudagraph-metrics counts of a step",
    "vllm.v1.core.sched.output:SchedulerOutput": "what to run in a step",
    "vllm.v1.kv_cache_interface:KVCacheConfig": "KV cache plan",
    "vllm.v1.kv_cache_interface:AttentionSpec": "KV cache pages of a layer",
    "vllm.v1.kv_cache_interface:UniformTypeKVCacheSpecs": "KV cache pages of mixed layers",
    "vllm.v1.kv_cache_layout:KVCacheLayout": "physical layout we ask for",
    "vllm.v1.attention.backend:AttentionBackend": "base class",
    "vllm.v1.attention.backend:AttentionImpl": "base class",
    "vllm.v1.attention.backend:AttentionMetadataBuilder": "base class",
    "vllm.v1.attention.backend:CommonAttentionMetadata": "argument of the builder",
    "vllm.v1.attention.backends.registry:register_backend": "registration",
    "vllm.v1.attention.backends.utils:record_kv_cache_layout": "layout agreed with the planner",
    "vllm.model_executor.custom_op:CustomOp.register_oot": "replacement of operators",
    "vllm.model_executor.custom_op:PluggableLayer.register_oot": "replacement of layers",
    "vllm.model_executor.custom_op:op_registry_oot": "guards against registering twice",
    "vllm.model_executor.layers.linear:UnquantizedLinearMethod": "base of the NZ linear method",
    "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method:UnquantizedFusedMoEMethod": "experts",
    "vllm.model_executor.layers.fused_moe.fused_moe_method_base:FusedMoEMethodBase.is_monolithic": "routing is ours",
    "vllm.model_executor.layers.fused_moe.fused_moe_method_base:FusedMoEMethodBase.apply_monolithic": "same",
    "vllm.model_executor.layers.fused_moe:RoutedExperts": "what a router asked for, parameters of the experts",
    "vllm.model_executor.layers.fused_moe.activation:MoEActivation": "the experts' activation",
    "vllm.model_executor.layers.quantization.base_config:QuantizationConfig": "base of the quantization configs",
    "vllm.model_executor.layers.quantization:register_quantization_config": "registration of checkpoint formats",
    "vllm.model_executor.layers.linear:LinearMethodBase": "base of the quantized linear method",
    "vllm.model_executor.layers.linear:register_weight_loader_v2_supported_method": "loaders that split parameters",
    "vllm.model_executor.parameter:BasevLLMParameter": "parameters of quantized layers, and their subclasses",
    "vllm.model_executor.models.utils:WeightsMapper": "names of a checkpoint's tensors",
    "vllm.config:VllmConfig.get_quantization_config": "config of a ModelSlim checkpoint nobody named",
    "vllm.logprobs:FlatLogprobs": "prompt log-probabilities of aloft eval",
    "vllm.model_executor.layers.attention_layer_base:AttentionLayerBase": "layers that own a KV cache",
    "vllm.model_executor.model_loader:get_model": "model construction and loading",
    "vllm.model_executor.model_loader:register_model_loader": "loading of GGUF files",
    "vllm.model_executor.model_loader.default_loader:DefaultModelLoader.get_all_weights": "loading of GGUF files",
    "vllm.model_executor.models.llama:LlamaDecoderLayer": "layers the fused operators stand for, with these two",
    "vllm.model_executor.models.llama:LlamaAttention": "see LlamaDecoderLayer",
    "vllm.model_executor.models.llama:LlamaMLP": "see LlamaDecoderLayer",
    "vllm.model_executor.models.mistral:MistralDecoderLayer": "as LlamaDecoderLayer",
    "vllm.model_executor.models.mistral:MistralAttention": "see MistralDecoderLayer",
    "vllm.model_executor.models.qwen2:Qwen2DecoderLayer": "as LlamaDecoderLayer",
    "vllm.model_executor.models.qwen2:Qwen2Attention": "see Qwen2DecoderLayer",
    "vllm.model_executor.models.qwen2:Qwen2MLP": "see Qwen2DecoderLayer",
    "vllm.model_executor.models.qwen3:Qwen3DecoderLayer": "as LlamaDecoderLayer",
    "vllm.model_executor.models.qwen3:Qwen3Attention": "see Qwen3DecoderLayer",
    "vllm.model_executor.layers.attention.attention:Attention": "attention of a decoder layer, called past its forward",
    "vllm.forward_context:set_forward_context": "per-step context",
    "vllm.forward_context:get_forward_context": "per-step context",
    "vllm.config.vllm:get_layers_from_vllm_config": "layers by type",
    "vllm.distributed.parallel_state:init_distributed_environment": "groups of size one",
    "vllm.distributed.parallel_state:ensure_model_parallel_initialized": "groups of size one",
    "vllm.distributed.parallel_state:destroy_model_parallel": "groups of size one, at exit",
    "vllm.distributed.parallel_state:destroy_distributed_environment": "groups of size one, at exit",
    "vllm.v1.engine.core_client:SyncMPClient.get_output": "where a program waits for an engine; its outputs_queue",
    "vllm.v1.engine.exceptions:EngineDeadError": "what a program gets that waits for a dead engine",
    "vllm.entrypoints.launchers.launcher:serve_http": "its shutdown_event: the server was asked to end by a signal",
    "vllm.entrypoints.launchers.api_server.entry:run_server": "tells a server's process from a user's program",
    "vllm.utils.torch_utils:set_random_seed": "engine seed",
    "vllm.config.kernel:IrOpPriorityConfig": "choice of IR implementations",
    "vllm.ir:ops": "IR operators",
}


def check_version() -> str:
    """The installed vLLM version.

    Raises:
        UnsupportedVersion: it is not one of the versions aloft was written for.
    """
    version = metadata.version("vllm")
    if not version.startswith(SUPPORTED):
        wanted = " or ".join(f"{prefix}x" for prefix in SUPPORTED)
        raise UnsupportedVersion(f"aloft supports vLLM {wanted}, but {version} is installed.")
    return version


def resolve(name: str) -> object:
    """The object a ``TOUCHED`` key names.

    Raises:
        UnsupportedVersion: this vLLM has no such name.
    """
    module, _, path = name.partition(":")
    try:
        found: object = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UnsupportedVersion(
            f"vLLM {metadata.version('vllm')} has no {name} ({TOUCHED.get(name, 'internal')})."
        ) from error
    return found


def report_dead_engine(client: object) -> None:
    """Makes a ``SyncMPClient`` that waits for an engine's output raise vLLM's EngineDeadError instead."""
    from vllm.v1.engine.exceptions import EngineDeadError

    client.outputs_queue.put_nowait(EngineDeadError())  # type: ignore[attr-defined]


def shutdown_event(runner: object) -> asyncio.Event | None:
    """What vLLM's server, run by this ``asyncio.Runner``, sets when a signal asks it to end; None before it serves."""
    if not isinstance(runner, asyncio.Runner):
        return None
    for task in asyncio.all_tasks(runner.get_loop()):
        frame = getattr(task.get_coro(), "cr_frame", None)
        event = frame.f_locals.get("shutdown_event") if frame is not None else None
        if isinstance(event, asyncio.Event):
            return event
    return None


def engine_args() -> EngineArgs | None:
    """What the user asked for, for a method of the platform that vLLM calls while it makes an engine's config of it.

    None where a config is made of something else. vLLM offers no hook that is given the arguments.
    """
    frame = sys._getframe(1).f_back
    for _ in range(_CALLERS):
        if frame is None:
            break
        if frame.f_code.co_name == "create_engine_config":
            from vllm.engine.arg_utils import EngineArgs

            caller = frame.f_locals.get("self")
            return caller if isinstance(caller, EngineArgs) else None
        frame = frame.f_back
    return None
