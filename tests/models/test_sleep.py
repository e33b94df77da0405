"""An engine that sleeps gives its memory back, and goes on as if it had not slept; mistakes are told."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch_npu import npu

from aloft.ops import storage
from aloft.runner import holdings

from . import zoo
from .test_captured import runner_of
from .test_greedy import start, stop

SETTINGS = {"dtype": "bfloat16", "max_num_seqs": 6, "num_gpu_blocks_override": 400, "enable_sleep_mode": True}
_alive: list[object] = []  # an engine that is collected takes vLLM's process groups with it, which all here share


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zoo")


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def engine(request: pytest.FixtureRequest, root: Path) -> Iterator[object]:
    made = start(zoo.build(request.param, root), **SETTINGS)
    yield made
    _alive.append(made)
    made.sleep(2)


@pytest.fixture(scope="module")
def llama(root: Path) -> Iterator[object]:
    made = start(zoo.build("llama", root), **SETTINGS)
    yield made
    _alive.append(made)
    made.sleep(2)


def tokens(llm: object, **changes: object) -> list[list[int]]:
    from vllm import SamplingParams

    assert llm.reset_prefix_cache()
    settings = SamplingParams(
        **({"temperature": 0.0, "max_tokens": 12, "ignore_eos": True} | changes), detokenize=False
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in zoo.prompts()[:5]]
    return [list(made.outputs[0].token_ids) for made in llm.generate(prompts, settings, use_tqdm=False)]


def worker(llm: object) -> object:
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


def test_the_memory_goes_back(root: Path) -> None:
    """All an engine has allocated but its inputs and tables, and what is reserved with it."""
    first = start(zoo.build("llama", root), **SETTINGS)  # what all engines of a process share is there from now on
    tokens(first)
    stop(first)
    del first
    gc.collect()
    npu.empty_cache()
    allocated, reserved = npu.memory_allocated(), npu.memory_reserved()
    llm = start(zoo.build("llama", root), **SETTINGS)
    want = tokens(llm)
    runner = runner_of(llm)
    assert runner.graphs.graphs
    weights = sum(p.untyped_storage().nbytes() for p in runner.model.parameters())
    caches = sum(half.nbytes for cache in runner.kv_caches.values() for half in cache.tensors())
    awake = npu.memory_allocated()
    assert awake - allocated >= weights + caches > 4 << 20
    for level in (1, 2):
        llm.sleep(level)
        left = npu.memory_allocated() - allocated
        assert left < 256 << 10, f"{left} bytes are left at level {level}"
        assert npu.memory_reserved() - reserved <= 6 << 20
        assert not runner.graphs.graphs
        with pytest.raises(RuntimeError, match=r"wake_up\(tags=\['weights'\]\) comes before their use"):
            llm.apply_model(lambda model: next(model.parameters()).cpu())
        llm.wake_up()
        assert npu.memory_allocated() - allocated >= weights + caches
        if level == 2:
            assert not any(bool(p.any()) for p in runner.model.parameters())
            llm.collective_rpc("reload_weights")
        assert tokens(llm) == want
    assert npu.memory_allocated() <= awake + (1 << 20)
    for _ in range(3):
        llm.collective_rpc("reload_weights")
    assert tokens(llm) == want
    assert npu.memory_allocated() <= awake + (1 << 20)
    stop(llm)


def test_everything_a_model_holds_is_found(engine: object) -> None:
    """By another way: tensors that the collector knows, after all that a model makes when first used has been made."""
    tokens(engine)
    runner = runner_of(engine)
    found = holdings.storages([runner.model, runner.kv_caches])
    parameters = {storage.key(p) for p in runner.model.parameters()} | {storage.key(b) for b in runner.model.buffers()}
    assert parameters <= found.keys()
    heads = [m.aloft_head.weight for m in runner.model.modules() if getattr(m, "aloft_head", None) is not None]
    assert len(heads) == 1 and storage.key(heads[0]) in found


def test_answers_stay(engine: object) -> None:
    ways = ({}, {"temperature": 1.0, "seed": 3}, {"logprobs": 2})
    want = [tokens(engine, **way) for way in ways]
    for level in (1, 2, 1):
        engine.sleep(level)
        assert engine.llm_engine.is_sleeping()
        if level == 2:
            engine.wake_up(["weights"])
            assert engine.llm_engine.is_sleeping()
            engine.collective_rpc("reload_weights")
            engine.wake_up(["kv_cache"])
        else:
            engine.wake_up()
        assert not engine.llm_engine.is_sleeping()
        assert [tokens(engine, **way) for way in ways] == want


def test_weights_that_nobody_loads_are_loaded_from_the_folder(engine: object) -> None:
    want = tokens(engine)
    engine.sleep(2)
    engine.wake_up()
    assert tokens(engine) == want


def test_another_engine_goes_on(engine: object, llama: object) -> None:
    """Engines of a process share tables of the rotary embedding and the device's memory."""
    want = tokens(llama), tokens(engine)
    engine.sleep(2)
    assert tokens(llama) == want[0]
    engine.wake_up()
    engine.collective_rpc("reload_weights")
    llama.sleep(1)
    assert tokens(engine) == want[1]
    llama.wake_up()
    assert tokens(llama) == want[0]


