"""``aloft eval``: perplexity and next-token accuracy of a model on a text, and how it compares with another."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aloft.cli.errors import UserError
from aloft.cli.reason import told
from aloft.cli.serve import require_folder, served_folder


@dataclass(frozen=True)
class EvalSettings:
    """text: a UTF-8 file. reference: a model's folder, or saved scores. tokens: how many are predicted, 0 for all."""

    text: Path
    reference: Path | None = None
    tokens: int = 0
    window: int = 1024
    candidates: int = 20
    save: Path | None = None
    quantization: Any = None
    kv_cache_dtype: str = "auto"
    additional_config: dict[str, Any] = field(default_factory=dict)
    as_json: bool = False


def evaluate(model: Path, settings: EvalSettings) -> int:
    """Scores the model (and the reference, where it is no file of scores) and prints the result."""
    from aloft.evaluation.compare import compare, summary
    from aloft.evaluation.scores import Scores

    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"  # standard output is for the result
    model = Path(served_folder(str(model)))
    require_folder(model)
    if settings.reference is not None and not settings.reference.is_file():
        require_folder(settings.reference)
    _check(settings)
    try:
        reference = None
        if settings.reference is not None and settings.reference.is_file():
            reference = Scores.load(settings.reference)
        first = _prepared(model, settings, settings.kv_cache_dtype)
        second = None  # before the first is scored: its mistakes are told now
        if settings.reference is not None and reference is None:
            second = _prepared(settings.reference, settings)
            if second.pieces != first.pieces:
                raise ValueError("--reference makes other tokens of the text: only models of one tokenizer compare")
        kept = None if settings.save is None else _parts(model, settings)
        scores = _score(first, settings, _engine(settings), kept)
        if settings.save is not None and kept is not None:
            scores.save(settings.save)
            shutil.rmtree(kept, ignore_errors=True)
        if second is not None:
            reference = _score(second, settings, {})
        compared = compare(scores, reference) if reference is not None else None
    except ValueError as error:
        raise UserError(str(error)) from error
    plain = summary(scores)
    if settings.as_json:
        said = {"model": str(model), "text": settings.text.name, **_how(first), **dataclasses.asdict(plain)}
        print(json.dumps(said | (compared.row() if compared else {}), indent=1))
        return 0
    print(f"tokens      {plain.tokens}")
    print(f"perplexity  {plain.perplexity:.4f}")
    print(f"accuracy    {plain.accuracy:.4%}   (next token, first choice)")
    if compared is not None:
        print("against the reference, with 95 % intervals (paired, bootstrap over windows):")
        print(f"accuracy kept    {compared.accuracy_kept:.2%}")
        print(f"perplexity rise  {compared.perplexity_rise:.2%}")
        print(f"KL divergence    {compared.kl:.5f} nats a token (lower bound, from the listed candidates)")
    return 0


def _check(settings: EvalSettings) -> None:
    """Raises UserError for what is wrong whatever the model."""
    if not settings.text.is_file():
        raise UserError(f"--text {settings.text} is not a file.")
    if settings.window < 2 or settings.candidates < 1:
        raise UserError("--window must be at least 2 and --candidates at least 1.")
    save = settings.save
    if save is not None and not save.parent.is_dir():
        raise UserError(f"--save {save}: there is no folder {save.parent}.")
    if save is not None and save.is_dir():
        raise UserError(f"--save {save} is a folder; name a file, such as {save / 'scores.npz'}.")


@dataclass(frozen=True)
class _Prepared:
    """A model that takes the text: its configuration and the windows, in its tokens."""

    model: Path
    config: Any
    pieces: list[list[int]]


def _prepared(model: Path, settings: EvalSettings, kv_cache_dtype: str = "auto") -> _Prepared:
    """What can be checked before an engine starts, which takes seconds.

    Raises:
        UserError: the model takes no window of that length and the token after it, its vocabulary has fewer tokens than
            candidates, the text has not a window's tokens, or the cache's dtype is not served.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.tokenizers import cached_tokenizer_from_config

    from aloft import limits
    from aloft.evaluation.scores import windows

    window, candidates = settings.window, settings.candidates
    with told():
        config = EngineArgs(model=str(model)).create_model_config()
        longest, vocabulary = config.max_model_len, config.get_vocab_size()
        if candidates > vocabulary:
            raise UserError(f"--candidates must be at most {vocabulary}, the vocabulary of {model}, not {candidates}.")
        if window >= longest:
            raise UserError(
                f"--window must be at most {longest - 1} for {model}, whose length is {longest}, not {window}."
            )
        refusal = limits.cache_dtype_refusal(kv_cache_dtype, str(config.dtype))
        if refusal is not None:
            raise UserError(refusal)
        tokenizer: Any = cached_tokenizer_from_config(config)
        text = settings.text.read_text(encoding="utf-8", errors="replace")
        return _Prepared(model, config, windows(tokenizer(text, verbose=False)["input_ids"], window, settings.tokens))


def _how(prepared: _Prepared) -> dict[str, Any]:
    """How the model is quantized, as the row of a table says it: what ``aloft quantize`` noted, or the format's name
    (then what the weights take of their bfloat16 bytes is not known)."""
    report = prepared.model / "aloft-quantize.json"
    if report.is_file():
        said = json.loads(report.read_text())
        return {"scheme": said["settings"]["scheme"], "weight_ratio": said["weight_ratio"]}
    quantized = prepared.config.quantization
    return {
        "scheme": quantized or str(prepared.config.dtype).removeprefix("torch."),
        "weight_ratio": None if quantized else 1.0,
    }


def _engine(settings: EvalSettings) -> dict[str, Any]:
    """What the evaluated model's engine is told beside the model."""
    return {
        "quantization": settings.quantization,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "additional_config": settings.additional_config,
    }


def _parts(model: Path, settings: EvalSettings) -> Path:
    """Where an interrupted run leaves its scores: another model, or the same one written anew, has another folder."""
    assert settings.save is not None
    files = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in model.glob("*.*"))
    said = repr((str(model.resolve()), files, *_engine(settings).values()))
    return settings.save.with_name(f"{settings.save.name}.{hashlib.sha256(said.encode()).hexdigest()[:12]}.parts")


def _score(prepared: _Prepared, settings: EvalSettings, engine: dict[str, Any], kept: Path | None = None) -> Any:
    from rich.console import Console
    from rich.progress import Progress
    from vllm import LLM

    from aloft.evaluation.scores import score

    with told():
        llm = LLM(
            model=str(prepared.model),
            **engine,
            max_model_len=settings.window + 1,
            max_num_seqs=8,
            max_logprobs=settings.candidates,
            enable_prefix_caching=False,
            disable_log_stats=True,
        )
    pieces = prepared.pieces
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(prepared.model.name, total=len(pieces))
        return score(llm, pieces, settings.candidates, lambda done, total: bar.update(task, completed=done), kept)
