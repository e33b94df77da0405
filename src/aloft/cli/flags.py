"""Flags of `vllm serve` that are checked before it starts: a mistake is told at once, not after eight seconds."""

from __future__ import annotations

import itertools
import json
import logging
from typing import Any

from aloft import config, limits
from aloft.cli.errors import UserError

_SHORT = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-pcp": "prefill_context_parallel_size",
    "-dcp": "decode_context_parallel_size",
}


def check(arguments: list[str]) -> None:
    """Refuse what `vllm serve` would refuse with these arguments for sure.

    Raises:
        UserError: a parallel size above 1, or an --additional-config that aloft does not understand.
    """
    for name, value in _pairs(arguments):
        if name in limits.PARALLEL and value.isdecimal() and int(value) > 1:
            raise UserError(limits.parallel_refusal(name, int(value)))
        if name == "additional_config":
            additional_config(value)


def _pairs(arguments: list[str]) -> list[tuple[str, str]]:
    """Every option that is followed by a value, `--some-name VALUE` or `--some-name=VALUE`, as (some_name, VALUE)."""
    pairs = []
    for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        option, equals, value = argument.partition("=")
        if option.startswith("-"):
            name = _SHORT.get(option, option.lstrip("-").replace("-", "_"))
            pairs.append((name, value if equals else following))
    return pairs


def additional_config(text: str) -> dict[str, Any]:
    """What an --additional-config says.

    Raises:
        UserError: it is no JSON object, or aloft does not understand it.
    """
    example = """--additional-config '{"num_threads": 2}'"""
    try:
        said = json.loads(text)
    except ValueError as error:
        raise UserError(f"--additional-config must be JSON, such as {example}, not {text!r}: {error}.") from error
    if not isinstance(said, dict):
        raise UserError(f"--additional-config must be a JSON object, such as {example}, not {text!r}.")
    logger = logging.getLogger(config.logger.name)
    quiet, logger.disabled = logger.disabled, True  # the server says it, once
    try:
        config.parse(said)
    except ValueError as error:
        text = str(error)
        raise UserError(text if text.endswith("?") else f"{text}.") from error
    finally:
        logger.disabled = quiet
    return said
