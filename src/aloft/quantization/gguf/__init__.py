"""GGUF files as checkpoints: read by the gguf library, once, into an index; served from their own bytes.

vLLM knows neither the format nor a way to name a file that is no folder, so that a file gets a folder of links and
converted metadata (``folder``); ``loader`` reads the tensors.
"""

from __future__ import annotations

from pathlib import Path

SUFFIX = ".gguf"
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")


def find(model: str | Path) -> Path | None:
    """The GGUF file of a folder that has no other weights; None where there is none.

    Raises:
        ValueError: there are several.
    """
    folder = Path(model)
    files = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
    if not files or any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
        return None
    if len(files) > 1:
        raise ValueError(
            f"{folder} holds {len(files)} GGUF files ({', '.join(file.name for file in files)}): name the one to "
            "serve; parts of a split file have to be merged first (llama-gguf-split --merge)."
        )
    return files[0]
