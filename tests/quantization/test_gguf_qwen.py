"""Qwen2 and Qwen3 as GGUF files, everything from the file: biases, norms of queries and keys, rope, tied tables."""

from __future__ import annotations

import json
from pathlib import Path

import gguf_qwen
import pytest
import torch


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


PROMPT = list(range(30, 78))
CASES = [  # kind of model, of its layers, tied tables, what is served beside the reference's rounding
    ("qwen2", "Q8_0", True),
    ("qwen2", "Q4_1", False),
    ("qwen3", "Q4_0", False),
    ("qwen3", "Q8_0", True),
    ("qwen3", "F16", True),
]


def scores(llm):
    """Log-probabilities of each token of PROMPT but the first."""
    from vllm import SamplingParams

    settings = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, prompt_logprobs=0)
    (answer,) = llm.generate([{"prompt_token_ids": PROMPT}], settings, use_tqdm=False)
    assert len(answer.outputs[0].token_ids) == 4
    return torch.tensor(
        [answer.prompt_logprobs[i][token].logprob for i, token in enumerate(PROMPT) if i], dtype=torch.float64
    )


def reference(model):
    with torch.inference_mode():
        found = model(torch.tensor([PROMPT])).logits[0, :-1].log_softmax(-1)
    return found.gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]


@pytest.mark.parametrize(("architecture", "kind", "tied"), CASES)
def test_scores(architecture, kind, tied, tmp_path):
    """The engine on the file alone against transformers in float64 on the file's dequantized weights."""
    import inprocess

    model = gguf_qwen.make(architecture, tied)
    file = tmp_path / "alone" / f"{architecture}.gguf"
    gguf_qwen.write(model, file, kind)
    llm = inprocess.start(file, max_num_seqs=2, num_gpu_blocks_override=80, dtype="float16")
    said = llm.llm_engine.model_config
    assert said.quantization == "gguf" and said.served_model_name == str(file)
    config = said.hf_config
    assert (config.tie_word_embeddings, config.vocab_size, config.head_dim) == (tied, 320, 64)
    want = reference(model)
    error = (scores(llm) - want).abs().max()
    assert error < 0.03, error
    # turned as llama's are, the rows of queries and keys give something else
    for layer in model.model.layers:
        for product in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            product.weight.data = product.weight.data.view(-1, 32, 2, 128).transpose(1, 2).reshape(-1, 128)
    assert (reference(model) - want).abs().max() > 0.3


def test_bias_and_norms_matter(tmp_path):
    """What test_scores allows does not hide a lost bias or norm."""
    for architecture, part in (("qwen2", "bias"), ("qwen3", "q_norm.weight")):
        model = gguf_qwen.make(architecture, True)
        want = reference(model)
        for name, values in model.named_parameters():
            if name.endswith(part):
                values.data.fill_(0.0 if part == "bias" else 1.0)
        assert (reference(model) - want).abs().max() > 0.3


def test_a_type_that_is_not_served_is_refused(tmp_path):
    from aloft.quantization.gguf.folder import model_folder

    file = tmp_path / "k.gguf"
    gguf_qwen.write(gguf_qwen.make("qwen3", True), file, "Q4_0", others={"blk.1.ffn_down.weight": "Q4_K"})
    with pytest.raises(ValueError, match=r"^k\.gguf: tensor blk\.1\.ffn_down\.weight has the type Q4_K; served are Q8"):
        model_folder(str(file))


def test_wrong_quantization(model, tmp_path):
    """--quantization: gguf may be said; another name says what was found, and so does gguf for another checkpoint."""
    from vllm import LLM

    file = tmp_path / "q.gguf"
    gguf_qwen.write(gguf_qwen.make("qwen2", True), file, "Q8_0")
    for name in ("awq", "ascend", "compressed-tensors"):
        with pytest.raises(ValueError, match=rf"--quantization {name} .*found: .*GGUF file q\.gguf"):
            LLM(str(file), quantization=name)
    with pytest.raises(ValueError, match=r"--quantization gguf needs .*found: a float checkpoint"):
        LLM(str(model), quantization="gguf")


def test_tokenizer_of_another_folder(model, tmp_path):
    """A file without a tokenizer is served with one that is named."""
    import inprocess

    file = tmp_path / "bare.gguf"
    gguf_qwen.write(gguf_qwen.make("qwen2", True), file, "Q8_0", tokenizer=False)
    llm = inprocess.start(file, tokenizer=str(model), quantization="gguf", max_num_seqs=2, num_gpu_blocks_override=80)
    (answer,) = llm.generate(["The square of"], use_tqdm=False)
    assert len(answer.outputs[0].token_ids) == 16
    assert json.loads((Path(llm.llm_engine.model_config.model) / "config.json").read_text())["model_type"] == "qwen2"
