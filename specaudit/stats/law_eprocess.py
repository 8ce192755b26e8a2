"""E-processes against named laws of a defect, which may hold in full strength."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from specaudit.core.errors import InputError
from specaudit.stats import checks
from specaudit.stats.checks import Floats

STRONGEST = 0.999  # keeps every increment above zero, whatever rounding adds to the mass on the support


def log_law_increments(
    ratio: ArrayLike, alternative_on_support: ArrayLike, strengths: Sequence[float], noise: float = 0.0
) -> Floats:
    """Return the logarithms of the increments against a law ``r`` of several strengths.

    An increment is ``1 + w (r(x)/p(x) - s)``, ``s`` being the mass of ``r`` on the support of ``p``: the likelihood
    ratio of ``(1 - w s) p + w r`` to ``p`` on that support. Its expectation under ``p`` is one and it is at least
    ``1 - w``, so that a strength below one survives tokens that ``r`` does not emit. Laws are defects with a direction:
    no strength is negative, and no largest ratio is needed.

    Parameters
    ----------
    ratio : array_like, [tokens]
        ``r_t(x_t) / p_t(x_t)`` of the token drawn, finite; ``alternative_on_support`` where ``p_t(x_t)`` is zero.
    alternative_on_support : array_like, [tokens]
        ``s``, in [0, 1].
    strengths : sequence of float
        Each ``w`` above 0 and at most `STRONGEST`.
    noise : float
        As in `log_contamination_increments`.

    Returns
    -------
    ndarray, [strengths, tokens]

    Raises
    ------
    InputError
        If lengths differ or a value is out of range.

    References
    ----------
    Grunwald, de Heide and Koolen, "Safe testing", arXiv:1906.07801 (likelihood ratios as e-values).
    """
    ratios = checks.vector("ratio", ratio, low=0.0)
    support = checks.vector("alternative_on_support", alternative_on_support, 0.0, 1.0 + checks.ROUNDING)
    checks.same_length(ratio=ratios, alternative_on_support=support)
    if not len(strengths) or not all(0.0 < strength <= STRONGEST for strength in strengths):
        problem = f"must be one or more numbers above 0 and at most {STRONGEST:g}"
        raise InputError("strengths", strengths, problem, "use, for example, 0.5")
    stakes = np.asarray(strengths, dtype=np.float64)[:, None]
    return np.log1p(stakes * (ratios - support)) - np.log1p(stakes * checks.least("noise", noise, 0.0))
