"""Entry point `torch.backends`: called by `import torch` after the package's own import."""

from __future__ import annotations


def load() -> None:
    """Does nothing yet: the start-up preload has mapped the libraries, and torch_npu loads itself."""
