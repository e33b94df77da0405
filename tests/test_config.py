"""AloftConfig: known keys, keys without effect, unknown keys."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from aloft import config
from aloft.config_keys import WITHOUT_EFFECT


def test_defaults():
    assert config.parse(None) == config.parse({}) == config.AloftConfig()


def test_public_surface_is_frozen():
    """A new key is a decision: extend this list together with its documentation."""
    assert {
        "weight_nz_mode",
        "num_threads",
        "kv_cache_tokens",
        "graph_attention",
        "pipeline_depth",
        "fusion_level",
        "kv_fp8_window",
        "lm_head",
        "compact_weights",
        "run_ahead",
    } == config.KNOWN


def test_known_keys_are_parsed_into_a_frozen_object():
    parsed = config.parse({"weight_nz_mode": 0, "num_threads": 3, "kv_cache_tokens": 4096})
    assert (parsed.weight_nz_mode, parsed.num_threads, parsed.kv_cache_tokens) == (0, 3, 4096)
    with pytest.raises(dataclasses.FrozenInstanceError):
        parsed.num_threads = 1


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"weight_nz_modes": 1}, "weight_nz_mode"),
        ({"num_thread": 1}, "num_threads"),
        ({"fusion_levl": 1}, "fusion_level"),
        ({"zzz": 1}, "kv_cache_tokens"),
    ],
)
def test_unknown_key_names_the_nearest_valid_one(given, named):
    with pytest.raises(ValueError, match=named):
        config.parse(given)


@pytest.mark.parametrize(
    "given",
    [
        {"weight_nz_mode": 3},
        {"lm_head": "int4"},
        {"weight_nz_mode": "2"},
        {"weight_nz_mode": True},
        {"num_threads": -1},
        {"kv_fp8_window": -1},
        {"kv_cache_tokens": 1.5},
        {"fusion_level": "some"},
        {"pipeline_depth": 3},
        {"pipeline_depth": "2"},
        {"fusion_level": 1},
    ],
)
def test_wrong_values_are_refused_naming_the_key(given):
    with pytest.raises(ValueError, match=next(iter(given))):
        config.parse(given)


def test_peer_keys_are_accepted_with_the_reason(caplog):
    config._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, logger="vllm.aloft.config"):
        logging.getLogger("vllm").propagate = True
        parsed = config.parse({"enable_kv_nz": True, "eplb_config": {"dynamic_eplb": True}, "refresh": True})
    assert parsed == config.AloftConfig()
    for key in ("enable_kv_nz", "eplb_config", "refresh"):
        assert key in caplog.text and WITHOUT_EFFECT[key] in caplog.text


def test_no_key_is_in_two_classes():
    assert not config.KNOWN & WITHOUT_EFFECT.keys()
    assert all(WITHOUT_EFFECT.values())


def test_of_an_engine() -> None:
    class Engine:
        additional_config: object = {"num_threads": 3}

    assert config.of(None) == config.AloftConfig()
    assert config.of(Engine()).num_threads == 3
    Engine.additional_config = None
    assert config.of(Engine()) == config.AloftConfig()
