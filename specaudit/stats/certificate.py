"""A certificate: the contamination by a drafter's law that the observed tokens exclude."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import scipy.optimize
from numpy.typing import ArrayLike

from specaudit.core.errors import InputError
from specaudit.stats import checks
from specaudit.stats.checks import Floats

_TOLERANCE = 1e-12
_LARGEST_STAKE = 4.0  # keeps 1 - exp(-h) clear of one, whose logarithm is taken; larger stakes gain under two per cent


def contamination_upper_bound(
    hit: ArrayLike, target_mass: ArrayLike, draft_mass: ArrayLike, delta: float, planned_tokens: int | None = None
) -> float:
    """Return an upper confidence bound on the contamination ``e`` of ``(1 - e) p + e q``.

    With ``A_t = {q_t > p_t}`` a token hits ``A_t`` with probability ``m_t(e) = p_t(A_t) + e (q_t(A_t) - p_t(A_t))``.
    For any predictable ``h_t > 0`` the product over tokens of

        exp(-h_t hit_t) / (1 - (1 - exp(-h_t)) m_t(e))

    is a martingale from one under contamination ``e``, so by Ville it ever reaches ``1 / delta`` with probability at
    most ``delta``. It grows with ``e``, and the bound is the ``e`` at which it is ``1 / delta``. ``h_t`` follows the
    variance so far, implied by the target or shown by the hits. At the largest variance, 1/4, the bound is about that
    of Hoeffding-Azuma, mean excess hits plus ``sqrt(log(1/delta) / (2n))`` over the mean gap; where the target is sure
    of its tokens it is much tighter.

    Parameters
    ----------
    hit : array_like of bool, [tokens]
        Whether ``q_t(x_t) > p_t(x_t)`` for the token drawn.
    target_mass, draft_mass : array_like, [tokens]
        ``p_t(A_t)`` and ``q_t(A_t)``: probabilities that the target and the drafter give to ``{q_t > p_t}``.
    delta : float
        Chance with which the bound may lie below the true contamination.
    planned_tokens : int, optional
        The ``n`` that sets the size of ``h_t``; by default the number of tokens. Where outputs may end early that
        number depends on the tokens themselves, and one fixed beforehand belongs here. A plan off by a factor of two
        makes the bound about six per cent wider, never invalid.

    Returns
    -------
    float
        The bound in [0, 1]. One excludes nothing; zero means that the tokens lean away from the drafter so far that
        no contamination at all explains them.

    Raises
    ------
    InputError
        If lengths differ, a value is out of range, or ``draft_mass`` is below ``target_mass``, which no ``{q > p}``
        can do.

    References
    ----------
    Hoeffding (1963), "Probability inequalities for sums of bounded random variables", JASA 58, theorem 1, by the exact
    moment generating function; Freedman (1975), "On tail probabilities for martingales", Annals of Probability 3.
    """
    hits = checks.vector("hit", hit, 0.0, 1.0)
    target = np.minimum(checks.vector("target_mass", target_mass, 0.0, 1.0 + checks.ROUNDING), 1.0)
    draft = np.minimum(checks.vector("draft_mass", draft_mass, 0.0, 1.0 + checks.ROUNDING), 1.0)
    checks.same_length(hit=hits, target_mass=target, draft_mass=draft)
    if np.any(draft < target - checks.ROUNDING):
        first = int(np.argmax(draft < target - checks.ROUNDING))
        problem = f"must not be below target_mass ({target[first]:g}), first broken at index {first}"
        raise InputError("draft_mass", float(draft[first]), problem, "sum both over the same set {q > p}")
    gap = np.maximum(draft - target, 0.0)
    threshold = -math.log(checks.rate("delta", delta))
    tokens = target.size if planned_tokens is None else planned_tokens
    shrink = -np.expm1(-_stakes(hits, target, threshold, checks.count("planned_tokens", tokens)))
    # log of exp(-h hit), from the same number: at a hit it is log(1 - shrink).
    evidence = float(np.sum(hits * np.log1p(-shrink)))

    def surplus(contamination: float) -> float:
        return evidence - float(np.sum(np.log1p(-shrink * (target + contamination * gap)))) - threshold

    if surplus(1.0) <= 0.0:
        return 1.0
    if surplus(0.0) >= 0.0:
        return 0.0
    # Rounded up by the root finder's tolerance: the bound must not fall short of the root.
    root = cast(float, scipy.optimize.brentq(surplus, 0.0, 1.0, xtol=_TOLERANCE))
    return min(1.0, root + 2.0 * _TOLERANCE)


def _stakes(hits: Floats, target_mass: Floats, threshold: float, planned_tokens: int) -> Floats:
    """Return ``h_t``: the best fixed stake for this many tokens at the mean variance known before token t.

    ``h = sqrt(2 log(1/delta) / (n v))`` minimises the Gaussian approximation ``log(1/delta)/h + n h v / 2``. ``v`` is
    what the target implies for the contexts up to t or, where larger, what the hits before t showed. One made-up
    context of the largest variance, 1/4, keeps the first stakes finite.
    """
    implied = np.cumsum(target_mass * (1.0 - target_mass))
    seen = (hits - target_mass) ** 2
    # A stake that knew its own hit would break the martingale: the sum seen stops one token short.
    shown = np.cumsum(seen) - seen
    mean_variance = (0.25 + np.maximum(implied, shown)) / (1.0 + np.arange(1, hits.size + 1))
    return np.minimum(np.sqrt(2.0 * threshold / (planned_tokens * mean_variance)), _LARGEST_STAKE)
