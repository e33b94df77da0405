"""Sleep mode: an idle engine's device memory goes back, and comes again when it is woken.

Level 1 keeps the weights in host memory, level 2 gives them up: they are zeros then, until ``reload_weights`` puts
others there. The cache is given up at both; what is neither (tables, scales of a cache) comes back at both. Captured
steps hold addresses, so they are captured anew when they are next used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch_npu import npu
from vllm.logger import init_logger

from aloft.errors import NotEnoughMemory
from aloft.ops import storage
from aloft.runner import holdings, memory

if TYPE_CHECKING:
    from torch import nn

    from aloft.runner.model_runner import ModelRunner

logger = init_logger("vllm.aloft.sleep")

WEIGHTS, KV_CACHE = "weights", "kv_cache"
TAGS = (WEIGHTS, KV_CACHE)
#: so many bytes are in both kinds of memory at a time
_AT_ONCE = 256 << 20


class Away:
    """Storages whose memory has been given back, and the bytes that will be in them again."""

    def __init__(self, tensors: Iterable[torch.Tensor], dropped: Iterable[torch.Tensor] = ()) -> None:
        """tensors: one of each storage. dropped: also given back, but zeros when they return.

        Raises:
            MemoryError, RuntimeError: the host has no room for the bytes; everything is where it was.
        """
        self._held: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self.num_bytes, unreturned = 0, 0
        npu.synchronize()
        try:
            for tensor, kept in (*((t, False) for t in dropped), *((t, True) for t in tensors)):
                saved = storage.save(tensor) if kept else None
                storage.release(tensor)
                self._held.append((tensor, saved))
                size = storage.num_bytes(tensor)
                self.num_bytes, unreturned = self.num_bytes + size, unreturned + size
                if unreturned > _AT_ONCE:
                    npu.empty_cache()
                    unreturned = 0
        except BaseException:
            self.come_back()
            raise
        npu.empty_cache()

    def come_back(self) -> None:
        """Everything is as it was, at other addresses.

        Raises:
            NotEnoughMemory: the device has no room for it; nothing has come back.
        """
        returned: list[torch.Tensor] = []
        try:
            for tensor, saved in self._held:
                storage.restore(tensor, clear=saved is None)
                returned.append(tensor)
        except torch.OutOfMemoryError as error:
            for tensor in returned:
                storage.release(tensor)
            npu.empty_cache()
            free, total = npu.mem_get_info()
            raise NotEnoughMemory(
                f"The engine cannot wake up: it needs {memory.gib(self.num_bytes)}, the device has {memory.gib(free)} "
                f"of {memory.gib(total)} free. It stays asleep; free device memory and wake it again."
            ) from error
        while self._held:  # what the host keeps goes as it is copied
            tensor, saved = self._held.pop()
            if saved is not None:
                storage.load(tensor, saved)


class Sleep:
    """The sleep of one engine. Between two calls of ``ready`` the weights may be anything but right."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.away: dict[str, Away] = {}  # by tag
        self.without_weights = False  # since a level 2 sleep, as far as we know
        self.awake = True  # and nothing is to be done before a step
        self.busy = False  # loading weights

    # ---- falling asleep -----------------------------------------------------------------------------------------

    def sleep(self, level: int) -> None:
        """Gives back whatever is there; level 1 or 2."""
        self._require_time("sleep")
        before = npu.memory_reserved()
        self.discard((KV_CACHE,))
        if WEIGHTS not in self.away:
            kept, dropped = self._weights(level)
            self.away[WEIGHTS] = Away(kept, dropped)
            self.without_weights |= level > 1
        logger.info(
            "Asleep at level %d: %s of device memory went back, %s are still in use.",
            level,
            memory.gib(before - npu.memory_reserved()),
            memory.gib(npu.memory_reserved()),
        )

    def discard(self, tags: Iterable[str]) -> None:
        """Gives back what is tagged so; its content is lost.

        Raises:
            ValueError: an unknown tag.
        """
        self._require_time("discard")
        tags = _checked(tags, "discard")
        forget_captures(self.runner)
        self.awake = False
        if KV_CACHE in tags and KV_CACHE not in self.away:
            self.away[KV_CACHE] = Away((), self._caches().values())
        if WEIGHTS in tags and WEIGHTS not in self.away:
            self.away[WEIGHTS] = Away(*self._weights(2))
            self.without_weights = True

    def _caches(self) -> dict[int, torch.Tensor]:
        return holdings.storages([self.runner.kv_caches])

    def _weights(self, level: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """What is kept on the host, and what is given up."""
        model = self.runner.model
        if level > 1:
            drop_copies(model)
        found = weights_of(model, self._caches().values())
        if level == 1:
            return list(found.values()), []
        own = {storage.key(parameter) for parameter in model.parameters()}
        return [t for k, t in found.items() if k not in own], [t for k, t in found.items() if k in own]

    # ---- waking up ----------------------------------------------------------------------------------------------

    def wake_up(self, tags: Iterable[str]) -> None:
        """Brings back what is tagged so, if it is away.

        Raises:
            ValueError: an unknown tag. NotEnoughMemory: there is no room; what has not come back can be woken later.
        """
        tags = _checked(tags, "wake_up")
        for tag in tags:
            if tag in self.away:
                self.away[tag].come_back()
                del self.away[tag]
        if WEIGHTS in tags and self.without_weights:
            logger.info("The weights are zeros now: collective_rpc('reload_weights') loads them.")
        self.awake = not self.away and not self.without_weights

    def ready(self) -> None:
        """Before a step that finds the engine not ``awake``: whether there is something to compute with.

        Raises:
            RuntimeError: it sleeps.
        """
        self._require_time("a step")
        if self.away:
            raise RuntimeError(f"The engine sleeps ({', '.join(self.away)} away): wake_up() comes before a step.")
        if self.without_weights and _all_zero(self.runner.model):
            from aloft.runner.reload import reload  # it builds on this module

            logger.warning(
                "The weights were given up by a sleep of level 2, and nothing has loaded others since: loading those "
                "of %s (collective_rpc('reload_weights') says so in time).",
                self.runner.model_config.model,
            )
            reload(self.runner)
        self.loaded()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """While weights are loaded, which come from the caller's own code perhaps, nothing else begins.

        Raises:
            RuntimeError: they are being loaded.
        """
        self._require_time("reload_weights")
        self.busy, self.awake = True, False
        try:
            yield
        finally:
            self.busy = False
            self.awake = not self.away and not self.without_weights

    def _require_time(self, what: str) -> None:
        if self.busy:
            raise RuntimeError(f"The weights are being loaded: {what} comes when they are there.")

    def put(self, tag: str, away: Away) -> None:
        """Something is away that no sleep has given back."""
        self.away[tag] = away
        self.awake = False

    def loaded(self) -> None:
        """The weights are there, and right."""
        self.away.pop(WEIGHTS, None)
        self.without_weights = False
        self.awake = not self.away


def _checked(tags: Iterable[str], call: str) -> list[str]:
    tags = [tags] if isinstance(tags, str) else list(tags)
    for tag in tags:
        if tag not in TAGS:
            raise ValueError(f"{call} tags must be of {', '.join(TAGS)}, not {tag}.")
    return tags


def forget_captures(runner: ModelRunner) -> None:
    """Captured steps read and write where weights and caches were: they are captured anew when they are next used."""
    runner.interrupt()
    npu.synchronize(runner.device)
    if runner.graphs is not None:
        runner.graphs.clear()


def weights_of(model: nn.Module, without: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """One tensor for every storage of a model that is its own. without: tensors of the cache."""
    return holdings.storages([model], [*holdings.shared(), *without])


def drop_copies(model: nn.Module) -> None:
    """Forgets what is made from weights when it is first used."""
    for module in model.modules():
        if getattr(module, "aloft_head", None) is not None:
            module.aloft_head = None  # type: ignore[assignment]


def _all_zero(model: nn.Module) -> bool:
    """Whether no vector among the parameters, such as a norm's weight, has a value but zero."""
    vectors: Iterator[torch.Tensor] = (p.data for p in model.parameters() if p.dim() == 1 and p.is_floating_point())
    return not any(bool(vector.any()) for vector in vectors)
