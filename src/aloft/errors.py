"""Errors a user can cause, each with a message that names the mistake and the way out."""

from __future__ import annotations


class UnsupportedFeature(ValueError):
    """A valid vLLM setting that aloft cannot serve (yet). The message is one sentence and names the flag."""


class NotEnoughMemory(ValueError):
    """Device memory does not suffice; the message says how much was needed, how much there was, which flag helps."""


class UnsupportedVersion(RuntimeError):
    """An installed package has a version aloft was not written for."""


class PlatformUnavailable(RuntimeError):
    """The platform cannot be used on this machine; raised instead of letting vLLM pick another one silently."""
