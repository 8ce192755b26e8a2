"""What the uniformity tests can find with n tokens, and the tokens that a wanted finding takes."""

from __future__ import annotations

import math

import scipy.special
import scipy.stats

from specaudit.stats import checks
from specaudit.stats.gof import MINIMUM_PAIRS, MINIMUM_PER_BIN, MINIMUM_TOKENS_CRAMER_VON_MISES


def detectable_chi_square(tokens: int, bins: int, false_alarm_rate: float, missed_rate: float) -> float:
    """Return the smallest departure from uniform bins that ``chi_square_uniform`` finds, whatever its shape.

    The size of a departure to bin probabilities ``q`` is ``w = sqrt(sum (q - 1/b)^2 / (1/b))``. The statistic is about
    noncentral chi-square with noncentrality ``n w^2``, but for small ``w`` only: a departure within one bin makes it
    up to ``1 + w sqrt(b - 1)`` times as variable. Tokens are multiplied by that factor, which is enough.

    Parameters
    ----------
    tokens, bins : int
        Sample size and number of equal bins.
    false_alarm_rate, missed_rate : float
        The level of the test, and the chance with which it may miss the departure returned.

    Returns
    -------
    float
        ``w``, or ``inf`` if there are too few tokens for the test, or not even all tokens in one bin
        (``w = sqrt(bins - 1)``) would be found.

    Raises
    ------
    InputError
        If a rate is not in (0, 0.5] or a count is too small.

    References
    ----------
    Cohen (1988), "Statistical power analysis for the behavioral sciences", equation 7.2.1; Patnaik (1949), "The
    non-central chi-square and F-distributions and their applications", Biometrika 36.
    """
    checks.count("tokens", tokens)
    needed, largest = _noncentrality(bins, false_alarm_rate, missed_rate), math.sqrt(bins - 1)
    shift = needed * largest
    size = (shift + math.sqrt(shift**2 + 4.0 * tokens * needed)) / (2.0 * tokens)
    return size if size <= largest and tokens >= MINIMUM_PER_BIN * bins else math.inf


def required_tokens_chi_square(effect: float, bins: int, false_alarm_rate: float, missed_rate: float) -> int:
    """Return the tokens with which ``chi_square_uniform`` finds any departure of size ``w = effect``.

    Inverse of `detectable_chi_square`; see there. ``effect`` is in (0, sqrt(bins - 1)].
    """
    needed, largest = _noncentrality(bins, false_alarm_rate, missed_rate), math.sqrt(bins - 1)
    checks.effect("effect", effect, largest)
    return max(MINIMUM_PER_BIN * bins, math.ceil(needed * (1.0 + effect * largest) / effect**2))


def detectable_lag(pairs: int, false_alarm_rate: float, missed_rate: float) -> float:
    """Return the smallest correlation between neighbours that ``lag_test`` finds.

    The statistic is about normal with mean ``sqrt(n) rho``. Its variance is one under independence and at most about
    ``1 + 5 rho^2`` where the PIT values follow a first-order autoregression (Bartlett's formula for Gaussian
    neighbours; uniform ones vary less), and that is used.

    Parameters
    ----------
    pairs : int
        Pairs of neighbouring tokens within a prompt.
    false_alarm_rate, missed_rate : float
        The level of the two-sided test, and the chance with which it may miss the correlation returned.

    Returns
    -------
    float
        ``rho``, of either sign, or ``inf`` if there are too few pairs for the test or ``rho = 1`` could be missed.

    Raises
    ------
    InputError
        If a rate is not in (0, 0.5] or ``pairs`` is below one.

    References
    ----------
    Bartlett (1946), "On the theoretical specification and sampling properties of autocorrelated time-series",
    Supplement to JRSS 8.
    """
    checks.count("pairs", pairs)
    alarm, miss = _normal_quantiles(false_alarm_rate, missed_rate)
    # (sqrt(n) rho - alarm)^2 = miss^2 (1 + 5 rho^2), its larger root.
    curvature = pairs - 5.0 * miss**2
    if pairs < MINIMUM_PAIRS or curvature <= 0.0:
        return math.inf
    root = math.sqrt(pairs) * alarm
    rho = (root + math.sqrt(root**2 - curvature * (alarm**2 - miss**2))) / curvature
    return rho if rho <= 1.0 else math.inf


