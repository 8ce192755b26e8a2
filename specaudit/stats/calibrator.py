"""The e-value that a p-value is worth, whatever the alternative, so that both kinds of evidence can be compared."""

from __future__ import annotations

import math

from specaudit.stats import checks

LEAST = 1e-300  # p-values underflow


def calibrated_log_e(p_value: float) -> float:
    """Return ``log((1 - p + p log p) / (p (log p)^2))``, the mixture of all ``kappa p^(kappa - 1)``, kappa in (0, 1).

    Parameters
    ----------
    p_value : float
        In [0, 1].

    Returns
    -------
    float
        The logarithm of an e-value: its mean under a uniform p-value is one.

    Raises
    ------
    InputError
        If the p-value is outside [0, 1].

    References
    ----------
    Vovk and Wang, "E-values: calibration, combination and applications", arXiv:1912.06116, equation (2).
    """
    p = float(checks.vector("p_value", [p_value], 0.0, 1.0)[0])
    if p > 1.0 - 1e-4:
        return math.log(0.5 + (1.0 - p) / 6.0)  # the closed form loses all digits near its limit of 1/2
    p = max(p, LEAST)
    log_p = math.log(p)
    return math.log1p(p * (log_p - 1.0)) - log_p - 2.0 * math.log(-log_p)