@pytest.mark.parametrize("mode", ["abort", "keep"])
def test_requests_that_run(llama: object, mode: str) -> None:
    """They are aborted, or kept and computed again; a step that has been begun ahead is no harm."""
    from vllm import SamplingParams

    (want,) = tokens(llama, max_tokens=40)[:1]
    core = llama.llm_engine
    settings = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, detokenize=False)
    core.add_request("kept", {"prompt_token_ids": zoo.prompts()[0]}, settings)
    made: list[int] = []
    for _ in range(7):
        made = [list(out.outputs[0].token_ids) for out in core.step()][-1]
    core.sleep(1, mode)
    assert len(made) == 7 and made == want[:7]
    llama.wake_up()
    for _ in range(60 if mode == "keep" else 1):
        for out in core.step():
            made = list(out.outputs[0].token_ids)
    if mode == "keep":
        assert made == want
    core.abort_request(["kept"])
    assert tokens(llama, max_tokens=40)[0] == want


def test_a_cache_that_is_given_up_alone(llama: object) -> None:
    want = tokens(llama)
    before = npu.memory_allocated()
    llama.llm_engine.step()  # the worker hears that the requests have ended
    llama.sleep(0)
    llama.release_kv_cache_memory()
    assert npu.memory_allocated() < before
    llama.wake_up(["kv_cache"])
    assert llama.wake_up(["scheduling"])
    assert tokens(llama) == want


def test_mistakes_in_sleeping(llama: object) -> None:
    want = tokens(llama)
    with pytest.raises(ValueError, match=r"level of a sleep must be 1 or 2, not 3.*/wake_up"):
        llama.sleep(3)
    llama.wake_up()  # nothing sleeps: vLLM only resumes its scheduler
    llama.sleep(1)
    llama.sleep(2)  # twice: vLLM says so, and nothing happens
    with pytest.raises(RuntimeError, match=r"wake_up\(tags=\['weights'\]\) comes before reload_weights"):
        llama.collective_rpc("reload_weights")
    assert not llama.wake_up(["dreams"])  # vLLM knows no such tag
    with pytest.raises(ValueError, match="tags must be of weights, kv_cache, not dreams"):
        llama.collective_rpc("wake_up", args=(["dreams"],))
    with pytest.raises(ValueError, match="discard tags must be of weights, kv_cache, not dreams"):
        llama.collective_rpc("discard", args=(("dreams",),))
    assert llama.llm_engine.is_sleeping()
    runner = worker(llama).model_runner
    with pytest.raises(RuntimeError, match=r"The engine sleeps \(kv_cache, weights away\): wake_up\(\)"):
        runner.rest.ready()
    assert llama.wake_up() and llama.wake_up()
    assert tokens(llama) == want


def test_without_sleep_mode(root: Path) -> None:
    llm = start(zoo.build("llama", root), **SETTINGS | {"enable_sleep_mode": False})
    want = tokens(llm)
    with pytest.raises(ValueError, match=r"--enable-sleep-mode.*/wake_up"):
        llm.sleep(1)
    llm.wake_up()
    llm.collective_rpc("reload_weights")
    assert tokens(llm) == want
    _alive.append(llm)


