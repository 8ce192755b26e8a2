"""Power against the number of outputs, and the number that a wanted power takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.stats
from numpy.typing import NDArray

WANTED_POWER = 0.9
Flags = Callable[[NDArray[np.int64], Sequence[int]], list[bool]]


def order(generator: np.random.Generator, prompts: int, each: int) -> NDArray[np.int64]:
    """A random order of all outputs, without replacement, in which every run of ``prompts`` has one of each prompt.

    The outputs of a prompt stand one after another in the pool.
    """
    own = np.stack([generator.permutation(each) for _ in range(prompts)], axis=1)
    places = generator.permuted(np.broadcast_to(np.arange(prompts), (each, prompts)), axis=1)
    return (places * each + np.take_along_axis(own, places, axis=1)).ravel()


def curve(flags: NDArray[np.bool_], grid: Sequence[int], tokens: Sequence[float]) -> list[dict[str, Any]]:
    """Power at each number of outputs, with an exact interval of confidence 0.95 for the resampling alone.

    ``flags`` is ``[resamples, grid]``.
    """
    resamples, found = len(flags), flags.sum(0)
    intervals = [scipy.stats.binomtest(int(count), resamples).proportion_ci() for count in found]
    return [
        {
            "outputs": outputs, "tokens": round(mean, 1), "power": int(count) / resamples,
            "interval": [round(float(interval.low), 4), round(float(interval.high), 4)],
        }
        for outputs, mean, count, interval in zip(grid, tokens, found, intervals, strict=True)
    ]  # fmt: skip


def needed(points: Sequence[dict[str, Any]], axis: str, resamples: int) -> float | None:
    """Where the power reaches ``WANTED_POWER``, on a normal quantile scale against the logarithm of ``axis``.

    None where it is not reached at the last point. Where it is reached at the first, that point.
    """
    reached = [point["power"] >= WANTED_POWER for point in points]
    if not reached[-1]:
        return None
    last_below = max((place for place, ok in enumerate(reached) if not ok), default=None)
    if last_below is None:
        return float(points[0][axis])
    between = points[last_below : last_below + 2]
    edge = 0.5 / resamples  # no power is certainly zero or one
    scores = [float(scipy.stats.norm.ppf(min(max(point["power"], edge), 1.0 - edge))) for point in between]
    share = (float(scipy.stats.norm.ppf(WANTED_POWER)) - scores[0]) / (scores[1] - scores[0])
    low, high = (math.log(point[axis]) for point in between)
    return math.exp(low + share * (high - low))
