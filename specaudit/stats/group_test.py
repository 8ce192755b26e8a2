"""Whether PIT values are uniform within each group: by depth in the round, or by output."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import scipy.optimize
import scipy.stats
from numpy.typing import ArrayLike

from specaudit.core.errors import InputError
from specaudit.stats import checks
from specaudit.stats.gof import TestResult

MINIMUM_PER_GROUP = 8  # the sum of eight uniforms has the normal law's tails to a hundredth of the largest budget's


def group_test(u: ArrayLike, groups: ArrayLike, name: str = "pit_group") -> TestResult:
    """Test that no group's mean leaves 1/2: ``X = sum over groups of 12 (sum of (u - 1/2))^2 / n_g``.

    Shifts of opposite signs, which cancel in a test of all values together, add up here.

    Parameters
    ----------
    u : array_like, [tokens]
        PIT values in [0, 1].
    groups : array_like, [tokens]
        Each value's group, known before the token. Groups of fewer than ``MINIMUM_PER_GROUP`` values are left out.
    name : str
        Of the result.

    Returns
    -------
    TestResult
        ``X`` is chi-square with as many degrees of freedom as groups are left; sums of few uniforms have lighter tails
        than the normal law, so its p-value errs upwards.

    Raises
    ------
    InputError
        If a value is outside [0, 1], lengths differ, or no group is large enough.

    References
    ----------
    Fisher (1925), "Statistical methods for research workers", section 21 (sums of squared normal deviates).
    """
    values, labels = checks.vector("u", u, 0.0, 1.0), np.atleast_1d(np.asarray(groups))
    checks.same_length(u=values, groups=labels)
    _, place = np.unique(labels, return_inverse=True)
    counts = np.bincount(place)
    kept = counts >= MINIMUM_PER_GROUP
    if not kept.any():
        largest = int(counts.max(initial=0))
        problem = f"the largest has {largest} values, and {MINIMUM_PER_GROUP} are needed"
        raise InputError("groups", len(counts), problem, "score more or longer outputs")
    sums = np.bincount(place, weights=values - 0.5)
    statistic = float(np.sum(12.0 * sums[kept] ** 2 / counts[kept]))
    p_value = float(scipy.stats.chi2.sf(statistic, int(kept.sum())))
    return TestResult(name, statistic, p_value, int(counts[kept].sum()))


def detectable_group_shift(tokens: int, groups: int, false_alarm_rate: float, missed_rate: float) -> float:
    """Return the root mean square of the groups' mean shifts from 1/2 that `group_test` finds.

    With the noncentrality ``12 n s^2``; the values' variance is taken to stay 1/12.

    Parameters
    ----------
    tokens, groups : int
        Values in all, and groups among them.
    false_alarm_rate, missed_rate : float
        The level of the test, and the chance with which it may miss the shift returned.

    Returns
    -------
    float
        ``s``, or ``inf`` if it is above 1/2, which no shift can be, or the groups are too small.

    Raises
    ------
    InputError
        If a rate is not in (0, 0.5] or a count is below one.

    References
    ----------
    Patnaik (1949), "The non-central chi-square and F-distributions and their applications", Biometrika 36.
    """
    checks.count("tokens", tokens)
    shift = math.sqrt(_noncentrality(groups, false_alarm_rate, missed_rate) / (12.0 * tokens))
    return shift if shift <= 0.5 and tokens >= MINIMUM_PER_GROUP * groups else math.inf


def required_tokens_group_shift(shift: float, groups: int, false_alarm_rate: float, missed_rate: float) -> int:
    """Return the values with which `group_test` finds a shift; inverse of `detectable_group_shift`, see there.

    ``shift`` is in (0, 1/2].
    """
    checks.effect("shift", shift, 0.5)
    needed = _noncentrality(groups, false_alarm_rate, missed_rate) / (12.0 * shift**2)
    return max(MINIMUM_PER_GROUP * groups, math.ceil(needed))


def _noncentrality(groups: int, false_alarm_rate: float, missed_rate: float) -> float:
    """The noncentrality at which the statistic passes its critical value with probability ``1 - missed_rate``."""
    alarm, miss = checks.rate("false_alarm_rate", false_alarm_rate), checks.rate("missed_rate", missed_rate)
    freedom = checks.count("groups", groups)
    critical = float(scipy.stats.chi2.isf(alarm, freedom))

    def surplus(noncentrality: float) -> float:
        return float(scipy.stats.ncx2.cdf(critical, freedom, noncentrality)) - miss

    return cast(float, scipy.optimize.brentq(surplus, 1e-9, 4.0 * critical + 100.0))