def test_other_weights(llama: object, root: Path) -> None:
    """Handed over, and from folders; what does not fit changes nothing."""
    first, second = zoo.build("llama", root), zoo.build("llama", root, 3)
    want = tokens(llama)
    given = load_file(second / "model.safetensors")
    llama.collective_rpc("reload_weights", kwargs={"weights_iterator": list(given.items())})
    changed = tokens(llama)
    assert changed != want
    llama.collective_rpc("reload_weights", kwargs={"weights_path": str(first)})
    assert tokens(llama) == want
    llama.collective_rpc("reload_weights", kwargs={"weights_path": str(second)})
    assert tokens(llama) == changed
    llama.collective_rpc("reload_weights")
    assert tokens(llama) == changed  # the folder is remembered

    part = {name: tensor for name, tensor in given.items() if "layers.1.self_attn.v_proj" not in name}
    narrow = given | {"model.norm.weight": torch.ones(8)}
    smaller = root / "smaller"
    shutil.copytree(second, smaller)
    config = json.loads((smaller / "config.json").read_text()) | {"num_hidden_layers": 2}
    (smaller / "config.json").write_text(json.dumps(config))
    torn = root / "torn"
    shutil.copytree(second, torn)
    save_file({name: t for name, t in given.items() if name != "model.norm.weight"}, torn / "model.safetensors")
    odd = {}
    for name, tensors in {
        "halved": {name: t for name, t in given.items() if "layers.1.mlp.up_proj" not in name},  # packed with gate_proj
        "integers": {name: t.int() for name, t in given.items()},
        "short": None,
        "list": given,
    }.items():
        odd[name] = {"weights_path": str(root / name)}
        shutil.copytree(second, root / name)
        if tensors is not None:
            save_file(tensors, root / name / "model.safetensors")
    (root / "list" / "config.json").write_text("[]")
    file = root / "short" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    for wrong, words in (
        (odd["halved"], "halved do not fit. There are no weights, or not all, for .*layers.1.mlp.gate_up_proj"),
        (odd["integers"], "integers do not fit. .* is of torch.int32, the model's weights are floats"),
        (odd["short"], "short do not fit. .*file not fully covered"),
        (odd["list"], "list do not fit. Its config.json is no description"),
        ({"weights_path": ""}, "the weights of  do not fit. There is no folder"),
        ({"weights_iterator": [("lm_head.weight", [1.0])]}, "lm_head.weight is a list, not a tensor"),
        ({"weights_iterator": list(part.items())}, "no weights, or not all, for .*layers.1.self_attn.qkv_proj"),
        ({"weights_iterator": list(narrow.items())}, "keeps its weights"),
        ({"weights_iterator": [*given.items(), ("model.more.weight", torch.ones(1))]}, "keeps its weights"),
        ({"weights_path": str(root / "nowhere")}, "nowhere do not fit. There is no folder of that name"),
        ({"weights_path": str(smaller)}, "another model: num_hidden_layers is 2, not 3"),
        ({"weights_path": str(torn)}, "torn do not fit.*model.norm.weight"),
        ({"weights_path": str(first), "weights_iterator": []}, "weights_iterator or weights_path, not both"),
        ({"is_checkpoint_format": False}, "is_checkpoint_format"),
    ):
        with pytest.raises(ValueError, match=words):
            llama.collective_rpc("reload_weights", kwargs=wrong)
        assert tokens(llama) == changed
    llama.collective_rpc("reload_weights", kwargs={"weights_path": str(first)})
    assert tokens(llama) == want


@pytest.mark.parametrize("room", ["enough", "none"])
def test_a_reload_is_not_disturbed(llama: object, monkeypatch: pytest.MonkeyPatch, root: Path, room: str) -> None:
    """Whoever hands weights over can call the engine meanwhile, or be interrupted."""
    want = tokens(llama)
    given = load_file(zoo.build("llama", root) / "model.safetensors")
    rest = worker(llama).model_runner.rest
    if room == "none":
        monkeypatch.setattr(npu, "mem_get_info", lambda *_: (1 << 10, 1 << 30))

    def during(call: Callable[[], object]) -> Iterator[tuple[str, torch.Tensor]]:
        for number, item in enumerate(given.items()):
            if number == 3:
                call()
            yield item

    for call in (
        lambda: llama.collective_rpc("sleep", args=(1,)),
        lambda: llama.collective_rpc("reload_weights"),
        lambda: rest.discard(["kv_cache"]),
        rest.ready,
    ):
        with pytest.raises(RuntimeError, match=r"engine keeps its weights.*The weights are being loaded: "):
            llama.collective_rpc("reload_weights", kwargs={"weights_iterator": during(call)})
        assert rest.awake and tokens(llama) == want

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llama.collective_rpc("reload_weights", kwargs={"weights_iterator": during(interrupted)})
    assert rest.awake and tokens(llama) == want


def test_where_two_models_do_not_fit(llama: object, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """The old weights wait in host memory, and come back when the new ones fail."""
    want = tokens(llama)
    monkeypatch.setattr(npu, "mem_get_info", lambda *_: (1 << 10, 1 << 30))
    llama.collective_rpc("reload_weights")
    assert tokens(llama) == want
    with pytest.raises(ValueError, match="weights handed over do not fit"):
        llama.collective_rpc("reload_weights", kwargs={"weights_iterator": []})
    assert tokens(llama) == want


def test_no_room_to_wake(llama: object, monkeypatch: pytest.MonkeyPatch) -> None:
    want = tokens(llama)
    llama.sleep(1)
    asleep, restore, count = npu.memory_allocated(), storage.restore, iter(range(5))

    def full(tensor: torch.Tensor, clear: bool = False) -> None:
        if next(count, None) is None:
            raise torch.OutOfMemoryError("no")
        restore(tensor, clear)

    monkeypatch.setattr(storage, "restore", full)
    with pytest.raises(ValueError, match=r"cannot wake up: it needs .* stays asleep"):
        llama.wake_up(["weights"])
    assert npu.memory_allocated() == asleep and llama.llm_engine.is_sleeping()
    monkeypatch.undo()
    llama.wake_up()
    assert tokens(llama) == want
