"""A sequence's attention depends on itself alone: not on the batch, the threads or the operator that serves it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator

import pytest
import torch
import torch_npu  # noqa: F401

from aloft.runtime.choice import library_folder

BLOCK, LENGTHS = 128, (1, 31, 300, 513, 1500, 129)
FORMS = [(9, 3, 64), (16, 8, 128), (8, 1, 80)]


@pytest.fixture
def threads() -> Iterator[ctypes.CDLL]:
    library = ctypes.CDLL(str(library_folder() / "libaloft_kernels.so"))
    before = library.aloftNumThreads()
    yield library
    library.aloftSetNumThreads(before)


class Operands:
    """Caches whose unused places are NaN, and queries for the end of every sequence."""

    def __init__(self, form: tuple[int, int, int], dtype: torch.dtype, q_len: int) -> None:
        heads, self.kv_heads, self.d = form
        generator = torch.Generator().manual_seed(heads + q_len)
        per = -(-max(LENGTHS) // BLOCK)
        table = torch.randperm(len(LENGTHS) * per, generator=generator).view(-1, per).to(torch.int32)
        caches = []
        for _ in range(2):
            cache = torch.randn(table.numel(), BLOCK, self.kv_heads, self.d, generator=generator).to(dtype)
            for row, n in zip(table, LENGTHS, strict=True):
                cache[row[n // BLOCK].item(), n % BLOCK :] = math.nan
            caches.append(cache.npu())
        self.key, self.value = caches
        self.q_lens = [min(q_len, n) for n in LENGTHS]
        self.table = table.npu()
        self.query = [torch.randn(n, heads, self.d, generator=generator).to(dtype).npu() for n in self.q_lens]

    def paged(self, indices: list[int], first: int = 0, last: int | None = None) -> list[torch.Tensor]:
        """Tokens [first, last) of the queries of these sequences."""
        queries = [self.query[i][first:last] for i in indices]
        ends = [len(self.query[i]) if last is None else min(last, len(self.query[i])) for i in indices]
        lengths = [LENGTHS[i] - self.q_lens[i] + end for i, end in zip(indices, ends, strict=True)]
        counts = torch.tensor([len(q) for q in queries])
        out, _ = torch.ops.aloft.paged_attention(
            torch.cat(queries),
            self.key,
            self.value,
            self.table[indices],
            counts.cumsum(0).tolist(),
            lengths,
            self.kv_heads,
            self.d**-0.5,
        )
        return list(out.cpu().split(counts.tolist()))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("q_len", [1, 2, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_alone_in_a_batch_and_by_any_number_of_threads(
    form: tuple[int, int, int], q_len: int, dtype: torch.dtype, threads: ctypes.CDLL
) -> None:
    operands = Operands(form, dtype, q_len)
    together = operands.paged(list(range(len(LENGTHS))))
    assert not any(out.isnan().any() for out in together)
    for count in (1, 3):
        threads.aloftSetNumThreads(count)
        for i in range(len(LENGTHS)):
            assert torch.equal(operands.paged([i])[0], together[i])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_decode_reads_lengths_itself_with_equal_results(form: tuple[int, int, int], dtype: torch.dtype) -> None:
    operands = Operands(form, dtype, 1)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32).npu()
    out = torch.ops.aloft.decode_attention(
        torch.cat(operands.query),
        operands.key,
        operands.value,
        operands.table,
        lengths,
        operands.kv_heads,
        operands.d**-0.5,
    )
    assert torch.equal(out.cpu(), torch.cat(operands.paged(list(range(len(LENGTHS))))))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_large_chunks_equal_the_whole(form: tuple[int, int, int], dtype: torch.dtype) -> None:
    operands = Operands(form, dtype, 400)
    whole = operands.paged([4])[0]
    parts = torch.cat([operands.paged([4], first, first + 200)[0] for first in (0, 200)])
    assert torch.equal(parts, whole)
