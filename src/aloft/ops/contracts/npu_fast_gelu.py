"""Contract of npu_fast_gelu."""

from __future__ import annotations

from aloft.ops.families.sigmoid import gated_by_itself

CONTRACT = gated_by_itself("npu_fast_gelu", 1.702, "y = x · sigmoid(1.702 · x) (A2 and A3).")
