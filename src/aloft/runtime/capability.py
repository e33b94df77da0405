"""What the runtime under us can do; layers above ask here instead of asking which runtime it is."""

from __future__ import annotations

from aloft.runtime.autoload import virtual


def memory_is_host_memory() -> bool:
    """Whether device memory is taken from the host's own, page by page as it is touched.

    What is left unused there serves the host's other programs; on a card it would lie idle.
    """
    return virtual()
