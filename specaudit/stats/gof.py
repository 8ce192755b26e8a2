"""Uniformity of PIT values: chi-square over bins, Cramer-von Mises, and correlation between neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike

from specaudit.core.errors import InputError
from specaudit.stats import checks

MINIMUM_PER_BIN = 10  # expected; with five the chi-square tail at p = 1e-5 is hit three times too often
MINIMUM_TOKENS_CRAMER_VON_MISES = 50  # scipy's finite-sample correction turns negative in the tail below this
MINIMUM_PAIRS = 100  # with thirty the normal tail at p = 1e-5 is hit four times too often, with these twice

# Above this statistic, or below this p-value, scipy's series for the Cramer-von Mises law has lost its digits.
_SERIES_STATISTIC, _SERIES_P_VALUE = 3.0, 1e-7


@dataclass(frozen=True)
class TestResult:
    """The outcome of one test.

    Attributes
    ----------
    name : str
        Which test.
    statistic : float
        Its statistic.
    p_value : float
        Probability, under "lossless", of a statistic at least this extreme.
    tokens : int
        Number of values tested: PIT values, or outputs of two samples.
    """

    __test__: ClassVar[bool] = False  # pytest would otherwise collect a class of this name

    name: str
    statistic: float
    p_value: float
    tokens: int


def chi_square_uniform(u: ArrayLike, bins: int) -> TestResult:
    """Test uniformity by Pearson's chi-square over equal bins.

    Parameters
    ----------
    u : array_like, [tokens]
        PIT values in [0, 1].
    bins : int
        Number of equal bins, at least two and at most ``tokens // MINIMUM_PER_BIN``.

    Returns
    -------
    TestResult
        Its p-value is asymptotic: right within a factor of about 1.5 down to 1e-5 at ten expected per bin.

    Raises
    ------
    InputError
        If a value is outside [0, 1] or there are too few tokens for the bins.

    References
    ----------
    Pearson (1900), Philosophical Magazine 50, "On the criterion ..."; ``scipy.stats.chisquare``.
    """
    values = checks.vector("u", u, 0.0, 1.0)
    checks.count("bins", bins, least=2)
    if values.size < MINIMUM_PER_BIN * bins:
        problem = f"needs {MINIMUM_PER_BIN} tokens a bin, but there are {values.size} tokens"
        raise InputError("bins", bins, problem, f"use at most tokens // {MINIMUM_PER_BIN} bins, or score more tokens")
    counts = np.bincount(np.minimum((values * bins).astype(np.int64), bins - 1), minlength=bins)
    statistic, p_value = scipy.stats.chisquare(counts)
    return TestResult("pit_chi_square", float(statistic), float(p_value), values.size)


def cramer_von_mises_uniform(u: ArrayLike) -> TestResult:
    """Test uniformity by Cramer-von Mises, ``T = n * integral of (F_n(x) - x)^2 dx``.

    Parameters
    ----------
    u : array_like, [tokens]
        PIT values in [0, 1], at least ``MINIMUM_TOKENS_CRAMER_VON_MISES``.

    Returns
    -------
    TestResult
        P-values under 1e-7 are replaced by ``min(1e-7, 2 exp(-2 T))``, which is never too small: ``T`` is at most
        ``n sup |F_n(x) - x|^2``, and Massart bounds the tail of that.

    Raises
    ------
    InputError
        If a value is outside [0, 1] or there are too few tokens.

    References
    ----------
    Csorgo and Faraway (1996), JRSS B 58, equation 1.8; ``scipy.stats.cramervonmises``. Massart (1990), "The tight
    constant in the Dvoretzky-Kiefer-Wolfowitz inequality", Annals of Probability 18, corollary 1.
    """
    values = checks.vector("u", u, 0.0, 1.0)
    least = MINIMUM_TOKENS_CRAMER_VON_MISES
    if values.size < least:
        raise InputError("u", values.size, f"must have {least} values or more", "score more tokens")
    # scipy divides zero by zero in its series at large statistics; that p-value is replaced below.
    with np.errstate(all="ignore"):
        result = scipy.stats.cramervonmises(values, "uniform")
    statistic, p_value = float(result.statistic), float(result.pvalue)
    if statistic > _SERIES_STATISTIC or p_value < _SERIES_P_VALUE:
        p_value = min(_SERIES_P_VALUE, 2.0 * math.exp(-2.0 * statistic))
    return TestResult("pit_cramer_von_mises", statistic, p_value, values.size)


def lag_test(u: ArrayLike, groups: ArrayLike) -> TestResult:
    """Test independence of neighbours: ``z = sum of 12 (u_t - 1/2)(u_{t+1} - 1/2) / sqrt(pairs)``.

    Under iid uniforms each product has mean zero and variance one, and products of overlapping pairs are uncorrelated,
    so ``z`` is standard normal in the limit.

    Parameters
    ----------
    u : array_like, [tokens]
        PIT values in [0, 1], in the order in which the tokens were written.
    groups : array_like, [tokens]
        Index of each token's prompt. A pair is two neighbours of one group.

    Returns
    -------
    TestResult
        ``statistic`` is ``z``; the p-value is two-sided, right within a factor of about 2.5 down to 1e-5.

    Raises
    ------
    InputError
        If a value is outside [0, 1], lengths differ, or there are fewer than ``MINIMUM_PAIRS`` pairs.

    References
    ----------
    Wald and Wolfowitz (1943), "An exact test for randomness in the non-parametric case based on serial correlation",
    Annals of Mathematical Statistics 14; here with the known moments of the uniform law.
    """
    values = checks.vector("u", u, 0.0, 1.0)
    labels = np.atleast_1d(np.asarray(groups))
    checks.same_length(u=values, groups=labels)
    neighbours = labels[1:] == labels[:-1]
    pairs = int(neighbours.sum())
    if pairs < MINIMUM_PAIRS:
        problem = f"must hold {MINIMUM_PAIRS} pairs of neighbours or more"
        raise InputError("groups", pairs, problem, "score more or longer outputs")
    centred = values - 0.5
    z = float(12.0 * (centred[1:] * centred[:-1])[neighbours].sum() / math.sqrt(pairs))
    return TestResult("pit_lag", z, float(2.0 * scipy.stats.norm.sf(abs(z))), values.size)
