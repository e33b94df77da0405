"""Finds contracts: the modules of `aloft.ops.contracts` by file name, loaded when asked for, and registered extras."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterable

import torch

from aloft.ops.contract import Contract

_PACKAGE = "aloft.ops.contracts"


class Registry:
    """Contracts by operator name. Names and schemas are unique; modules are imported on first use only."""

    def __init__(self, modules: Iterable[str] = ()) -> None:
        self._modules = set(modules)
        self._loaded: dict[str, Contract] = {}
        self._owner: dict[str, str] = {}  # schema -> operator

    def names(self) -> list[str]:
        """All operator names, sorted, without importing anything."""
        return sorted(self._modules | set(self._loaded))

    def register(self, contract: Contract) -> Contract:
        """Adds a contract. ValueError if its name or one of its schemas is already taken."""
        if contract.name in self._loaded or contract.name in self._modules:
            raise ValueError(f"operator {contract.name!r} already has a contract")
        return self._add(contract)

    def get(self, name: str) -> Contract:
        """The contract of `name`. ValueError, with the nearest names, if there is none."""
        if name in self._loaded:
            return self._loaded[name]
        if name not in self._modules:
            near = difflib.get_close_matches(name, self.names(), n=3)
            hint = f"; did you mean {', '.join(near)}?" if near else f"; there are {', '.join(self.names())}"
            raise ValueError(f"no contract for operator {name!r}{hint}")
        contract = importlib.import_module(f"{_PACKAGE}.{name}").CONTRACT
        if contract.name != name:
            raise ValueError(f"{_PACKAGE}.{name} holds the contract of {contract.name!r}, it must be named alike")
        return self._add(contract)

    def all(self) -> list[Contract]:
        """Every contract, loaded, in the order of names."""
        return [self.get(name) for name in self.names()]

    def _add(self, contract: Contract) -> Contract:
        for schema in contract.schemas:
            owner = self._owner.get(schema)
            if owner is not None and owner != contract.name:
                raise ValueError(f"schema {schema} is covered by the contracts of both {owner!r} and {contract.name!r}")
        self._owner.update(dict.fromkeys(contract.schemas, contract.name))
        self._loaded[contract.name] = contract
        return contract


def standard() -> Registry:
    """A registry of the contracts shipped with aloft."""
    package = importlib.import_module(_PACKAGE)
    return Registry(module.name for module in pkgutil.iter_modules(package.__path__))


def overloads(schema: str) -> list[torch._ops.OpOverload]:
    """The operator overloads "namespace::name[.overload]" names in this process; empty if it is not there.

    A name without an overload means the default overload, or all of them where there is no default one.
    """
    namespace, _, rest = schema.partition("::")
    name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        return []
    known = packet.overloads()
    if overload:
        return [getattr(packet, overload)] if overload in known else []
    return [packet.default] if "default" in known else [getattr(packet, each) for each in sorted(known)]
