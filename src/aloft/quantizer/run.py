"""Quantizes a model block by block into a folder that vLLM loads."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aloft import __version__
from aloft.quantizer import experts, fold, folder, mixed, table
from aloft.quantizer.block import quantize_block
from aloft.quantizer.compressed_tensors import CompressedTensorsWriter
from aloft.quantizer.decoder import LINEARS, Decoder
from aloft.quantizer.distill import Lesson
from aloft.quantizer.held import HeldBlock
from aloft.quantizer.lesson import Ends, teach
from aloft.quantizer.modelslim import ModelSlimWriter
from aloft.quantizer.recipe import Recipe, recipe
from aloft.quantizer.rotation import orthogonal
from aloft.quantizer.search import search
from aloft.quantizer.statistics import Stream, advance, cache_peaks, observe
from aloft.quantizer.text import windows

WRITERS = {"modelslim": ModelSlimWriter, "compressed-tensors": CompressedTensorsWriter}
_PROBES = 4  # calibration windows that sensitivities are measured on
_COPIED = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken")


@dataclass(frozen=True)
class Settings:
    """Everything that decides the result. samples windows of length tokens of the calibration text are used.

    tune: steps of distillation after the blocks are rounded, on tune_samples windows. embedding: the vocabulary table,
    which a tied head shares: ``auto`` (as it is), ``int8`` (a scale a row) or ``int4`` (groups).
    """

    scheme: str
    format: str = "modelslim"
    algorithm: str = "auto"
    group: int | None = None
    symmetric: bool | None = None
    seed: int = 0
    kv: str = "auto"
    target_bits: float | None = None
    samples: int = 64
    length: int = 512
    tune: int = 0
    tune_samples: int = 256
    max_loss: float | None = None
    embedding: str = "auto"

    @property
    def mixed(self) -> bool:
        """Whether some layers get more bits than the scheme says."""
        return self.target_bits is not None or self.max_loss is not None


@dataclass(frozen=True)
class Result:
    """layers: one row a linear layer, and a quantized table's; weight_ratio: their bytes in use over those in bfloat16.

    plan: with mixed precision, why each product has its width; see ``mixed.Plan``.
    """

    layers: list[dict[str, Any]]
    weight_ratio: float
    plan: mixed.Plan | None = None


Progress = Callable[[int, int, str], None]


def quantize(
    model: Path | str,
    out: Path | str,
    settings: Settings,
    calibration: Path | str | None = None,
    progress: Progress = lambda done, total, words: None,
    overwrite: bool = False,
) -> Result:
    """Writes the quantized checkpoint of a bfloat16 or float16 model.

    One block is in memory at a time. What is finished stays in OUT when the run is interrupted, and the same settings
    go on from there. ``overwrite``: a run with other settings, or a checkpoint made by this tool, is discarded.

    Raises:
        ValueError: a setting, the model or the calibration text does not serve, or OUT holds something else.
    """
    model, out = Path(model), Path(out)
    mixture = (model / "config.json").is_file() and experts.is_mixture(model)
    named = experts.nearest if mixture else recipe
    wanted = named(settings.scheme, settings.group, settings.symmetric, settings.algorithm)
    if settings.format not in WRITERS:
        raise ValueError(f"--format must be one of {', '.join(WRITERS)}, not {settings.format!r}")
    if settings.kv not in ("auto", "int8") or (settings.kv == "int8" and settings.format != "modelslim"):
        raise ValueError(f"--kv must be auto, or int8 with --format modelslim, not {settings.kv!r}")
    if settings.mixed:
        mixed.check(wanted, settings.target_bits, settings.max_loss)
    if settings.tune and wanted.bits != 4:
        raise ValueError(f"--tune goes with 4-bit schemes, not with {wanted.scheme}")
    if mixture and (settings.mixed or settings.tune or settings.kv == "int8"):
        raise ValueError("--target-bits, --max-loss, --tune and --kv int8 are not for mixtures of experts")
    needs_text = wanted.needs_text or settings.kv == "int8" or settings.mixed or settings.tune > 0
    if needs_text and calibration is None:
        raise ValueError(f"the scheme {wanted.scheme} (KV {settings.kv}) needs calibration text: --calib FILE")
    decoder = experts.Mixture(model) if mixture else Decoder(model)
    if settings.format == "modelslim":  # its description has one group size for all layers
        wanted = wanted.shared(decoder.input_features())
    wanted.check_groups(decoder.input_features())
    table.recipe(settings.embedding, wanted, decoder.config.hidden_size)
    run = _Run(decoder, out, settings, wanted, Path(calibration) if needs_text and calibration else None)
    return run.go(progress, overwrite)


class _Run:
    def __init__(self, decoder: Decoder, out: Path, settings: Settings, wanted: Recipe, text: Path | None) -> None:
        self.decoder, self.out, self.settings, self.recipe, self.text = decoder, out, settings, wanted, text
        self.writer: Any = WRITERS[settings.format]()
        self.work = out / folder.WORK
        self.plan: mixed.Plan | None = None
        self.turn = orthogonal(decoder.config.hidden_size, settings.seed) if wanted.rotate else None
        self.head_dim = getattr(decoder.config, "head_dim", None) or (
            decoder.config.hidden_size // decoder.config.num_attention_heads
        )

    def go(self, progress: Progress, overwrite: bool) -> Result:
        total = self.decoder.num_layers
        start, rows = self._resume(overwrite)
        if self.settings.mixed:
            self.plan = self._plan(start, progress)
        stream = self._start(start)
        for index in range(start, total):
            progress(index, total, f"block {index}")
            stream, made = self._block(index, stream)
            rows += made
            self._save(index, stream, rows)
        if self.settings.tune:
            rows = self._tune(progress)
        progress(total, total, "writing")
        self._finish(rows)
        return Result(rows, _ratio(rows), self.plan)

    # ---- one block ----------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _plan(self, done: int, progress: Progress) -> mixed.Plan:
        """Chooses the products with more bits, from a pass over the float model (or from an earlier run's)."""
        held = self.work / "plan.json"
        if not (done and held.is_file()):
            stream = self._start(0)
            assert stream is not None
            probe = mixed.Probe(self.recipe, Stream(stream.states[:_PROBES], stream.position), self.settings.seed)
            for index in range(self.decoder.num_layers):
                progress(index, self.decoder.num_layers, f"sensitivity of block {index}")
                probe.block(self._layer(index), index)
            ends = self._ends()
            found = probe.found(self.decoder.norm(ends.gain), ends.head)
            held.write_text(json.dumps([dataclasses.astuple(one) for one in found]))
        sensitivities = [mixed.Sensitivity(*row) for row in json.loads(held.read_text())]
        return mixed.plan(sensitivities, self.recipe, self.settings.target_bits, self.settings.max_loss)

    def _layer(self, index: int) -> torch.nn.Module:
        """A block as it is quantized: after the rotations, before any rounding."""
        layer = self.decoder.layer(index)
        if self.turn is not None:
            fold.fold_gains(layer)
            fold.rotate_block(layer, self.turn, self.settings.seed + 1 + index, self.head_dim)
            _to_bfloat16(layer)
        return layer

    @torch.inference_mode()
    def _block(self, index: int, stream: Stream | None) -> tuple[Any, list[dict[str, Any]]]:
        if isinstance(self.decoder, experts.Mixture):
            return None, self._write(index, self.decoder.block(index, self.recipe))
        layer = self._layer(index)
        if self.recipe.smooth:
            assert stream is not None
            fold.smooth(layer, observe(layer, stream), self.recipe.smooth, self.head_dim)
            _to_bfloat16(layer)
        if self.recipe.awq:
            assert stream is not None
            search(layer, observe(layer, stream), self.recipe.of, self.head_dim)
            _to_bfloat16(layer)
        inputs = observe(layer, stream) if stream is not None else None
        floats = {name: parameter.data for name, parameter in layer.named_parameters()} if self.settings.tune else {}
        made = quantize_block(
            layer, inputs, mixed.chooser(self.recipe, index, self.plan.wide if self.plan else set()), self.settings.seed
        )
        parameters = {name: parameter.data for name, parameter in layer.named_parameters()}
        block = HeldBlock(made, parameters)
        if self.settings.kv == "int8":
            assert stream is not None
            block.extra = self.writer.cache(f"model.layers.{index}.self_attn", *cache_peaks(layer, stream))
        rows = []
        if self.settings.tune:
            block.parameters = floats
            block.save(self.work / _file(index))
        else:
            rows = self._write(index, block)
        return advance(layer, stream) if stream is not None else None, rows

    def _write(self, index: int, block: HeldBlock) -> list[dict[str, Any]]:
        """A block's file in the checkpoint; its rows of the report."""
        from safetensors.torch import save_file

        tensors = dict(block.extra)
        rows = []
        prefix = f"model.layers.{index}."
        for name, entry in block.layers.items():
            tensors |= self.writer.layer(prefix + name, entry, block.parameters.get(f"{name}.bias"))
            rows.append(_row(prefix + name, entry))
        for name, parameter in block.parameters.items():
            if name.removesuffix(".weight") not in block.layers:
                exact = name.endswith("correction_bias")  # of a router: float32 decides which expert is chosen
                tensors[prefix + name] = (parameter if exact else parameter.to(torch.bfloat16)).contiguous()
                self.writer.float(prefix + name)
        save_file(tensors, self.out / _file(index), {"format": "pt"})
        return rows

    def _tune(self, progress: Progress) -> list[dict[str, Any]]:
        """Trains rounding and scales of all blocks together, then writes them."""
        said = self.settings
        blocks = [HeldBlock.load(self.work / _file(index)) for index in range(self.decoder.num_layers)]
        assert self.text is not None
        tokens = windows(self.text, self.decoder.folder, said.tune_samples, said.length, said.seed)
        teach(
            self.decoder, self._layer, blocks, self._ends(), tokens, Lesson(said.tune), said.seed, self.work, progress
        )
        rows: list[dict[str, Any]] = []
        for index, block in enumerate(blocks):
            rows += self._write(index, block)
        return rows

    @torch.inference_mode()
    def _start(self, done: int) -> Stream | None:
        """The hidden states before block ``done``; None where the recipe needs no text."""
        if self.text is None:
            return None
        if done:
            from safetensors.torch import load_file

            states = load_file(self.work / _stream(done))["states"]
        else:
            said = self.settings
            tokens = windows(self.text, self.decoder.folder, said.samples, said.length, said.seed)
            states = torch.nn.functional.embedding(tokens, self._embedding())
        return Stream(states, self.decoder.rotary(states, torch.arange(states.shape[1])[None]))

    # ---- the tensors outside of blocks --------------------------------------------------------------------------

    def _embedding(self) -> torch.Tensor:
        values = self.decoder.tensor("model.embed_tokens.weight")
        return (values.double() @ self.turn).to(torch.bfloat16) if self.turn is not None else values.to(torch.bfloat16)

    def _outside(self) -> dict[str, torch.Tensor]:
        made = {name: tensor.to(torch.bfloat16) for name, tensor in self.decoder.others()}
        if self.turn is None:
            return made
        head = self.decoder.tensor("model.embed_tokens.weight" if self.decoder.tied else "lm_head.weight")
        gain = self.decoder.tensor("model.norm.weight")
        made["lm_head.weight"] = ((head.double() * gain.double()) @ self.turn).to(torch.bfloat16)
        made["model.norm.weight"] = torch.ones_like(gain, dtype=torch.bfloat16)
        made["model.embed_tokens.weight"] = self._embedding()
        return made

    def _ends(self) -> Ends:
        outside = self._outside()
        first = outside["model.embed_tokens.weight"]
        return Ends(first, outside.get("lm_head.weight", first), outside["model.norm.weight"])

    # ---- files --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _key(self) -> str:
        """Of everything that decides the result, the content of the model's files among it."""
        names = ["config.json", *sorted(set(self.decoder.where.values()))]
        source = {name: _digest(self.decoder.folder / name) for name in names}
        text = _digest(self.text) if self.text is not None else ""
        said = [dataclasses.asdict(self.settings), dataclasses.asdict(self.recipe), source, text]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def _resume(self, overwrite: bool) -> tuple[int, list[dict[str, Any]]]:
        """Blocks finished by an earlier run with the same settings; another run's are refused, or discarded."""
        self.out.mkdir(parents=True, exist_ok=True)
        held = folder.unfinished(self.work)
        if held is not None and held["key"] == self._key:
            vars(self.writer).update(self._writer_state(held["writer"]))
            return held["done"], held["rows"]
        if overwrite and self.out.resolve() != self.decoder.folder.resolve():
            folder.clear(self.out)
            held = None
        folder.require_free(self.out, held, self.settings)
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        return 0, []

    def _save(self, index: int, stream: Stream | None, rows: list[dict[str, Any]]) -> None:
        from safetensors.torch import save_file

        if stream is not None:
            save_file({"states": stream.states}, self.work / _stream(index + 1))
        said = {
            "key": self._key,
            "done": index + 1,
            "rows": rows,
            "writer": self._writer_said(),
            "settings": dataclasses.asdict(self.settings),
        }
        (self.work / "state.new").write_text(json.dumps(said))
        (self.work / "state.new").replace(self.work / "state.json")
        (self.work / _stream(index)).unlink(missing_ok=True)  # of no use once the state names the next one

    def _writer_said(self) -> dict[str, Any]:
        said = dict(vars(self.writer))
        said.pop("dtype")
        if "groups" in said:
            said["groups"] = [[dataclasses.asdict(of), names] for of, names in said["groups"].items()]
        return said

    @staticmethod
    def _writer_state(said: dict[str, Any]) -> dict[str, Any]:
        if "groups" in said:
            said["groups"] = {
                Recipe(**(of | {"sensitive": tuple(of["sensitive"])})): names for of, names in said["groups"]
            }
        return said

    def _finish(self, rows: list[dict[str, Any]]) -> None:
        from safetensors.torch import save_file

        outside = self._outside()
        how = table.recipe(self.settings.embedding, self.recipe, self.decoder.config.hidden_size)
        if how is not None:
            entry = table.quantize(outside.pop(f"{table.NAME}.weight"), how)
            rows.append(_row(table.NAME, entry))
        for name in outside:
            self.writer.float(name)
        if how is not None:
            outside |= self.writer.layer(table.NAME, entry, None)
        save_file(
            {name: tensor.contiguous() for name, tensor in outside.items()}, self.out / _file(-1), {"format": "pt"}
        )
        for pattern in _COPIED:
            for file in self.decoder.folder.glob(pattern):
                if not file.name.endswith(".index.json") and file.name not in ("config.json", "aloft.json"):
                    shutil.copy(file, self.out / file.name)
        config = json.loads((self.decoder.folder / "config.json").read_text())
        if self.turn is not None:
            config["tie_word_embeddings"] = False
        config = self.writer.finish(self.out, config)
        (self.out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        self._write_index()
        report: dict[str, Any] = {
            "aloft": __version__,
            "settings": dataclasses.asdict(self.settings),
            "weight_ratio": _ratio(rows),
        }
        report["layers"] = rows
        if self.plan is not None:
            report["plan"] = {
                "mean_bits": self.plan.mean_bits,
                "predicted_rise": math.expm1(self.plan.predicted),
                "products": self.plan.reasons,
            }
        (self.out / folder.REPORT).write_text(json.dumps(report, indent=1) + "\n")
        shutil.rmtree(self.work)

    def _write_index(self) -> None:
        from safetensors import safe_open

        where: dict[str, str] = {}
        size = 0
        for file in sorted(self.out.glob("model-*.safetensors")):
            size += file.stat().st_size
            with safe_open(file, framework="pt") as opened:
                where |= dict.fromkeys(opened.keys(), file.name)
        index = {"metadata": {"total_size": size}, "weight_map": where}
        (self.out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def _to_bfloat16(layer: torch.nn.Module) -> None:
    for parameter in layer.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _file(index: int) -> str:
    return "model-outside.safetensors" if index < 0 else f"model-block-{index:05d}.safetensors"


def _stream(done: int) -> str:
    """File of the hidden states behind so many blocks: a run killed between it and the state takes the one before."""
    return f"stream-{done:05d}.safetensors"


def _row(name: str, entry: Any) -> dict[str, Any]:
    rows, columns = entry.codes.shape
    groups = entry.grid.scale.shape[1]
    # bytes of a scale as the operators take it
    width = {"w8a16": 2, "w4a16": 2, "w4a8": 8}.get(entry.recipe.scheme, 4)
    parts = width * (1 if entry.recipe.symmetric else 2)
    used = rows * columns * entry.recipe.bits / 8 + rows * groups * parts
    return {
        "layer": name,
        "scheme": entry.recipe.scheme,
        "group": entry.recipe.group,
        "error": entry.error,
        "bytes": int(used),
        "bytes_bfloat16": rows * columns * 2,
    }


def _ratio(rows: list[dict[str, Any]]) -> float:
    return sum(row["bytes"] for row in rows) / sum(row["bytes_bfloat16"] for row in rows) if rows else 1.0


__all__ = ["LINEARS", "Result", "Settings", "quantize"]
