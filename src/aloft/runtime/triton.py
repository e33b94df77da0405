"""Keeps triton out of a process that runs vLLM on the virtual NPU.

No triton driver serves an NPU, so vLLM does without it, but torch and vLLM import it wherever it is installed (it comes
with xgrammar): 0.3 s at every start, and a page about leaked objects at every end.
"""

from __future__ import annotations

import logging
import os
import sys


def hide() -> None:
    """Makes ``import triton`` fail as if it were not installed, if vLLM may choose aloft's platform here.

    Does nothing where triton has been imported already. To be called before vLLM is imported.
    """
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "aloft" not in (name.strip() for name in allowed.split(",")):
        return
    if "triton" not in sys.modules:
        sys.modules["triton"] = None  # type: ignore[assignment]
        logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # it warns that there is none