def required_pairs_lag(correlation: float, false_alarm_rate: float, missed_rate: float) -> int:
    """Return the pairs of neighbours with which ``lag_test`` finds ``correlation``.

    Inverse of `detectable_lag`; see there. ``correlation`` is in (0, 1].
    """
    alarm, miss = _normal_quantiles(false_alarm_rate, missed_rate)
    checks.effect("correlation", correlation, 1.0)
    needed = ((alarm + miss * math.sqrt(1.0 + 5.0 * correlation**2)) / correlation) ** 2
    return max(MINIMUM_PAIRS, math.ceil(needed))


def detectable_cramer_von_mises(tokens: int, false_alarm_rate: float, missed_rate: float) -> float:
    """Return a distance from uniform that ``cramer_von_mises_uniform`` is certain to find at these rates.

    The distance of a law ``G`` is ``sqrt(integral of (G(x) - x)^2 dx)``. By the triangle inequality the test's own
    distance is at least that less the distance of the sample from ``G``, and Massart bounds the latter as well as the
    critical value: ``(sqrt(log(2 / false_alarm_rate)) + sqrt(log(2 / missed_rate))) / sqrt(2 n)``. It holds for every
    ``G`` and every ``n``, and is conservative: often half of it is found.

    Parameters
    ----------
    tokens : int
        Sample size.
    false_alarm_rate, missed_rate : float
        The level of the test, and the chance with which it may miss a law at the distance returned.

    Returns
    -------
    float
        The distance, or ``inf`` if there are too few tokens for the test or it is above ``sqrt(1/3)``, that of a law
        with all its mass at one end.

    Raises
    ------
    InputError
        If a rate is not in (0, 0.5] or ``tokens`` is below one.

    References
    ----------
    Massart (1990), Annals of Probability 18, corollary 1.
    """
    checks.count("tokens", tokens)
    distance = _massart_sum(false_alarm_rate, missed_rate) / math.sqrt(tokens)
    enough = tokens >= MINIMUM_TOKENS_CRAMER_VON_MISES and distance <= math.sqrt(1.0 / 3.0)
    return distance if enough else math.inf


def required_tokens_cramer_von_mises(distance: float, false_alarm_rate: float, missed_rate: float) -> int:
    """Return tokens enough for ``cramer_von_mises_uniform`` to find any law at this distance.

    Inverse of `detectable_cramer_von_mises`; see there. ``distance`` is in (0, sqrt(1/3)].
    """
    total = _massart_sum(false_alarm_rate, missed_rate)
    needed = (total / checks.effect("distance", distance, math.sqrt(1.0 / 3.0))) ** 2
    return max(MINIMUM_TOKENS_CRAMER_VON_MISES, math.ceil(needed))


def _noncentrality(bins: int, false_alarm_rate: float, missed_rate: float) -> float:
    checks.count("bins", bins, least=2)
    alarm, miss = checks.rate("false_alarm_rate", false_alarm_rate), checks.rate("missed_rate", missed_rate)
    critical = scipy.stats.chi2.isf(alarm, bins - 1)
    return float(scipy.special.chndtrinc(critical, bins - 1, miss))


def _normal_quantiles(false_alarm_rate: float, missed_rate: float) -> tuple[float, float]:
    alarm, miss = checks.rate("false_alarm_rate", false_alarm_rate), checks.rate("missed_rate", missed_rate)
    return float(scipy.stats.norm.isf(alarm / 2.0)), float(scipy.stats.norm.isf(miss))


def _massart_sum(false_alarm_rate: float, missed_rate: float) -> float:
    alarm, miss = checks.rate("false_alarm_rate", false_alarm_rate), checks.rate("missed_rate", missed_rate)
    return math.sqrt(math.log(2.0 / alarm) / 2.0) + math.sqrt(math.log(2.0 / miss) / 2.0)
