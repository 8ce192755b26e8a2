"""One false-alarm budget for a whole audit, spent in one place."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from specaudit.core.errors import InputError
from specaudit.stats import checks
from specaudit.stats.checks import Floats


def split(false_alarm_rate: float, names: Sequence[str], weights: Sequence[float] | None = None) -> dict[str, float]:
    """Share one false-alarm rate among tests, so that any of them alarms falsely with at most that chance.

    Only false alarms add up over tests. A missed rate belongs to each test by itself and is not shared: a test's
    power is computed at its share of the false-alarm rate and at the whole missed rate.

    Parameters
    ----------
    false_alarm_rate : float
        Of the whole audit, in (0, 0.5].
    names : sequence of str
        The tests, fixed before the data are seen.
    weights : sequence of float, optional
        Their relative shares, positive; equal by default.

    Returns
    -------
    dict of str to float
        Each test's own false-alarm rate, in the order of ``names``; they sum to ``false_alarm_rate``.

    Raises
    ------
    InputError
        If the rate is out of range, names are missing or repeated, or a weight is not positive.

    References
    ----------
    Bonferroni's inequality; weights as in Genovese, Roeder and Wasserman (2006), Biometrika 93.
    """
    total = checks.rate("false_alarm_rate", false_alarm_rate)
    if not names or isinstance(names, str) or len(set(names)) < len(names):
        raise InputError("names", names, "must be one or more different names", "pass a list of distinct test names")
    shares = checks.vector("weights", [1.0] * len(names) if weights is None else weights)
    if len(shares) != len(names) or np.any(shares <= 0.0):
        raise InputError("weights", weights, "must be one positive number a name", "leave them out for equal shares")
    whole = math.fsum(shares)
    return {name: total * float(share) / whole for name, share in zip(names, shares, strict=True)}


def holm(p_values: ArrayLike) -> Floats:
    """Return Holm's adjusted p-values: reject those at most the false-alarm rate of the whole family.

    Never larger than Bonferroni's, and valid under any dependence.

    Parameters
    ----------
    p_values : array_like, [tests]
        Each in [0, 1].

    Returns
    -------
    ndarray, [tests]
        ``max over j <= i of min(1, (tests - j + 1) p_(j))`` for the i-th smallest, in the order given.

    Raises
    ------
    InputError
        If a p-value is not in [0, 1].

    References
    ----------
    Holm (1979), "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6;
    adjusted p-values as in Wright (1992), Biometrics 48.
    """
    values = checks.vector("p_values", p_values, 0.0, 1.0)
    order = np.argsort(values, kind="stable")
    scaled = np.minimum(1.0, values[order] * np.arange(values.size, 0, -1))
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(scaled)
    return adjusted
