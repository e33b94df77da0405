"""The worker: one process, one device. Everything vLLM calls by name is here, supported or refused."""

from __future__ import annotations

import atexit
import functools
import gc
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch_npu import npu
from vllm.config import set_current_vllm_config
from vllm.distributed.parallel_state import (
    destroy_distributed_environment,
    destroy_model_parallel,
    ensure_model_parallel_initialized,
    init_distributed_environment,
    model_parallel_is_initialized,
)
from vllm.logger import init_logger
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.attention.backends.utils import record_kv_cache_layout
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import AsyncModelRunnerOutput, DraftTokenIds, ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from aloft import config
from aloft.errors import NotEnoughMemory, UnsupportedFeature
from aloft.runner import memory, parent, reload
from aloft.runner.model_runner import ModelRunner
from aloft.runner.sleep import TAGS, WEIGHTS
from aloft.runner.threads import ThreadShare

if TYPE_CHECKING:
    from torch import nn
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput

logger = init_logger("vllm.aloft.worker")
_PAUSED = "The scheduler may be paused by now: POST /wake_up, or LLM.wake_up(), resumes it."


@functools.cache
def _leave_groups_at_exit() -> None:
    """torch_npu destroys every process group when Python exits; vLLM, leaving later, would find its own gone."""
    atexit.register(destroy_distributed_environment)
    atexit.register(destroy_model_parallel)


