"""llama.cpp through llama-cpp-python's low-level interface: its C functions, no Python per token but the arg max."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import llama_cpp as api  # absolute: the installed package, not this module
import numpy

from engines import REPACKED, Tokens

QUANTIZED = {"q8_0": api.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_0": api.LLAMA_FTYPE_MOSTLY_Q4_0}
_BATCH = 2048
_whole_batches = False  # of repacked quantized weights, see whole_batches()


@api.llama_log_callback
def _log(level: int, text: bytes, _: object) -> None:
    if level >= 4:  # errors (5 continues a line)
        print(text.decode(errors="replace"), end="", flush=True)


class LlamaEngine:
    """A context with room for the largest batch; sequences share its cache."""

    def __init__(self, model: str, max_batch: int, max_length: int, threads: int, repacked: bool = True) -> None:
        self.most = _BATCH  # tokens of a call
        api.llama_log_set(_log, ctypes.c_void_p(0))
        api.llama_backend_init()
        loading = api.llama_model_default_params()
        loading.use_extra_bufts = repacked
        self._model = api.llama_model_load_from_file(model.encode(), loading)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        params = api.llama_context_default_params()
        params.n_ctx = max_batch * (-(-max_length // 256) * 256)
        params.n_batch = _BATCH
        params.n_seq_max = max_batch
        params.n_threads = params.n_threads_batch = threads
        params.no_perf = True
        self._context = api.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("llama.cpp cannot make a context")
        self._vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._batch = api.llama_batch_init(_BATCH, 0, 1)
        self._token = numpy.ctypeslib.as_array(self._batch.token, (_BATCH,))
        self._position = numpy.ctypeslib.as_array(self._batch.pos, (_BATCH,))
        self._wanted = numpy.ctypeslib.as_array(self._batch.logits, (_BATCH,))
        self._sequences = [self._batch.seq_id[i] for i in range(_BATCH)]
        numpy.ctypeslib.as_array(self._batch.n_seq_id, (_BATCH,))[:] = 1
        self._rows = 0
        self._length = 0
        self._last = numpy.zeros(0, numpy.int32)

    def _run(self, count: int) -> None:
        self._batch.n_tokens = count
        code = api.llama_decode(self._context, self._batch)
        if code != 0:
            raise RuntimeError(f"llama_decode answered {code}")

    def _argmax(self, rows: int) -> numpy.ndarray:
        logits = api.llama_get_logits(self._context)
        table = numpy.ctypeslib.as_array(logits, (rows * self._vocabulary,)).reshape(rows, self._vocabulary)
        return table.argmax(1).astype(numpy.int32)

    def begin(self, prompts: Sequence[Sequence[int]]) -> Tokens:
        table = numpy.array([list(prompt) for prompt in prompts], numpy.int32)  # of one length
        self._rows, self._length = table.shape
        flat = table.ravel()
        found: list[int] = []
        for start in range(0, flat.size, self.most):
            piece = numpy.arange(start, min(start + self.most, flat.size))
            sequence, position = numpy.divmod(piece, self._length)
            count = piece.size
            self._token[:count] = flat[piece]
            self._position[:count] = position
            self._wanted[:count] = position == self._length - 1
            for i, number in enumerate(sequence.tolist()):
                self._sequences[i][0] = number
            self._run(count)
            ends = int(self._wanted[:count].sum())
            if ends:
                found += self._argmax(ends).tolist()
        self._last = numpy.array(found, numpy.int32)
        for i in range(self._rows):
            self._sequences[i][0] = i
        return [[token] for token in found]

    def decode(self, steps: int) -> Tokens:
        rows = self._rows
        made = numpy.empty((rows, steps), numpy.int32)
        self._wanted[:rows] = 1
        for step in range(steps):
            self._token[:rows] = self._last
            self._position[:rows] = self._length
            self._length += 1
            self._run(rows)
            self._last = made[:, step] = self._argmax(rows)
        return made.tolist()

    def end(self) -> None:
        api.llama_memory_clear(api.llama_get_memory(self._context), True)


def load(model: str, precision: str, max_batch: int, max_length: int, threads: int) -> LlamaEngine:
    """A context on `threads` cores; the file's name has the precision.

    Quantized weights stay as they are in the file unless the precision ends with `REPACKED`: with those llama.cpp
    repacks for AMX, builds (0.3.x of llama-cpp-python on a Sapphire Rapids) die of SIGSEGV as soon as a batch has two
    tokens, so that they get one token at a time, until `whole_batches` is called.
    """
    made = LlamaEngine(model, max_batch, max_length, threads, repacked=precision not in QUANTIZED)
    made.most = 1 if precision.endswith(REPACKED) and not _whole_batches else _BATCH
    return made


def whole_batches() -> None:
    """Called before `load`: give repacked weights as many tokens at once as others get."""
    global _whole_batches
    _whole_batches = True


def quantize(source: str, target: str, kind: str) -> None:
    """Write a quantized file of a float32 one with llama.cpp's own quantizer."""
    api.llama_log_set(_log, ctypes.c_void_p(0))
    params = api.llama_model_quantize_default_params()
    params.ftype = QUANTIZED[kind]
    params.nthread = 2
    code = api.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
    if code != 0 or not Path(target).exists():
        raise RuntimeError(f"llama_model_quantize answered {code}")
