"""Attention on the paged KV cache: the backend vLLM selects, its metadata and its implementation."""

from __future__ import annotations

from typing import Any

from aloft.errors import UnsupportedFeature

NAME = "ALOFT"
PATH = "aloft.attention.backend.AloftAttentionBackend"


def register() -> None:
    """Registers the backend under its name (vLLM looks it up by name again); safe to call twice."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if NAME not in AttentionBackendEnum.__members__:
        register_backend(NAME, PATH)


def select(selected_backend: Any, config: Any) -> str:
    """Class path of the backend for a layer.

    Raises:
        UnsupportedFeature: the user asked for another backend, or the layer needs something the backend lacks.
    """
    from aloft.attention.backend import AloftAttentionBackend

    register()
    if selected_backend is not None and selected_backend.name != NAME:
        raise UnsupportedFeature(f"--attention-backend must be {NAME} on npu, not {selected_backend.name}.")
    reasons = AloftAttentionBackend.validate_configuration(
        device_capability=None,  # type: ignore[arg-type]  # an NPU has none; the backend does not ask for it
        **config._asdict(),
    )
    if reasons:
        raise UnsupportedFeature(f"The attention of this model is not supported on npu: {'; '.join(reasons)}.")
    return PATH
