"""One start of an engine, timed: `aloft profile --start` runs this in a process of its own.

It does what `vllm.LLM(...)` does, in its order, but for the tokenizer, which is loaded before the engine and found in
vLLM's cache by it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from aloft.cli import start_phases as phases
from aloft.cli.clock import Clock, TimedImports
from aloft.cli.errors import UserError


def start(clock: Clock, model: str, arguments: dict[str, Any]) -> None:
    """Starts an engine on the clock."""
    with clock.phase(phases.TORCH):
        import torch
    with clock.phase(phases.VLLM):
        import vllm  # noqa: F401
    with clock.phase(phases.PLUGINS):
        from vllm.platforms import current_platform

        if current_platform.device_type != "npu":
            raise UserError(f"vLLM chose the platform {current_platform.device_type}, not aloft's: unset VLLM_PLUGINS.")
    with clock.phase(phases.VLLM):
        from vllm import LLM  # noqa: F401
        from vllm.engine.arg_utils import EngineArgs
        from vllm.plugins import load_general_plugins
        from vllm.tokenizers import cached_tokenizer_from_config
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.llm_engine import LLMEngine
    with clock.phase(phases.PLUGINS):
        load_general_plugins()
        from aloft.cli import start_hooks
        from aloft.cli.reason import told

        start_hooks.CLOCK = clock
    with told():
        with clock.phase(phases.CONFIG):
            config = EngineArgs(
                model=model,
                skip_tokenizer_init=not os.path.exists(os.path.join(model, "tokenizer.json")),
                disable_log_stats=True,
                worker_cls="aloft.cli.start_hooks.TimedWorker",
                **arguments,
            ).create_engine_config(UsageContext.LLM_CLASS)
        with clock.phase(phases.TOKENIZER):
            tokenizer = cached_tokenizer_from_config(config.model_config)
        start_hooks.time_loader(config.load_config)
        with clock.phase(phases.ENGINE):
            engine = LLMEngine.from_vllm_config(config, UsageContext.LLM_CLASS, disable_log_stats=True)
    if tokenizer is not None:
        with clock.phase(phases.TEMPLATE):
            from vllm.renderers import ChatParams

            engine.renderer.warmup(ChatParams())
    torch.npu.synchronize()  # type: ignore[attr-defined]


def main() -> int:
    """The order comes as a JSON object: `began` (perf_counter of the parent), `model`, `arguments`, `report`.

    Writes the seconds of every phase and package as JSON into the file `report`, or why there is no engine.
    """
    order = json.loads(sys.argv[1])
    clock = Clock(order["began"])
    clock.so_far(phases.PYTHON)
    sys.meta_path.insert(0, TimedImports(clock, {"torch_npu": phases.TORCH_NPU}))
    try:
        start(clock, order["model"], order["arguments"])
    except UserError as error:
        print(f"aloft: {error}", file=sys.stderr)
        return 1
    total = clock.stop()
    entries = [(phase, package, seconds) for (phase, package), seconds in clock.seconds.items()]
    with open(order["report"], "w") as file:
        json.dump({"total": total, "entries": entries}, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
