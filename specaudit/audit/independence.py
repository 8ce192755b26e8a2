"""Whether outputs are independent of each other, and tokens of those before: random numbers that are used twice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specaudit.audit.positions import ROUND
from specaudit.stats import MINIMUM_PER_GROUP, TestResult, group_test
from specaudit.stats.checks import Floats

EXPLANATIONS = {
    "cross_row": "outputs share their random numbers: at the same place they lean to the same side of the vocabulary",
    "within_row": "random numbers come back along an output: its rounds lean to the same side of the vocabulary",
    "repeated_output": "outputs of one prompt are copies of each other, more of them than chance allows",
}
ACROSS = ("cross_row", "repeated_output")  # what a seed that the user gave to all outputs does as well
SHARED_SEEDS = (
    "outputs share their random numbers, and some record one seed, or none: a violation if each was sampled under a "
    "seed of its own, and the user's own doing if not; sample each under its own, and record it in the transcripts"
)


def shared_numbers_tests(u: Floats, rows: NDArray[np.int64], places: NDArray[np.int64]) -> list[TestResult]:
    """The tests of PIT values by place across outputs, and by depth along each, for which there are enough tokens.

    A sampler that inverts the distribution function takes the vocabulary in its own order. In that order ``u`` is near
    the uniform that drew the token, so uniforms that are used twice give values on the same side of 1/2.

    Parameters
    ----------
    u : float, [tokens]
        PIT values with the vocabulary ordered by token id.
    rows : int, [tokens]
        Each token's output.
    places : int, [tokens]
        As of `places`.
    """
    groups = {"cross_row": places, "within_row": rows * ROUND + places % ROUND}
    return [
        group_test(u, labels, name)
        for name, labels in groups.items()
        if np.unique(labels, return_counts=True)[1].max(initial=0) >= MINIMUM_PER_GROUP
    ]
