"""The platform vLLM sees: an out-of-tree device called ``npu``.

vLLM imports this module while ``vllm.config`` is half initialised, so the module level imports little and every
hook imports what it needs. ``Platform.__getattr__`` turns a missing name into ``None``; therefore every member
without a usable default is defined here, even if only to refuse.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from vllm.logger import init_logger
from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum

from aloft.errors import PlatformUnavailable, UnsupportedFeature

if TYPE_CHECKING:
    from datetime import timedelta

    from torch.distributed import PrefixStore, ProcessGroup
    from vllm.config import CompilationConfig, VllmConfig
    from vllm.config.kernel import IrOpPriorityConfig
    from vllm.utils.argparse_utils import FlexibleArgumentParser

logger = init_logger("vllm.aloft.platform")

WORKER = "aloft.runner.worker.AloftWorker"
EXECUTOR = "aloft.runner.executor.DirectExecutor"
DEFAULT_BLOCK_SIZE = 128


class AloftPlatform(Platform):
    """vLLM's view of an Ascend NPU, real or virtual: the same class and the same answers for both."""

    _enum = PlatformEnum.OOT
    device_name = "npu"
    device_type = "npu"
    dispatch_key = "PrivateUse1"
    ray_device_key = "NPU"
    dist_backend = "hccl"
    device_control_env_var = "ASCEND_RT_VISIBLE_DEVICES"
    ray_noset_device_env_vars: list[str] = ["RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"]  # noqa: RUF012
    simple_compile_backend = "eager"
    supported_quantization: list[str] = []  # noqa: RUF012
    additional_env_vars: list[str] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        _require_device()

    # ---- capabilities -------------------------------------------------------------------------------------------

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        if dtype not in (torch.bfloat16, torch.float16, torch.float32):
            raise ValueError(f"--dtype must be bfloat16, float16 or float32 on npu, not {dtype}.")

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability | None:
        return None

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return _npu().get_device_name(device_id)

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        return f"npu-{cls.get_device_name(device_id)}-{device_id}"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Bytes of a device, in a process that uses it.

        vLLM's front end asks too, to choose defaults, and takes an error for "unknown". Initialising a device there
        would only rule out forking the engine process, which saves its imports.
        """
        if not _npu().is_initialized():
            raise RuntimeError("The memory of an npu is known once the process has initialised it.")
        return _npu().get_device_properties(device_id).total_memory

    @classmethod
    def get_all_gpu_pci_bus_ids(cls) -> dict[int, str]:
        raise UnsupportedFeature("aloft does not select network cards by PCI bus: unset VLLM_GPU_NIC_PCIE_MAPPING.")

    @classmethod
    def get_current_memory_usage(cls, device: torch.types.Device | None = None) -> float:
        _npu().reset_peak_memory_stats(device)
        return _npu().max_memory_allocated(device)

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        properties = _npu().get_device_properties(device_id)
        return getattr(properties, "cube_core_num", None) or getattr(properties, "multi_processor_count", None) or 1

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return True

    @classmethod
    def inference_mode(cls) -> Any:
        return torch.inference_mode(mode=True)

    def is_sleep_mode_available(self) -> bool:
        from aloft.ops import storage

        return storage.native()

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        return True

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        return True

    @classmethod
    def opaque_attention_op(cls) -> bool:
        return False

    @classmethod
    def check_runner_kv_caches_multi_layer(cls) -> None:
        """Our runner keeps its caches by layer name, so several layers may share an index."""

    @classmethod
    def get_punica_wrapper(cls) -> str:
        raise UnsupportedFeature("aloft does not support LoRA yet: remove --enable-lora.")

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"

    @classmethod
    def stateless_init_device_torch_dist_pg(
        cls, backend: str, prefix_store: PrefixStore, group_rank: int, group_size: int, timeout: timedelta
    ) -> ProcessGroup:
        raise UnsupportedFeature("aloft does not support elastic groups or weight transfer yet.")

    @classmethod
    def verify_quantization(cls, quant: str) -> None:
        from aloft import quantization

        valid = quantization.names()
        if quant not in valid:
            why = " (Ascend 910 has no FP8 arithmetic: convert the checkpoint)" if "fp8" in quant else ""
            raise ValueError(f"--quantization must be one of {', '.join(valid)} on npu, not {quant}{why}.")

    # ---- device -------------------------------------------------------------------------------------------------

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        _npu().set_device(device)

    @classmethod
    def synchronize(cls, device: torch.types.Device | None = None) -> None:
        _npu().synchronize(device)

    @classmethod
    def empty_cache(cls) -> None:
        _npu().empty_cache()

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        _npu().manual_seed_all(seed)

    @classmethod
    def graph_pool_handle(cls) -> Any:
        return _npu().graph_pool_handle()

    # ---- kernels ------------------------------------------------------------------------------------------------

    @classmethod
    def import_kernels(cls) -> None:
        """vLLM's compiled extensions do not exist here; the operators come with torch_npu and aloft."""

    @classmethod
    def import_ir_kernels(cls) -> None:
        from aloft.layers import ir

        ir.register()

    @classmethod
    def get_default_ir_op_priority(cls, vllm_config: VllmConfig) -> IrOpPriorityConfig:
        from aloft.layers import ir

        return ir.priority()

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        """Nothing to override: our runner reaches none of vLLM's Triton kernels."""

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        from aloft import attention

        return attention.select(selected_backend, attn_selector_config)

    # ---- configuration ------------------------------------------------------------------------------------------

    @classmethod
    def pre_register_and_update(cls, parser: FlexibleArgumentParser | None = None) -> None:
        from aloft import compat, plugin, quantization

        plugin.general()
        if parser is not None:
            quantization.accept_files(parser)
        elif (arguments := compat.engine_args()) is not None:
            quantization.name_folder(arguments)

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: VllmConfig) -> None:
        from vllm.config import CompilationMode, CUDAGraphMode
        from vllm.config.vllm import OptimizationLevel

        compilation = vllm_config.compilation_config
        if compilation.mode is None:
            compilation.mode = CompilationMode.NONE
        if compilation.cudagraph_mode is None:
            eager = vllm_config.optimization_level == OptimizationLevel.O0
            compilation.cudagraph_mode = CUDAGraphMode.NONE if eager else CUDAGraphMode.FULL_DECODE_ONLY
        # Here already: where nothing is compiled, vLLM soon rewrites modes with PIECEWISE, and only says so at INFO.
        cls._check_graph_mode(compilation)
        if all(base not in compilation.custom_ops for base in ("all", "none")):
            compilation.custom_ops.append("all")

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        from vllm.config import CompilationMode

        from aloft import config, limits, offline, processes, quantization
        from aloft.runner import parent

        settings = config.of(vllm_config)
        quantization.detect(vllm_config)
        quantization.require_all_weights(vllm_config)
        limits.check(vllm_config)
        _check_window(vllm_config.cache_config.cache_dtype, settings.kv_fp8_window)
        model = vllm_config.model_config
        if model is not None:
            offline.hub_offline(model.model, model.tokenizer)
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = WORKER
        if parallel.distributed_executor_backend == "uni":
            parallel.distributed_executor_backend = EXECUTOR
        parallel.disable_custom_all_reduce = True
        cls._choose_pipeline(vllm_config, settings.pipeline_depth)
        parent.watch_engines()
        processes.choose_start_method(_npu().is_initialized())
        compilation = vllm_config.compilation_config
        if compilation.mode not in (None, CompilationMode.NONE):
            logger.warning_once("Compilation is not supported on npu; the model runs eagerly.")
        compilation.mode = CompilationMode.NONE
        cls._check_graph_mode(compilation)
        cls._check_block_size(vllm_config)

    @classmethod
    def _choose_pipeline(cls, vllm_config: VllmConfig, depth: int) -> None:
        """Asynchronous scheduling on or off; vLLM leaves the last word to the platform.

        Where a step computes in the host's own thread nothing overlaps, and every token would wait for the next step
        to be over: there it is off, unless it was asked for by name.
        """
        from aloft import compat
        from aloft.runtime import capability

        scheduler = vllm_config.scheduler_config
        if depth == 2 and not scheduler.async_scheduling:
            raise ValueError(
                "additional_config pipeline_depth 2 needs vLLM's asynchronous scheduling, which is off "
                "(--no-async-scheduling, or a setting it does not go with): use 1."
            )
        arguments = compat.engine_args()
        asked = arguments is not None and arguments.async_scheduling is True
        if depth == 1 and asked:
            raise ValueError(
                "additional_config pipeline_depth 1 and --async-scheduling contradict each other: leave one out."
            )
        if depth == 0:
            beside = capability.computes_beside_host()
            depth = 2 if beside or asked else 1
            if asked and not beside:
                logger.warning_once(
                    "--async-scheduling slows this engine down: a step computes in the host's own thread, so nothing "
                    "overlaps, every token comes a step late and no step runs ahead. Leave the flag out."
                )
            if asked and isinstance(additional := vllm_config.additional_config, dict):
                # for copies of this config that vLLM checks again: there nobody knows any more who asked
                vllm_config.additional_config = additional | {"pipeline_depth": depth}
        if depth == 1:
            scheduler.async_scheduling = False

    @classmethod
    def _check_graph_mode(cls, compilation: CompilationConfig) -> None:
        """Whole decode steps are captured, or nothing: other wishes are mapped to that, with a word."""
        from vllm.config import CUDAGraphMode

        mode = compilation.cudagraph_mode
        if mode in (None, CUDAGraphMode.NONE, CUDAGraphMode.FULL_DECODE_ONLY):
            return
        if mode == CUDAGraphMode.PIECEWISE:
            logger.warning_once("cudagraph_mode PIECEWISE is not supported on npu; every step runs eagerly.")
            compilation.cudagraph_mode = CUDAGraphMode.NONE
            compilation.cudagraph_capture_sizes = []
            compilation.max_cudagraph_capture_size = 0
            return
        logger.warning_once("cudagraph_mode %s becomes FULL_DECODE_ONLY on npu: other steps run eagerly.", mode.name)
        compilation.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY

    @classmethod
    def _check_block_size(cls, vllm_config: VllmConfig) -> None:
        cache = vllm_config.cache_config
        if cache is None:
            return
        if not cache.user_specified_block_size:
            cache.block_size = DEFAULT_BLOCK_SIZE
        elif cache.block_size % 16 or not 16 <= cache.block_size <= 256:
            raise ValueError(f"--block-size must be a multiple of 16 from 16 to 256, not {cache.block_size}.")

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: VllmConfig) -> None:
        """The block size was settled in check_and_update_config; models that would change it are refused there."""

    @classmethod
    def register_custom_kv_cache_specs(cls, vllm_config: VllmConfig) -> None:
        """vLLM's own KV cache specs are enough."""

    @classmethod
    def validate_request(cls, processed_inputs: Any, params: Any) -> None:
        """Raises ValueError (an HTTP 400) for parameters that cannot be served together."""
        # A grammar and a list of tokens can leave no token to sample, which vLLM reports as its own failure.
        if getattr(params, "structured_outputs", None) is not None and getattr(params, "allowed_token_ids", None):
            raise ValueError(
                "structured output and allowed_token_ids cannot be combined: the tokens the grammar needs may not be "
                "among those allowed; use one of them."
            )


def _npu() -> Any:
    """torch_npu's device module (not at module level: vLLM imports this file early)."""
    import torch_npu

    return torch_npu.npu


@functools.cache
def _require_device() -> None:
    try:
        import torch_npu  # noqa: F401
    except ImportError as error:
        raise PlatformUnavailable(
            f"aloft needs torch_npu on an NPU runtime, and importing torch_npu failed: {error}; see `aloft doctor`."
        ) from error
    from aloft import compat
    from aloft.runtime import settings

    compat.check_version()
    if wrong := settings.complaint():
        raise PlatformUnavailable(f"{wrong}.")


def _check_window(cache_dtype: str, window: int) -> None:
    """Says so where ``kv_fp8_window`` was set for a cache that is none of 8-bit floats."""
    from aloft import config, limits

    if window != config.AloftConfig().kv_fp8_window and cache_dtype not in limits.FP8:
        logger.warning_once("additional_config kv_fp8_window has no effect without --kv-cache-dtype fp8.")
