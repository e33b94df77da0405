"""A GGUF file as the folder of a model: config.json and tokenizer of its metadata, and a link to it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from aloft.quantization.gguf import SUFFIX, find
from aloft.quantization.gguf.index import Index, home, read
from aloft.quantization.gguf.names import ARCHITECTURES, FREQUENCIES

#: in a made folder that has no tokenizer: the sentence that says why
_NO_TOKENIZER = "no_tokenizer.txt"
_BESIDE = ("config.json", "generation_config.json", "*token*", "*.jinja", "vocab.json", "merges.txt")


def model_folder(model: str, own_tokenizer: bool = True) -> str:
    """The folder that stands for a GGUF file, or for a folder that holds one and no config.json; others are returned.

    config.json and a tokenizer beside the file are taken as they are; what is missing is made from its metadata, once.

    Args:
        own_tokenizer: the tokenizer has to be the file's, since no other was named.

    Raises:
        ValueError: there is no such file, it is damaged, or its metadata does not tell enough.
    """
    folder = _folder(model)
    lacking = Path(folder) / _NO_TOKENIZER
    if own_tokenizer and lacking.is_file():
        raise ValueError(lacking.read_text())
    return folder


def _folder(model: str) -> str:
    path = Path(model)
    if path.suffix == SUFFIX:
        if not path.is_file():
            raise ValueError(f"There is no file {model}.")
    else:
        found = find(path) if path.is_dir() and not (path / "config.json").is_file() else None
        if found is None:
            return model
        path = found
    made = home(path) / path.stem
    if not (made / "config.json").is_file():
        _make(path, made)
    return str(made)


def _make(path: Path, made: Path) -> None:
    index = read(path)  # what is no GGUF file is told before anything slow is imported
    from aloft.quantization.formats.gguf import Gguf

    Gguf(index)  # what cannot be served is not worth a folder
    with tempfile.TemporaryDirectory(dir=made.parent) as work:
        new = Path(work) / "new"
        new.mkdir()
        for pattern in _BESIDE:
            for file in path.parent.glob(pattern):
                if file.is_file() and file.suffix != SUFFIX:
                    shutil.copy(file, new)
        if not (new / "tokenizer_config.json").is_file():
            try:
                _write_tokenizer(path, new)
            except ValueError as error:
                (new / _NO_TOKENIZER).write_text(str(error))
        if not (new / "config.json").is_file():
            _write_config(index, new)
        os.symlink(path.resolve(), new / path.name)
        if made.exists():
            shutil.rmtree(made)
        new.replace(made)


def _write_tokenizer(path: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except Exception as error:  # what the tokenizers library raises has no other class
        raise ValueError(
            f"No tokenizer can be made from the metadata of {path}: put the model's own tokenizer files beside it, "
            "or name another with --tokenizer. "
            f"({type(error).__name__}: {error})"
        ) from error
    tokenizer.save_pretrained(folder)


def _write_config(index: Index, folder: Path) -> None:
    from transformers import AutoConfig

    stretched = (*index.stretched, *([FREQUENCIES] if FREQUENCIES in index.tensors else ()))
    if stretched:
        raise ValueError(
            f"{index.path} has {stretched[0]}, from which the scaling of its rope cannot be told: put the model's own "
            "config.json beside it."
        )
    config = AutoConfig.from_pretrained(index.path.parent, gguf_file=index.path.name).to_dict()
    config |= {"architectures": [ARCHITECTURES[index.architecture]], "dtype": "bfloat16"}
    # transformers takes these from keys that not every file has, or from its own defaults
    config["vocab_size"] = index.tensors["token_embd.weight"].shape[0]
    config["head_dim"] = index.tensors["blk.0.attn_q.weight"].shape[0] // config["num_attention_heads"]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if config.get(key) is not None}
    (folder / "generation_config.json").write_text(json.dumps(ends) + "\n")