class AloftWorker(WorkerBase):
    """Drives one NPU for vLLM's executor."""

    model_runner: ModelRunner  # type: ignore[assignment]
    device: torch.device

    # ---- start-up, in call order --------------------------------------------------------------------------------

    def init_device(self) -> None:
        # Half a million objects of imported modules, looked through anew by each of the half dozen collections of a
        # start-up (0.4 s each). vLLM freezes them too, when the engine stands.
        gc.freeze()
        parent.watch()
        self.config = config.of(self.vllm_config)
        self.threads = ThreadShare(self.config.num_threads)
        count = npu.device_count()
        if self.local_rank >= count:
            raise ValueError(
                f"Rank {self.local_rank} needs npu:{self.local_rank}, but there are {count} devices "
                "(ASCEND_RT_VISIBLE_DEVICES; virtual NPU: ALOFT_DEVICES)."
            )
        index = self.current_platform.logical_device_id_to_visible_device_id(self.local_rank)
        self.device = torch.device(f"npu:{index}")
        npu.set_device(self.device)
        # without this, torch_npu quietly leaves a weight in ND when it is asked for NZ (layers/linear.py)
        npu.config.allow_internal_format = True
        self.current_platform.check_if_supports_dtype(cast(torch.dtype, self.model_config.dtype))
        self._init_groups()
        set_random_seed(self.model_config.seed)
        self.model_runner = ModelRunner(self.vllm_config, self.config, self.device)

    def _init_groups(self) -> None:
        """vLLM's process groups. A single process never needs a collective, hence no collective library."""
        parallel = self.parallel_config
        seconds = parallel.distributed_timeout_seconds
        init_distributed_environment(
            parallel.world_size,
            self.rank,
            self.distributed_init_method or "env://",
            self.local_rank,
            "gloo" if parallel.world_size == 1 else self.current_platform.dist_backend,
            None if seconds is None else timedelta(seconds=seconds),
        )
        if model_parallel_is_initialized() and parallel.world_size == 1:
            # an engine before this one in the process left its groups, those of a dense model without one for experts
            destroy_model_parallel()
        ensure_model_parallel_initialized(
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
            parallel.prefill_context_parallel_size,
            parallel.decode_context_parallel_size,
        )
        _leave_groups_at_exit()

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        if load_dummy_weights:
            self._refuse("dummy weights for elastic scaling")
        memory.check_weights_fit(self.model_config, self.device)
        try:
            with set_current_vllm_config(self.vllm_config):
                self.model_runner.load_model()
        except torch.OutOfMemoryError as error:
            free, total = npu.mem_get_info(self.device)
            raise NotEnoughMemory(
                f"The weights of {self.model_config.model} do not fit: {self.device} has {memory.gib(total)}, of which "
                f"{memory.gib(free)} was left when loading failed; use a smaller model or a narrower --dtype."
            ) from error

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        return self.model_runner.get_kv_cache_spec()

    def set_kv_cache_layout(self, kv_cache_layout: str, cp_kv_cache_interleave_size: int = 1) -> None:
        record_kv_cache_layout(self.vllm_config.cache_config, kv_cache_layout)

    def determine_available_memory(self) -> int:
        specs = self.model_runner.get_kv_cache_spec()
        return memory.available_for_kv(
            self.vllm_config, specs, self.device, self.model_runner.profile, self.config.kv_cache_tokens
        )

    def update_max_model_len(self, max_model_len: int) -> None:
        self.model_runner.update_max_model_len(max_model_len)

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        cache = self.cache_config
        cache.num_gpu_blocks = kv_cache_config.num_blocks
        if kv_cache_config.kv_cache_layout is not None:
            record_kv_cache_layout(cache, kv_cache_config.kv_cache_layout)
        cache.hash_block_size = kv_cache_config.hash_block_size
        cache.cache_hit_alignment_tokens = kv_cache_config.cache_hit_alignment_tokens
        self.model_runner.initialize_kv_cache(kv_cache_config)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Nothing to compile or capture."""
        self.model_runner.warm_up()
        set_random_seed(self.model_config.seed)
        return CompilationTimes(language_model=0.0, encoder=0.0)

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def get_cache_block_size_bytes(self) -> int:
        return sum(spec.page_size_bytes for spec in self.get_kv_cache_spec().values())

    # ---- steps --------------------------------------------------------------------------------------------------

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput | None:
        self.threads.poll()
        rest = self.model_runner.rest
        if not rest.awake and scheduler_output.total_num_scheduled_tokens:
            rest.ready()
        with self.model_runner.own_stream.selected():
            return self.model_runner.execute_model(scheduler_output)

    def sample_tokens(  # type: ignore[override]  # None says that execute_model failed
        self, grammar_output: GrammarOutput | None
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput | None:
        with self.model_runner.own_stream.selected():
            return self.model_runner.sample_tokens(grammar_output)

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        return None

    def execute_dummy_batch(self) -> None:
        self._refuse("data parallelism", "--data-parallel-size")

    # ---- health, model, caches ----------------------------------------------------------------------------------

    def check_health(self) -> None:
        npu.synchronize(self.device)

    def synchronize_device(self) -> None:
        npu.synchronize(self.device)

    def get_model(self) -> nn.Module:
        model = self.model_runner.model
        assert model is not None
        if WEIGHTS in self.model_runner.rest.away:  # reading memory that is not there ends the process
            raise RuntimeError(f"The weights are asleep: wake_up(tags=['{WEIGHTS}']) comes before their use.")
        return model

    def apply_model(self, fn: Callable[[nn.Module], Any]) -> Any:
        return fn(self.get_model())

    def reset_mm_cache(self) -> None:
        """No multimodal cache is kept."""

    def reset_encoder_cache(self) -> None:
        """No encoder cache is kept."""

    def get_encoder_timing_stats(self) -> dict[str, dict[str, float | int]]:
        return {}

    def get_compilation_match_table(self) -> dict[str, int]:
        return {}

    def get_kv_connector_handshake_metadata(self) -> None:
        return None

    def get_simple_cpu_offload_num_cpu_blocks(self) -> int:
        return 0

    def supports_draft_weight_updates(self) -> bool:
        return False

    def get_draft_model(self) -> None:
        return None

    def profile(self, is_start: bool = True, prefix: str | None = None, **kwargs: Any) -> None:
        self._refuse("the profiler", "--profiler-config")

    def shutdown(self) -> None:
        runner = getattr(self, "model_runner", None)
        if runner is not None:
            runner.shutdown()
        threads = getattr(self, "threads", None)
        if threads is not None:
            threads.close()

    # ---- sleep and new weights ----------------------------------------------------------------------------------

    def sleep(self, level: int = 1) -> None:
        """Gives device memory back; the engine has paused its scheduler before it asks.

        Args:
            level: 1: weights are kept in host memory. 2: they are given up, and zeros until others are loaded.

        Raises:
            ValueError: another level, or the engine was not started with --enable-sleep-mode.
        """
        self._require_sleep_mode()
        if level not in (1, 2):
            raise ValueError(f"The level of a sleep must be 1 or 2, not {level}. {_PAUSED}")
        self.model_runner.rest.sleep(level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Gets device memory again. tags: of ``weights`` and ``kv_cache``, None for both.

        Raises:
            ValueError: other tags, or no sleep mode; NotEnoughMemory: there is no room now.
        """
        self._require_sleep_mode()
        self.model_runner.rest.wake_up(TAGS if tags is None else tags)

    def discard(self, tags: tuple[str, ...]) -> None:
        """Gives up the memory of some tags, content and all, until ``wake_up``."""
        self._require_sleep_mode()
        self.model_runner.rest.discard(tags)

    def _require_sleep_mode(self) -> None:
        if not self.model_config.enable_sleep_mode:
            raise ValueError(f"Start the engine with --enable-sleep-mode to do that. {_PAUSED}")

    def reload_weights(
        self,
        weights_iterator: Iterable[tuple[str, torch.Tensor]] | None = None,
        weights_path: str | None = None,
        is_checkpoint_format: bool = True,
    ) -> None:
        """Replaces the weights, in place of a restart; arguments as vLLM's own worker has them.

        Args:
            weights_iterator: names and tensors as in a checkpoint, all of them. weights_path: a folder of the same
                architecture and kind of quantization. Neither: the folder the weights came from last.

        Raises:
            ValueError: both are given, or the weights do not fit; the engine then has its old ones.
            RuntimeError: the weights are asleep.
        """
        if not is_checkpoint_format:
            raise UnsupportedFeature("aloft loads weights as they are in checkpoints: leave out is_checkpoint_format.")
        if weights_iterator is not None and weights_path is not None:
            raise ValueError("reload_weights takes weights_iterator or weights_path, not both.")
        reload.reload(self.model_runner, weights_iterator, weights_path)

    # ---- refused ------------------------------------------------------------------------------------------------

    @staticmethod
    def _refuse(what: str, flag: str | None = None) -> NoReturn:
        raise UnsupportedFeature(f"aloft does not support {what} yet{f' ({flag})' if flag else ''}.")

    def add_lora(self, lora_request: Any) -> bool:
        self._refuse("LoRA", "--enable-lora")

    def remove_lora(self, lora_id: int) -> bool:
        self._refuse("LoRA", "--enable-lora")

    def pin_lora(self, lora_id: int) -> bool:
        self._refuse("LoRA", "--enable-lora")

    def list_loras(self) -> set[int]:
        self._refuse("LoRA", "--enable-lora")

    def checkpoint_prepare(self) -> None:
        self._refuse("checkpoints of a running engine")

    def checkpoint_restore(self) -> None:
        self._refuse("checkpoints of a running engine")

    def save_sharded_state(self, path: str, pattern: str | None = None, max_size: int | None = None) -> None:
        self._refuse("saving sharded weights")

    def save_tensorized_model(self, tensorizer_config: Any) -> None:
        self._refuse("saving tensorized weights")

    def compute_weight_checksums(self) -> dict[str, str]:
        self._refuse("weight checksums")

    def reset_weights(self) -> None:
        self._refuse("weights of zeros; reload_weights loads them again")

    def update_config(self, overrides: dict[str, Any]) -> None:
        self._refuse("changing the configuration of a running engine")

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._refuse("weight transfer", "--weight-transfer-config")

    def shutdown_weight_transfer_engine(self) -> None:
        self._refuse("weight transfer", "--weight-transfer-config")

    def start_weight_update(self) -> None:
        self._refuse("weight transfer", "--weight-transfer-config")

    def start_draft_weight_update(self) -> None:
        self._refuse("weight transfer", "--weight-transfer-config")

    def update_weights(self, update_info: Any) -> None:
        self._refuse("weight transfer", "--weight-transfer-config")

    def finish_weight_update(self) -> None:
        self._refuse("weight transfer", "--weight-transfer-config")

    def handle_ft_command(self, ft_request: Any) -> None:
        self._refuse("fault-tolerance commands", "--enable-fault-tolerance")

    def reinitialize_distributed(self, *args: Any, **kwargs: Any) -> None:
        self._refuse("elastic scaling", "--enable-elastic-ep")

    def elastic_ep_execute(self, execute_method: str, *args: Any, **kwargs: Any) -> None:
        self._refuse("elastic scaling", "--enable-elastic-ep")
