"""Intervals of a profile's figures, bootstrapped by prompt."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specaudit.core.errors import InputError
from specaudit.stats import percentile_interval, ratio_bootstrap

RESAMPLES = 2000
CONFIDENCE = 0.95
MINIMUM_PROMPTS = 5  # a group with fewer has no interval

Floats = NDArray[np.float64]


def interval(numerators: Floats, denominators: Floats, generator: np.random.Generator) -> list[float | None]:
    """Of the ratio of sums over prompts; ``[None, None]`` where too few prompts have any of what is counted.

    Parameters
    ----------
    numerators, denominators : float[prompts]
        Sums within each prompt.
    """
    try:
        samples = ratio_bootstrap(numerators, denominators, RESAMPLES, generator)
    except InputError:
        return [None, None]
    low, high = percentile_interval(samples, CONFIDENCE)
    return [float(low), float(high)]
