"""Worker and loader with a clock, for `aloft profile --start`: given to vLLM through its own options and registry.

`aloft.cli.started` puts its own clock in `CLOCK`'s place before vLLM makes either.
"""

from __future__ import annotations

from typing import Any

from vllm.model_executor.model_loader import get_model_loader, register_model_loader

from aloft.cli.clock import Clock
from aloft.cli.start_phases import (
    ALLOCATION,
    CONSTRUCTION,
    DEVICE,
    ENGINE,
    FUSING,
    PACKING,
    PLANNING,
    PROFILE,
    READING,
    WARM_UP,
)
from aloft.runner.worker import AloftWorker

CLOCK = Clock(0.0)


class TimedWorker(AloftWorker):
    """aloft's worker."""

    def init_device(self) -> None:
        with CLOCK.phase(DEVICE):
            super().init_device()

    def load_model(self, **arguments: Any) -> None:
        with CLOCK.phase(FUSING):
            super().load_model(**arguments)

    def get_kv_cache_spec(self) -> Any:
        CLOCK.switch(PLANNING)  # until the model is warm; what comes in between are phases of their own
        return super().get_kv_cache_spec()

    def determine_available_memory(self) -> int:
        with CLOCK.phase(PROFILE):
            return super().determine_available_memory()

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        with CLOCK.phase(ALLOCATION):
            super().initialize_from_config(kv_cache_config)

    def compile_or_warm_up_model(self) -> Any:
        with CLOCK.phase(WARM_UP):
            made = super().compile_or_warm_up_model()
        CLOCK.switch(ENGINE)
        return made


def time_loader(load_config: Any) -> None:
    """Registers, in the place of the loader of a format, one that does the same and is timed."""
    kind: Any = type(get_model_loader(load_config))

    class TimedLoader(kind):  # type: ignore[misc]
        def load_model(self, *args: Any, **kwargs: Any) -> Any:
            with CLOCK.phase(PACKING):
                return super().load_model(*args, **kwargs)

        def create_model(self, *args: Any, **kwargs: Any) -> Any:
            with CLOCK.phase(CONSTRUCTION):
                return super().create_model(*args, **kwargs)

        def load_weights(self, *args: Any, **kwargs: Any) -> Any:
            with CLOCK.phase(READING):
                return super().load_weights(*args, **kwargs)

    register_model_loader(load_config.load_format)(TimedLoader)
