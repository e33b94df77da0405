"""Nothing tries the network at run time unless the user asks for it."""

from __future__ import annotations

import logging
import os

logger = logging.getLogger("vllm.aloft.offline")


def no_usage_stats() -> None:
    """Switches vLLM's usage statistics off, unless the user has set the variable."""
    for name in ("VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK"):
        os.environ.setdefault(name, "1")


def hub_offline(*paths: str | None) -> bool:
    """Puts the Hugging Face hub offline if every given path is a local folder or file.

    Returns whether the hub is offline now. A user's own ``HF_HUB_OFFLINE`` is respected.
    """
    if "HF_HUB_OFFLINE" in os.environ:
        return os.environ["HF_HUB_OFFLINE"].strip().lower() in ("1", "on", "true", "yes")
    if not all(path is None or os.path.exists(path) for path in paths):
        return False
    from huggingface_hub import constants

    os.environ["HF_HUB_OFFLINE"] = "1"  # for the processes vLLM spawns
    constants.HF_HUB_OFFLINE = True  # this process has imported the library already
    logger.info("Model and tokenizer are local: the Hugging Face hub is offline (HF_HUB_OFFLINE=0 overrides).")
    return True
