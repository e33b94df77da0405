"""What the runtime under us can do; layers above ask here instead of asking which runtime it is."""

from __future__ import annotations

import os

from aloft.runtime.autoload import virtual


def memory_is_host_memory() -> bool:
    """Whether device memory is taken from the host's own, page by page as it is touched.

    What is left unused there serves the host's other programs; on a card it would lie idle.
    """
    return virtual()


def computes_beside_host() -> bool:
    """Whether work on a stream goes on while the host's thread does something else, rather than in that thread."""
    return not virtual() or os.environ.get("ALOFT_STREAMS", "inline") != "inline"
