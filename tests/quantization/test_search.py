"""AWQ's search for scales of input channels, and that every algorithm holds one block of the model at a time."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from aloft.quantizer import Settings, quantize
from aloft.quantizer.block import quantize_block
from aloft.quantizer.decoder import Decoder, submodule
from aloft.quantizer.recipe import recipe
from aloft.quantizer.search import search
from aloft.quantizer.statistics import Stream, advance, observe


@pytest.mark.parametrize("changes", [{}, {"algorithm": "awq"}, {"target_bits": 5.0}])
def test_one_block_is_in_memory_at_a_time(changes, model, text, tmp_path, monkeypatch):
    """Whatever the model's depth: when a block is read, none before it is left."""
    read, alive = Decoder.layer, []

    def layer(self: Decoder, index: int) -> torch.nn.Module:
        gc.collect()
        assert not [number for number, block in alive if block() is not None]
        made = read(self, index)
        alive.append((index, weakref.ref(made.mlp.down_proj.weight)))
        return made

    monkeypatch.setattr(Decoder, "layer", layer)
    quantize(model, tmp_path / "out", Settings("w4a16", group=32, samples=4, length=32, **changes), text)
    assert len(alive) >= 2


def test_searched_scales_lower_the_error(model, text):
    """AWQ's: the block computes what it did, and the error of its rounded layers is less."""
    decoder = Decoder(model)
    tokens = torch.tensor(list(text.read_bytes()[:512])).view(8, 64)
    states = torch.nn.functional.embedding(tokens, decoder.tensor("model.embed_tokens.weight"))
    stream = Stream(states, decoder.rotary(states, torch.arange(64)[None]))
    of, found = recipe("w4a16", 32, algorithm="awq"), []
    for searched in (False, True):
        layer = decoder.layer(0)
        for name in ("input_layernorm", "post_attention_layernorm"):  # a few loud channels, as large models have
            submodule(layer, name).weight.data[::16] *= 12
        layer = layer.float()
        wide = Stream(stream.states.float(), tuple(part.float() for part in stream.position))
        before = advance(layer, wide).states
        if searched:
            chosen = search(layer, observe(layer, wide), of.of, 64)
            assert chosen["qkv"] > 0 and chosen["gate_up"] > 0
            assert torch.allclose(advance(layer, wide).states, before, rtol=1e-3, atol=1e-3)
        made = quantize_block(layer, observe(layer, wide), of.of)
        found.append({name: entry.error for name, entry in made.items()})
    assert all(found[1][name] < 0.9 * found[0][name] for name in ("self_attn.q_proj", "mlp.gate_proj")), found
