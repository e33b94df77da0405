"""scheme x layer kind -> method class.

A scheme is one module of ``aloft.quantization.schemes``; adding it there is all.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, TypeVar

LINEAR, HEAD, EXPERTS, KV_CACHE, EMBEDDING = "linear", "lm-head", "experts", "kv-cache", "embedding"
KINDS = (LINEAR, HEAD, EXPERTS, KV_CACHE, EMBEDDING)

_T = TypeVar("_T", bound=type)
_methods: dict[tuple[str, str], type] = {}


def register(scheme: str, kind: str) -> Callable[[_T], _T]:
    """Class decorator. The class states ``operators``: the names (``npu::...``, ``aloft::...``) it calls."""
    assert kind in KINDS

    def add(cls: _T) -> _T:
        assert _methods.setdefault((scheme, kind), cls) is cls, f"{scheme} for {kind} has two classes"
        assert isinstance(cls.operators, tuple)  # type: ignore[attr-defined]
        return cls

    return add


@functools.cache
def methods() -> dict[tuple[str, str], type]:
    """Every method, by scheme and layer kind."""
    from aloft.quantization import schemes

    for module in pkgutil.iter_modules(schemes.__path__):
        importlib.import_module(f"{schemes.__name__}.{module.name}")
    return dict(sorted(_methods.items()))


def method(scheme: str, kind: str, layer: str = "") -> Any:
    """The method class.

    Raises:
        ValueError: there is none; the layer and the schemes that exist for its kind are named.
    """
    found = methods().get((scheme, kind))
    if found is None:
        here = ", ".join(name for name, of in methods() if of == kind) or "none"
        raise ValueError(
            f"{layer or 'a layer'}: aloft has no {scheme} quantization of {kind} layers; there are: {here}."
        )
    return found


def operators() -> dict[str, list[str]]:
    """Operator -> the ``scheme (kind)`` entries that need it."""
    needed: dict[str, list[str]] = {}
    for (scheme, kind), cls in methods().items():
        for name in cls.operators:  # type: ignore[attr-defined]
            needed.setdefault(name, []).append(f"{scheme} ({kind})")
    return dict(sorted(needed.items()))
