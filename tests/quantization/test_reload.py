"""Sleep, wake and reload, for every scheme: weights are packed once each time, every answer stays bit for bit."""

from __future__ import annotations

import collections

import checkpoints
import pytest
import tiny
import tiny_experts

from aloft.layers.experts import AloftExpertsMethod
from aloft.layers.linear import NzLinearMethod
from aloft.quantization.experts import AloftQuantizedExpertsMethod
from aloft.quantization.linear import AloftQuantizedLinearMethod

QUANTIZED = {  # scheme, format, changes
    "w8a16": ("w8a16", "modelslim", {}),
    "w8a8-dynamic": ("w8a8-dynamic", "compressed-tensors", {}),
    "w8a8-static": ("w8a8-static", "modelslim", {}),
    "w4a16": ("w4a16", "compressed-tensors", {"group": 64}),
    "w4a8": ("w4a8", "modelslim", {"group": 64}),
    "kv-int8": ("float", "modelslim", {"kv": "int8"}),
}
GROUPED = {"awq": ("awq", 32, False, False), "gptq": ("gptq", 64, False, True)}
#: more settings of an engine
SETTINGS = {
    "bf16-fp8-cache": {"kv_cache_dtype": "fp8", "num_gpu_blocks_override": 300},
    "bf16-int8-head": {"additional_config": {"lm_head": "int8"}},
    "bf16-nd": {"additional_config": {"weight_nz_mode": 0}},
    "gguf": {"dtype": "float16"},
}
#: of which another checkpoint is loaded as well
EXCHANGED = ("bf16", "bf16-fp8-cache", "w8a8-static", "w4a8", "kv-int8", "gptq", "gguf", "moe-w8a8")
CASES = ["bf16", *SETTINGS, *QUANTIZED, *GROUPED, "w4a4", "moe", "moe-w8a8"]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def make(case, model, text, folder):
    """The checkpoint of a case from a float model; of a mixture of experts where the case wants one."""
    from aloft.quantizer import Settings, quantize

    if case in QUANTIZED:
        scheme, form, changes = QUANTIZED[case]
        quantize(model, folder, Settings(scheme, form, "minmax", samples=4, length=64, **changes), text)
    elif case == "w4a4":
        quantize(model, folder, Settings("w4a4", samples=4, length=64, tune=1, tune_samples=4), text)
    elif case in GROUPED:
        checkpoints.grouped(model, folder, *GROUPED[case])
    elif case == "gguf":
        from test_gguf import beside, write

        folder = beside(model, folder)
        write(model, folder / "tiny.gguf", "Q4_0", {"token_embd.weight": "Q8_0"})
    elif case == "moe-w8a8":
        quantize(model, folder, Settings("w8a8-dynamic", "modelslim"))
    else:
        return model
    return folder


def answers(llm):
    """Tokens and log-probabilities of a few requests, greedy and not, computed anew."""
    from vllm import SamplingParams

    assert llm.reset_prefix_cache()
    prompts = ["The square of", "Line 12: 144", "a"]
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    scored = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logprobs=3)
    drawn = SamplingParams(temperature=0.9, top_k=40, seed=5, max_tokens=5, ignore_eos=True)
    return [
        (part.token_ids, [{k: v.logprob for k, v in row.items()} for row in part.logprobs or ()])
        for settings in (greedy, [scored, drawn, scored])
        for made in llm.generate(prompts, settings, use_tqdm=False)
        for part in made.outputs
    ]


@pytest.mark.parametrize("case", CASES)
def test_every_answer_stays(case, model, text, tmp_path, monkeypatch):
    import inprocess

    sources = [model]
    if case.startswith("moe"):
        sources = [tiny_experts.make(tmp_path / "experts", "qwen3_moe")]
    if case in EXCHANGED:
        second = tmp_path / "second"
        sources.append(
            tiny_experts.make(second, "qwen3_moe", seed=1) if case.startswith("moe") else tiny.make(second, seed=1)
        )
    folders = [make(case, source, text, tmp_path / f"made-{n}") for n, source in enumerate(sources)]
    settings = {"max_num_seqs": 4, "num_gpu_blocks_override": 80, "enable_sleep_mode": True} | SETTINGS.get(case, {})
    llms = [inprocess.start(folder, **settings) for folder in folders]
    llm, want = llms[0], [answers(each) for each in llms]
    assert len(want) == 1 or want[0] != want[1]
    passes = counted(monkeypatch)

    for _ in range(2):
        llm.collective_rpc("reload_weights")
        assert passes and set(passes.values()) == {1}
        passes.clear()
        assert answers(llm) == want[0]
    for _ in range(3 if case == "bf16" else 1):
        llm.sleep(1)
        llm.wake_up()
        assert answers(llm) == want[0]
    llm.sleep(2)
    llm.wake_up(["weights"])
    llm.collective_rpc("reload_weights")
    llm.wake_up(["kv_cache"])
    assert not passes or set(passes.values()) == {1}
    assert answers(llm) == want[0]
    if len(folders) > 1:
        llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folders[1])})
        assert answers(llm) == want[1]
        llm.sleep(2)
        llm.wake_up()
        llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folders[0])})
        assert answers(llm) == want[0]
        assert answers(llms[1]) == want[1]
    for each in llms:
        each.sleep(2)


def counted(monkeypatch):
    """How often each layer's weights are packed."""
    passes = collections.Counter()

    def counting(method):
        original = method.process_weights_after_loading

        def process(self, layer):
            passes[layer] += 1
            original(self, layer)

        monkeypatch.setattr(method, "process_weights_after_loading", process)

    for method in (NzLinearMethod, AloftExpertsMethod, AloftQuantizedLinearMethod, AloftQuantizedExpertsMethod):
        counting(method)
    return passes
