"""The contamination that the e-process finds in n tokens, and the tokens that a wanted finding takes."""

from __future__ import annotations

import math

import numpy as np

from specaudit.stats import checks
from specaudit.stats.checks import Floats
from specaudit.stats.excess import ExcessLaw

# Any exponent gives a valid bound, so a grid only costs a little of its sharpness.
_EXPONENTS = np.geomspace(1e-3, 10.0, 60)
_NO_DECAY = 1e-13  # a rate a token that rounding alone can make


def detectable_contamination(
    law: ExcessLaw, tokens: int, false_alarm_rate: float, missed_rate: float, levels: int = 6, noise: float = 0.0
) -> float:
    """Return a contamination that `log_contamination_eprocess` finds in ``tokens`` tokens, the smallest by this bound.

    Under contamination ``e`` tokens come from ``p (1 + e g)``, with the excess ``g`` of `ExcessLaw`. The mixture is at
    least ``E_b / (2 levels)`` for each of its bets ``b``, so it is missed only if ``log E_b`` stays below
    ``T = log(2 levels / false_alarm_rate)``. Chernoff's bound of that chance, for any exponent ``c > 0``, is

        exp(c T) * (A - e B)^n,   A = E_p[(1 + b g)^-c],   B = -E_p[g (1 + b g)^-c],

    and ``e`` is the smallest at which it is ``missed_rate`` for some ``b`` and ``c``. It holds at every ``n`` for any
    fixed contexts whose pooled law is ``law``, and for contexts drawn from such a pool. The familiar
    ``n e^2 I / 2`` of the chi-square divergence ``I`` is not used: a token with ``q`` far above ``p`` makes ``I`` huge
    and adds almost nothing to what can be found. Contamination outside the support of ``p`` is not counted: the first
    such token is a violation by itself.

    Parameters
    ----------
    law : ExcessLaw
        Of the contexts scored, or of contexts like those to come.
    tokens : int
        Number of tokens.
    false_alarm_rate, missed_rate : float
        The level at which the e-process rejects, and the chance with which it may miss the contamination returned.
    levels, noise
        As given to the e-process. Its divisor ``1 + b noise`` raises what must be reached by ``n log(1 + b noise)``.

    Returns
    -------
    float
        ``e`` in (0, 1], or ``inf`` if not even tokens drawn from ``q`` alone would surely be found.

    Raises
    ------
    InputError
        If a rate is not in (0, 0.5] or a count is below one.

    References
    ----------
    Chernoff (1952), "A measure of asymptotic efficiency for tests of a hypothesis based on the sum of observations",
    Annals of Mathematical Statistics 23, theorem 1.
    """
    checks.count("tokens", tokens)
    log_cost = _log_cost(levels, false_alarm_rate, missed_rate)
    surplus, slope = _chernoff_terms(law, levels)
    # A - exp(-cost / n) without cancellation. Where the laws agree, the slope is zero or a rounding of it, and the
    # quotient could overflow: it is formed only where it is at most one.
    wanted = surplus - np.expm1(-log_cost / tokens - _log_divisors(levels, noise))
    return float(np.min(np.divide(wanted, slope, out=np.full_like(wanted, np.inf), where=slope >= wanted)))


def required_tokens_contamination(
    law: ExcessLaw, contamination: float, false_alarm_rate: float, missed_rate: float, levels: int = 6,
    noise: float = 0.0,
) -> float:  # fmt: skip
    """Return tokens with which `log_contamination_eprocess` finds ``contamination``.

    Inverse of `detectable_contamination`; see there. ``contamination`` is in (0, 1].

    Returns
    -------
    float
        A whole number, or ``inf`` if target and drafter agree up to rounding.
    """
    checks.effect("contamination", contamination, 1.0)
    log_cost = _log_cost(levels, false_alarm_rate, missed_rate)
    surplus, slope = _chernoff_terms(law, levels)
    # Kept above -1: where every token would betray the drafter, rounding could pass it.
    decay = -np.log1p(np.maximum(surplus - contamination * slope, -1.0 + 1e-15)) - _log_divisors(levels, noise)
    tokens = np.min(np.divide(log_cost, decay, out=np.full_like(decay, np.inf), where=decay > _NO_DECAY))
    return float(np.ceil(tokens))


def _log_cost(levels: int, false_alarm_rate: float, missed_rate: float) -> Floats:
    """Return ``c T + log(1 / missed_rate)`` for each exponent, shape [1, exponents]."""
    alarm, miss = checks.rate("false_alarm_rate", false_alarm_rate), checks.rate("missed_rate", missed_rate)
    threshold = math.log(2.0 * checks.count("levels", levels) / alarm)
    return (_EXPONENTS * threshold + math.log(1.0 / miss))[None, :]


def _log_divisors(levels: int, noise: float) -> Floats:
    """Return ``c log(1 + b noise)`` for each bet and exponent, shape [levels, exponents]."""
    bets = 0.5 ** np.arange(1, levels + 1)
    return np.log1p(bets * checks.least("noise", noise, 0.0))[:, None] * _EXPONENTS


def _chernoff_terms(law: ExcessLaw, levels: int) -> tuple[Floats, Floats]:
    """Return ``A - 1`` and ``B`` for each bet and exponent, shape [levels, exponents]."""
    excess, probability, weighted = law.points()
    surplus, slope = np.zeros((levels, _EXPONENTS.size)), np.zeros((levels, _EXPONENTS.size))
    for i in range(levels):
        # Both are expectations of differences from one: without expm1 small bets would drown in rounding.
        power = np.expm1(-_EXPONENTS[:, None] * np.log1p(0.5 ** (i + 1) * excess))
        surplus[i], slope[i] = power @ probability, -(power @ weighted)
    # A is at least one (Jensen); rounding must not say otherwise.
    return np.maximum(surplus, 0.0), slope
