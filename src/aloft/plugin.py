"""Entry points vLLM calls: one chooses the platform, one registers what every process needs.

Both are called several times and in every process vLLM starts, so both are cheap and re-entrant.
"""

from __future__ import annotations

import logging
import os
from importlib import metadata

logger = logging.getLogger("vllm.aloft.plugin")

PLATFORM = "aloft.platform.AloftPlatform"
_GROUP = "vllm.platform_plugins"
_general_done = False


def platform() -> str:
    """Class path of the platform. Never raises: vLLM would log that at debug level and pick another platform.

    What makes the platform unusable is raised by ``AloftPlatform.__init__`` instead, which nothing swallows.
    """
    from aloft import offline

    offline.no_usage_stats()
    rivals = _active_rivals()
    if rivals:
        logger.error(
            "Two platform plugins are active, aloft and %s, and vLLM accepts one: "
            "choose with VLLM_PLUGINS=aloft or VLLM_PLUGINS=%s.",
            ", ".join(rivals),
            rivals[0],
        )
    return PLATFORM


def general() -> None:
    """Registers the attention backend, the layer replacements and the quantization configs (once per process)."""
    global _general_done
    if _general_done:
        return
    from vllm.platforms import current_platform

    if current_platform.device_type != "npu" or type(current_platform).__module__ != "aloft.platform":
        return  # another platform was chosen with VLLM_PLUGINS or VLLM_TARGET_DEVICE
    _general_done = True
    from aloft import attention, layers, quantization

    attention.register()
    layers.register()
    quantization.register()


def _active_rivals() -> list[str]:
    """Names of other platform plugins that vLLM would also activate."""
    allowed = os.environ.get("VLLM_PLUGINS")
    names = None if allowed is None else {name.strip() for name in allowed.split(",")}
    rivals = []
    for entry in metadata.entry_points(group=_GROUP):
        if entry.value.split(":")[0] == __name__ or (names is not None and entry.name not in names):
            continue
        try:
            active = entry.load()() is not None
        except Exception as error:  # a broken rival is not active; vLLM reports it itself
            logger.debug("platform plugin %s failed: %s", entry.name, error)
            active = False
        if active:
            rivals.append(entry.name)
    return rivals
