"""Perplexity, accuracy and divergence with confidence intervals, paired against a reference on the same positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy

from aloft.evaluation.scores import Scores

_RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"


@dataclass(frozen=True)
class Summary:
    tokens: int
    perplexity: float
    accuracy: float


@dataclass(frozen=True)
class Comparison:
    """accuracy_kept, perplexity_rise: ratio and relative rise, 1.0 being all. kl: nats a token; see ``divergence``."""

    accuracy_kept: Interval
    perplexity_rise: Interval
    kl: Interval

    def row(self) -> dict[str, Any]:
        """Each value by its name, and its interval under the name with ``_95``; None for what is no number."""
        made: dict[str, Any] = {}
        for name, held in vars(self).items():
            value, *ends = [part if math.isfinite(part) else None for part in (held.value, held.low, held.high)]
            made |= {name: value, f"{name}_95": ends}
        return made


def summary(scores: Scores) -> Summary:
    return Summary(len(scores.loss), float(numpy.exp(scores.loss.mean())), float(scores.hit.mean()))


def compare(scores: Scores, reference: Scores, seed: int = 0) -> Comparison:
    """Paired comparison; the intervals are a bootstrap over windows, since tokens of a window are not independent.

    Raises:
        ValueError: the two were scored on different texts or windows.
    """
    if not numpy.array_equal(scores.window, reference.window):
        raise ValueError("the reference was scored on other windows: use the same --text, --window and --tokens")
    windows = int(scores.window[-1]) + 1
    sums = _by_window(scores.hit, scores), _by_window(reference.hit, scores)
    losses = _by_window(scores.loss - reference.loss, scores)
    counts = _by_window(numpy.ones(len(scores.loss)), scores)
    draws = numpy.random.default_rng(seed).integers(0, windows, (_RESAMPLES, windows))
    with numpy.errstate(divide="ignore", invalid="ignore"):  # windows without a hit of the reference
        kept = _interval(sums[0].sum() / sums[1].sum(), sums[0][draws].sum(1) / sums[1][draws].sum(1))
    rise = _interval(numpy.expm1(losses.sum() / counts.sum()), numpy.expm1(losses[draws].sum(1) / counts[draws].sum(1)))
    drift = _by_window(divergence(scores, reference), scores)
    return Comparison(kept, rise, _interval(drift.sum() / counts.sum(), drift[draws].sum(1) / counts[draws].sum(1)))


def divergence(scores: Scores, reference: Scores) -> numpy.ndarray:
    """KL(reference, model) at each position, ``[n]``, over the tokens both list and all others as one.

    Merging tokens never raises a divergence: this is a lower bound, and close where the lists hold most of the mass.
    """
    made = numpy.empty(len(reference.ids))
    for start in range(0, len(made), 4096):
        part = slice(start, start + 4096)
        same = reference.ids[part, :, None] == scores.ids[part, None, :]
        both = same.any(2)
        p = numpy.where(both, numpy.exp(reference.logs[part].astype(numpy.float64)), 0.0)
        log_q = (same * numpy.where(same, scores.logs[part, None, :], 0.0)).sum(2, dtype=numpy.float64)
        listed = numpy.where(both, p * (reference.logs[part] - log_q), 0.0).sum(1)
        rest_p = numpy.clip(1 - p.sum(1), 1e-12, 1)
        rest_q = numpy.clip(1 - numpy.where(both, numpy.exp(log_q), 0.0).sum(1), 1e-12, 1)
        made[part] = listed + rest_p * numpy.log(rest_p / rest_q)
    return made


def _by_window(values: numpy.ndarray, scores: Scores) -> numpy.ndarray:
    return numpy.bincount(scores.window, weights=values.astype(numpy.float64))


def _interval(value: float, draws: numpy.ndarray) -> Interval:
    finite = draws[numpy.isfinite(draws)]
    low, high = numpy.quantile(finite, (0.025, 0.975)) if len(finite) else (math.nan, math.nan)
    return Interval(float(value), float(low), float(high))
