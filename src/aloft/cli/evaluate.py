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

    model = Path(served_folder(str(model)))
    require_folder(model)
    if settings.reference is not None and not settings.reference.is_file():
        require_folder(settings.reference)
    if not settings.text.is_file():
        raise UserError(f"--text {settings.text} is not a file.")
    if settings.window < 2 or settings.candidates < 1:
        raise UserError("--window must be at least 2 and --candidates at least 1.")
    try:
        reference = None
        if settings.reference is not None and settings.reference.is_file():
            reference = Scores.load(settings.reference)
        kept = None if settings.save is None else _parts(model, settings)
        scores = _score(model, settings, _engine(settings), kept)
        if settings.save is not None and kept is not None:
            scores.save(settings.save)
            shutil.rmtree(kept, ignore_errors=True)
        if settings.reference is not None and reference is None:
            reference = _score(settings.reference, settings, {})
        compared = compare(scores, reference) if reference is not None else None
    except ValueError as error:
        raise UserError(str(error)) from error
    plain = summary(scores)
    if settings.as_json:
        said: dict[str, Any] = {"model": str(model), "text": settings.text.name, **dataclasses.asdict(plain)}
        print(json.dumps(said | (dataclasses.asdict(compared) if compared else {}), indent=1))
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


def require_fit(model: Path, window: int, candidates: int) -> None:
    """Raises UserError where the model takes no window of that length and the token after it, or its vocabulary has
    fewer tokens than candidates."""
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(model=str(model), skip_tokenizer_init=True).create_model_config()
    longest, vocabulary = config.max_model_len, config.get_vocab_size()
    if candidates > vocabulary:
        raise UserError(f"--candidates must be at most {vocabulary}, the vocabulary of {model}, not {candidates}.")
    if window >= longest:
        raise UserError(f"--window must be at most {longest - 1} for {model}, whose length is {longest}, not {window}.")


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


def _score(model: Path, settings: EvalSettings, engine: dict[str, Any], kept: Path | None = None) -> Any:
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"  # standard output is for the result
    from rich.console import Console
    from rich.progress import Progress
    from vllm import LLM

    from aloft.evaluation.scores import score, windows

    with told():
        require_fit(model, settings.window, settings.candidates)
        llm = LLM(
            model=str(model),
            **engine,
            max_model_len=settings.window + 1,
            max_num_seqs=8,
            max_logprobs=settings.candidates,
            enable_prefix_caching=False,
            disable_log_stats=True,
        )
    tokenizer: Any = llm.get_tokenizer()
    text = settings.text.read_text(encoding="utf-8", errors="replace")
    pieces = windows(tokenizer(text, verbose=False)["input_ids"], settings.window, settings.tokens)
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(model.name, total=len(pieces))
        return score(llm, pieces, settings.candidates, lambda done, total: bar.update(task, completed=done), kept)
