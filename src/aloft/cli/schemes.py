"""``aloft ops --schemes``: which operators each quantization method needs, and whether they are here."""

from __future__ import annotations


def schemes() -> int:
    """Prints scheme, layer kind and operators; 1 if one is missing."""
    from aloft.ops.registry import standard
    from aloft.quantization.registry import methods

    known = {schema for contract in standard().all() for schema in contract.schemas}
    missing = 0
    for (scheme, kind), cls in methods().items():
        for place, operator in enumerate(cls.operators):  # type: ignore[attr-defined]
            here = operator in known
            missing += not here
            head = f"{scheme} ({kind})" if place == 0 else ""
            print(f"{head:<26} {operator:<40} {'here' if here else 'missing'}")
    return 1 if missing else 0
