"""Which device memory belongs to a model: found by looking at everything the model holds.

Parameters and buffers are not all: packed copies, scales of a cache and transforms are plain attributes, in lists,
dataclasses and calls that wait for their last argument. What is not found here stays where it is, which costs memory,
never correctness.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from types import MethodType
from typing import Any

import torch
from vllm.model_executor.layers import rotary_embedding

from aloft.ops import storage

#: classes of these packages are looked into
_PACKAGES = ("aloft.", "vllm.model_executor.")


def tensors(root: object) -> Iterator[torch.Tensor]:
    """Every tensor on a device that can be reached from an object, some perhaps twice."""
    seen: set[int] = set()
    left = [root]
    while left:
        item = left.pop()
        if isinstance(item, torch.Tensor):
            if item.device.type == "npu":
                yield item
            continue
        if item is None or isinstance(item, str | bytes | int | float | torch.dtype) or id(item) in seen:
            continue
        seen.add(id(item))
        left.extend(_within(item))


def _within(item: Any) -> Iterable[object]:
    if isinstance(item, dict):
        return item.values()
    if isinstance(item, list | tuple | set | frozenset):
        return item
    if isinstance(item, functools.partial):
        return (item.func, item.args, item.keywords)
    if isinstance(item, MethodType):
        return (item.__self__,)
    if isinstance(item, type):
        return ()
    if isinstance(item, torch.nn.Module):
        return vars(item).values()
    if type(item).__module__.startswith(_PACKAGES):
        slots = item.__dataclass_fields__ if dataclasses.is_dataclass(item) else ()
        return [*getattr(item, "__dict__", {}).values(), *(getattr(item, name, None) for name in slots)]
    return ()


def storages(roots: Iterable[object], without: Iterable[torch.Tensor] = ()) -> dict[int, torch.Tensor]:
    """One tensor for every storage that can be reached, by ``storage.key``; not those of the tensors ``without``."""
    found = {storage.key(tensor): tensor for root in roots for tensor in tensors(root)}
    for tensor in without:
        found.pop(storage.key(tensor), None)
    return {key: tensor for key, tensor in found.items() if storage.num_bytes(tensor)}


def shared() -> Iterator[torch.Tensor]:
    """What all engines of the process have in common: vLLM keeps rotary tables by their settings."""
    return tensors(rotary_embedding._ROPE_DICT)
