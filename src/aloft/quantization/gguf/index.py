"""Which tensors a GGUF file holds, and where.

Kept in the cache: the gguf library looks at every token of the vocabulary to find where the tensors begin, for seconds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aloft.cache import cache_folder

if TYPE_CHECKING:
    import numpy

_VERSION = 2
_MAGIC = b"GGUF"


@dataclass(frozen=True)
class Entry:
    """kind: GGUF's name of the type. shape: the outermost dimension first. offset, size: bytes in the file."""

    kind: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True)
class Index:
    """path: the file. stretched: keys of its metadata that ask for scaled rope."""

    path: Path
    architecture: str
    tensors: dict[str, Entry]
    stretched: tuple[str, ...]

    def bytes(self, name: str) -> numpy.ndarray:
        """The tensor's bytes, uint8, mapped from the file: ``[rows, bytes a row]``, or ``[1, bytes]`` for vectors."""
        import numpy

        entry = self.tensors[name]
        mapped = numpy.memmap(self.path, numpy.uint8, "r", entry.offset, (entry.size,))
        return mapped.reshape(entry.shape[0] if len(entry.shape) > 1 else 1, -1)


def home(path: Path) -> Path:
    """Folder below the cache for what is made of this file as it is now."""
    state = path.stat()
    said = repr((_VERSION, str(path.resolve()), state.st_size, state.st_mtime_ns))
    return cache_folder() / "gguf" / hashlib.sha256(said.encode()).hexdigest()[:16]


def read(path: Path) -> Index:
    """The index of a file; made once for each state of it.

    Raises:
        ValueError: it is no GGUF file, a damaged one, or a part of a split one.
    """
    kept = home(path) / "index.json"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        new = kept.with_name(f"index.{os.getpid()}")
        new.write_text(json.dumps(_parse(path)))
        new.replace(kept)
    said: dict[str, Any] = json.loads(kept.read_text())
    tensors = {name: Entry(kind, tuple(shape), *place) for name, (kind, shape, *place) in said["tensors"].items()}
    return Index(path, said["architecture"], tensors, tuple(said["stretched"]))


def _parse(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        start = file.read(len(_MAGIC))
    if start != _MAGIC:
        why = f"begins with {start!r}, not with {_MAGIC!r}" if start else "is empty"
        raise ValueError(f"{path} is no GGUF file: it {why}.")
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ValueError(
            f"{path}: GGUF files are read by the package gguf: pip install 'vllm-aloft[gguf]', or 'gguf>=0.17'."
        ) from error
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError, KeyError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(
            f"{path} ({path.stat().st_size} bytes) is cut off or damaged; was it copied as a whole? ({error})"
        ) from error
    fields = reader.fields
    if "general.architecture" not in fields:
        raise ValueError(f"{path}: the key general.architecture is missing.")
    if "split.count" in fields and fields["split.count"].contents() > 1:
        raise ValueError(f"{path} is one part of a split file: merge them first (llama-gguf-split --merge).")
    architecture = fields["general.architecture"].contents()
    key = f"{architecture}.rope.scaling.type"
    stretched = [key] if key in fields and fields[key].contents() != "none" else []
    size = path.stat().st_size
    tensors = {}
    for tensor in reader.tensors:
        entry = Entry(
            tensor.tensor_type.name,
            tuple(int(extent) for extent in reversed(tensor.shape)),
            int(tensor.data_offset),
            int(tensor.n_bytes),
        )
        if entry.offset + entry.size > size:
            raise ValueError(f"{path} ({size} bytes) is cut off: tensor {tensor.name} ends behind that.")
        tensors[tensor.name] = dataclasses.astuple(entry)
    return {"architecture": architecture, "stretched": stretched, "tensors": tensors}
