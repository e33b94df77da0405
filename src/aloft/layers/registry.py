"""Re-entrant registration in vLLM's table of out-of-tree layers."""

from __future__ import annotations

import torch
from vllm.model_executor.custom_op import CustomOp, PluggableLayer, op_registry_oot


def replace(original: type[torch.nn.Module], replacement: type[torch.nn.Module]) -> None:
    """Makes vLLM construct ``replacement`` where a model asks for ``original``.

    Raises:
        TypeError: ``original`` is not replaceable, or ``replacement`` does not derive from it.
        ValueError: another plugin has replaced the class already.
    """
    name = original.__name__
    present = op_registry_oot.get(name)
    if present is replacement:
        return
    if present is not None:
        raise ValueError(f"{name} is already replaced by {present.__module__}.{present.__qualname__}")
    base = next((kind for kind in (CustomOp, PluggableLayer) if issubclass(original, kind)), None)
    if base is None or not issubclass(replacement, original):
        raise TypeError(f"{replacement.__qualname__} cannot replace {name}")
    # vLLM stores the key as the operator's name; keep the one that --compilation-config custom_ops uses
    operator = getattr(original, "name", name)
    base.register_oot(name=name)(replacement)
    replacement.name = operator  # type: ignore[attr-defined]
