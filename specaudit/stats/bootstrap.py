"""Bootstrap intervals of ratios, by prompt or by pair."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from specaudit.core.errors import InputError
from specaudit.stats import checks
from specaudit.stats.checks import Floats

_CHUNK_ELEMENTS = 1 << 20  # resampling weights held at once: eight megabytes


def ratio_bootstrap(
    numerators: ArrayLike, denominators: ArrayLike, resamples: int, generator: np.random.Generator
) -> Floats:
    """Return resampled ratios ``sum of numerators / sum of denominators``, drawing whole prompts.

    Prompts are drawn, never tokens: the tokens of one output share its topic and its context, so their acceptances
    move together, and an interval that treats them as independent is several times too narrow.

    Parameters
    ----------
    numerators, denominators : array_like, [prompts] or [prompts, columns]
        Sums within each prompt, for example accepted and proposed tokens. Columns, for example one a depth, share the
        drawn prompts; a vector beside a matrix serves all of its columns.
    resamples : int
        Number of resamples.
    generator : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    ndarray, [resamples] or [resamples, columns]

    Raises
    ------
    InputError
        If there are fewer than two prompts, the prompts differ in number, a value is not finite, a denominator is
        negative, or a resample has a denominator of zero (too few prompts have any).

    References
    ----------
    Efron (1979), "Bootstrap methods: another look at the jackknife", Annals of Statistics 7, section 2; Davison and
    Hinkley (1997), "Bootstrap methods and their application", section 3.8 (clusters).
    """
    top = checks.bounded("numerators", checks.array("numerators", numerators, (1, 2)), -np.inf, np.inf)
    bottom = checks.bounded("denominators", checks.array("denominators", denominators, (1, 2)), 0.0, np.inf)
    prompts = checks.same_length(numerators=top, denominators=bottom)
    checks.count("prompts", prompts, least=2)
    checks.count("resamples", resamples)
    if max(top.ndim, bottom.ndim) == 2:
        top, bottom = np.atleast_2d(top.T).T, np.atleast_2d(bottom.T).T
    shares = np.full(prompts, 1.0 / prompts)
    chunk = max(1, _CHUNK_ELEMENTS // prompts)
    parts = []
    for start in range(0, resamples, chunk):
        weights = generator.multinomial(prompts, shares, size=min(chunk, resamples - start)).astype(np.float64)
        parts.append(_quotient(weights @ top, weights @ bottom))
    return np.concatenate(parts)


def percentile_interval(samples: ArrayLike, confidence: float) -> Floats:
    """Return the central percentile interval of bootstrap samples.

    Parameters
    ----------
    samples : array_like, [resamples] or [resamples, columns]
        Bootstrap samples.
    confidence : float
        Between 0 and 1, for example 0.95.

    Returns
    -------
    ndarray, [2] or [2, columns]
        Lower and upper ends.

    Raises
    ------
    InputError
        If there are no samples, one is not finite, or ``confidence`` is not between 0 and 1.

    References
    ----------
    Efron and Tibshirani (1993), "An introduction to the bootstrap", chapter 13.
    """
    values = checks.bounded("samples", checks.array("samples", samples, (1, 2)), -np.inf, np.inf)
    if values.shape[0] == 0:
        raise InputError("samples", values.shape, "must hold a sample", "pass one resample or more")
    if not 0.0 < confidence < 1.0:
        raise InputError("confidence", confidence, "must be between 0 and 1", "use, for example, 0.95")
    return np.quantile(values, [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0], axis=0)


def _quotient(top: Floats, bottom: Floats) -> Floats:
    if np.any(bottom == 0.0):
        remedy = "leave out prompts without any (a category is resampled on its own prompts), or add prompts"
        raise InputError("denominators", 0.0, "must not sum to zero in a resample", remedy)
    return top / bottom
