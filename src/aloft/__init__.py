"""aloft: vLLM on Ascend NPUs, and on a virtual NPU where there is none."""

__version__ = "0.1.0"
