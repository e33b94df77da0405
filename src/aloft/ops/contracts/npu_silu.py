"""Contract of npu_silu."""

from __future__ import annotations

from aloft.ops.families.sigmoid import gated_by_itself

CONTRACT = gated_by_itself("npu_silu", 1.0, "y = x · sigmoid(x).")
