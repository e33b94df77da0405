"""Mixtures of experts in an engine against transformers, and captured steps against eager ones."""

from __future__ import annotations

import inprocess
import pytest
import tiny_experts
import torch
from vllm import SamplingParams

# chunks of 32 tokens: prompts of one chunk, of several, of one token
PROMPTS = ["The square of 7 is", "a prompt that is longer than one chunk of thirty-two tokens, and then some", "x"]
PARAMS = SamplingParams(temperature=0, max_tokens=21, ignore_eos=True, logprobs=4, prompt_logprobs=1)
SETTINGS = inprocess.CHUNKED | {"max_num_seqs": 8, "num_gpu_blocks_override": 120, "enable_prefix_caching": False}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: tiny_experts.make(tmp_path_factory.mktemp(kind) / "model", kind) for kind in tiny_experts.KINDS}


def _told(output):
    """(position, token, log-probability) of everything the engine said."""
    prompt, made = list(output.prompt_token_ids), output.outputs[0]
    said = list(zip(range(len(prompt)), output.prompt_logprobs, strict=True))[1:]
    said += list(zip(range(len(prompt), len(prompt) + len(made.token_ids)), made.logprobs, strict=True))
    return [(at, token, entry.logprob) for at, known in said for token, entry in known.items()]


def _differences(outputs, folder):
    """The engine's log-probabilities against transformers' in float32 on the same tokens."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = []
    for output in outputs:
        ids = list(output.prompt_token_ids) + list(output.outputs[0].token_ids)
        with torch.no_grad():
            scores = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
        found += [abs(value - float(scores[at - 1, token])) for at, token, value in _told(output)]
    return torch.tensor(found)


@pytest.mark.parametrize("kind", tiny_experts.KINDS)
def test_float32_is_transformers(folders, kind):
    """Sums of at most 160 products in another order: 2e-4 on log-probabilities of a two-layer model is ample."""
    llm = inprocess.start(folders[kind], dtype="float32", **SETTINGS)
    assert float(_differences(llm.generate(PROMPTS, PARAMS, use_tqdm=False), folders[kind]).max()) < 2e-4


@pytest.mark.parametrize("kind", tiny_experts.KINDS)
def test_bfloat16(folders, kind):
    """Near float32 but where rounding turns a choice of experts; replayed steps, padded ones too, are the eager ones;
    a second pass after loading changes nothing."""
    llm = inprocess.start(folders[kind], **SETTINGS)
    runner = inprocess.runner(llm)
    replayed = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert runner.graphs.graphs and not runner.graphs.refused
    assert float(_differences(replayed, folders[kind]).median()) < 0.03
    runner.graphs.refused = True
    eager = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert [_told(output) for output in eager] == [_told(output) for output in replayed]
    layers = [module for module in runner.model.modules() if type(module).__name__ == "RoutedExperts"]
    assert len(layers) == 2
    for layer in layers:
        layer.quant_method.process_weights_after_loading(layer)
        assert layer.w13_weight.shape == (tiny_experts.EXPERTS, 128, 2 * tiny_experts.WIDTH)
    (alone,) = llm.generate(PROMPTS[:1], PARAMS, use_tqdm=False)
    assert _told(alone) == _told(replayed[0])


def test_what_is_refused(folders):
    """One sentence that names the layer, for everything about experts that is not served."""
    from types import SimpleNamespace

    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    from aloft.errors import UnsupportedFeature
    from aloft.layers.experts import check

    plain = {
        "layer_name": "model.layers.0.mlp.experts",
        "activation": MoEActivation.SILU,
        "scoring_func": "softmax",
        "apply_router_weight_on_input": False,
        "local_num_experts": 8,
        "global_num_experts": 8,
        "moe_config": SimpleNamespace(has_bias=False, has_hash_routing=False),
    } | dict.fromkeys(("swiglu_limit", "swiglu_alpha", "swiglu_beta"))
    check(SimpleNamespace(**plain))
    wrong = {
        "activation": MoEActivation.GELU,
        "swiglu_limit": 7.0,
        "scoring_func": "sqrtsoftplus",
        "apply_router_weight_on_input": True,
        "local_num_experts": 4,
        "moe_config": SimpleNamespace(has_bias=True, has_hash_routing=False),
    }
    other = {"moe_config": SimpleNamespace(has_bias=False, has_hash_routing=True)}
    for name, value in (*wrong.items(), *other.items()):
        with pytest.raises(UnsupportedFeature, match=r"^model\.layers\.0\.mlp\.experts: aloft [^.]*\.$"):
            check(SimpleNamespace(**(plain | {name: value})))
