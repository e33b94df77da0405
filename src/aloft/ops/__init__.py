"""Operator contracts and the tool that checks them on the runtime that is present.

One operator, one contract: what a call means, what it may be given, how exact the result is. A contract comes with a
float64 reference and with the cases that exercise it; ``aloft ops`` runs them on the device ``npu`` (real or virtual)
and writes ``docs/ops.md`` from the same objects. Nothing here imports vLLM.
"""

from __future__ import annotations

from aloft.ops.contract import EXACT, Bad, Case, Contract, Masked, Tolerance

__all__ = ["EXACT", "Bad", "Case", "Contract", "Masked", "Tolerance"]
