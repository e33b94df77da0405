"""Replacements of vLLM's layers by ones that call NPU operators, registered through vLLM's own registries."""

from __future__ import annotations


def register() -> None:
    """Registers every replacement; a second call in the same process does nothing."""
    from aloft.layers import activation, experts, linear, norm, rotary
    from aloft.layers.registry import replace

    for module in (norm, activation, rotary, linear, experts):
        for original, replacement in module.replacements().items():
            replace(original, replacement)
