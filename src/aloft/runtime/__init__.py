"""Which Ascend is under us: CANN, or the virtual NPU this package brings."""
