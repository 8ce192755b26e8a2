"""E-processes against contamination of the target by a drafter's law, in the logarithmic domain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specaudit.core.errors import InputError
from specaudit.stats import checks
from specaudit.stats.checks import Floats


@dataclass(frozen=True)
class EProcess:
    """A mixture of e-processes after its last token.

    Attributes
    ----------
    log_e : float
        Natural logarithm of the mixture.
    running_max_log_e : float
        The largest value of ``log_e`` over the tokens in their order, at least 0, its value before the first token.
    tokens : int
        Number of increments.
    """

    log_e: float
    running_max_log_e: float
    tokens: int

    @property
    def log10_e(self) -> float:
        """Decimal logarithm of the mixture after the last token."""
        return self.log_e / math.log(10.0)

    @property
    def p_value(self) -> float:
        """``1 / max E``, valid at any stopping time (Ville 1939, "Etude critique de la notion de collectif")."""
        return math.exp(-self.running_max_log_e)

    def rejects(self, false_alarm_rate: float) -> bool:
        """Whether the mixture ever reached ``1 / false_alarm_rate``, of chance at most that rate under "lossless"."""
        return self.running_max_log_e >= -math.log(checks.rate("false_alarm_rate", false_alarm_rate))


@dataclass(frozen=True)
class ContaminationEProcess(EProcess):
    """An e-process mixed over contaminations with equal weights.

    Attributes
    ----------
    epsilons : ndarray, [epsilons]
        The contaminations bet on.
    log_e_by_epsilon : ndarray, [epsilons]
        Natural logarithm of each product of increments.
    """

    epsilons: Floats
    log_e_by_epsilon: Floats


class RunningMixture:
    """An average of e-processes that is read piece by piece: its size does not grow with the tokens.

    Parameters
    ----------
    weights : array_like, [components]
        Positive, fixed before the tokens are seen; shares of their sum.

    Attributes
    ----------
    log_e_by_component : ndarray, [components]
        Natural logarithm of each component after the last token.
    running_max_log_e : float
    tokens : int

    References
    ----------
    Vovk and Wang, "E-values: calibration, combination and applications", arXiv:1912.06116, section 3.
    """

    def __init__(self, weights: ArrayLike) -> None:
        shares = checks.vector("weights", weights)
        if not shares.size or np.any(shares <= 0.0):
            raise InputError("weights", weights, "must be one positive number or more", "leave out what has no share")
        self.log_weights = np.log(shares / shares.sum())
        self.log_e_by_component = np.zeros(shares.size)
        self.running_max_log_e = 0.0
        self.tokens = 0

    def read(self, log_increments: Floats) -> None:
        """Takes up the next tokens, ``[components, tokens]``."""
        if log_increments.shape[:1] != self.log_weights.shape:
            wanted = f"must have {self.log_weights.size} rows"
            raise InputError("log_increments", log_increments.shape, wanted, "give one row a component")
        if not log_increments.shape[1]:
            return
        paths = self.log_e_by_component[:, None] + np.cumsum(log_increments, axis=1)
        path = np.logaddexp.reduce(paths + self.log_weights[:, None], axis=0)
        self.log_e_by_component = paths[:, -1]
        self.running_max_log_e = max(self.running_max_log_e, float(path.max()))
        self.tokens += log_increments.shape[1]

    @property
    def eprocess(self) -> EProcess:
        if not self.tokens:
            return EProcess(0.0, 0.0, 0)  # not the weights' rounding
        log_e = float(np.logaddexp.reduce(self.log_e_by_component + self.log_weights))
        return EProcess(log_e, self.running_max_log_e, self.tokens)


def log_mean_exp(log_values: ArrayLike, axis: int | None = None) -> Floats:
    """Return ``log(mean(exp(log_values)))`` along ``axis``, without overflow; of all values if None.

    This is the equal-weight mixture of e-values (Vovk and Wang, arXiv:1912.06116).
    """
    values = np.asarray(log_values, dtype=np.float64)
    terms = values.size if axis is None else values.shape[axis]
    if terms == 0:
        raise InputError("log_values", values.shape, "must hold a value to average", "pass one value or more")
    return np.logaddexp.reduce(values, axis=axis) - math.log(terms)


def contamination_epsilons(levels: int) -> Floats:
    """Return ``+1/2, +1/4, .. +2^-levels, -1/2, -1/4, .. -2^-levels``, shape [2 * levels]."""
    positive = [0.5**level for level in range(1, checks.count("levels", levels) + 1)]
    return np.array(positive + [-epsilon for epsilon in positive], dtype=np.float64)


def contamination_bets(epsilon: float, alternative_on_support: ArrayLike, max_ratio: ArrayLike) -> Floats:
    """Return the bet at each token: ``epsilon``, brought closer to zero where an increment could fall below one half.

    The bet depends on the context alone, never on the token drawn, so it is predictable and the increment keeps its
    expectation. Limiting the increment after the token is seen would not.

    Parameters
    ----------
    epsilon : float
        Wanted contamination, within [-1/2, 1/2].
    alternative_on_support, max_ratio : array_like, [tokens]
        As in `contamination_increments`.

    Returns
    -------
    ndarray, [tokens]
    """
    if not -0.5 <= epsilon <= 0.5:
        raise InputError("epsilon", epsilon, "must be within [-0.5, 0.5]", "use a value of contamination_epsilons")
    support = np.asarray(alternative_on_support, dtype=np.float64)
    if epsilon >= 0.0:
        return np.full(support.shape, epsilon)
    # The spread is zero, or a rounding below it, where the drafter has no mass on the target's support.
    spread = np.maximum(np.asarray(max_ratio, dtype=np.float64) - support, np.finfo(np.float64).tiny)
    return np.maximum(epsilon, -0.5 / spread)


def contamination_increments(
    ratio: ArrayLike, alternative_on_support: ArrayLike, max_ratio: ArrayLike, epsilon: float
) -> Floats:
    """Return the e-process increments ``1 + e (q(x)/p(x) - s)``, with ``s = sum of q over the support of p``.

    This is the likelihood ratio of ``(1 - e s) p + e q``, restricted to the support of ``p``, to ``p`` itself. Under
    ``p`` it has expectation exactly one, and it is at least one half.

    Parameters
    ----------
    ratio : array_like, [tokens]
        ``q(x_t) / p_t(x_t)`` of the token drawn: alternative over target, finite, possibly 0.
    alternative_on_support : array_like, [tokens]
        ``s``: the alternative's mass on the support of the target's processed distribution, in [0, 1].
    max_ratio : array_like, [tokens]
        Largest ``q/p`` over the support at that context, possibly ``inf``; negative bets are limited by it.
    epsilon : float
        Wanted contamination, within [-1/2, 1/2]; see `contamination_bets`.

    Returns
    -------
    ndarray, [tokens]
        Increments, each at least 1/2.

    Raises
    ------
    InputError
        If lengths differ, a value is out of range, or a ratio passes its ``max_ratio``. A token of zero target
        probability has no finite ratio: it is a violation by itself, to be counted apart; entering it with
        ``ratio = alternative_on_support`` is an increment of one.

    References
    ----------
    Grunwald, de Heide and Koolen, "Safe testing", arXiv:1906.07801 (likelihood ratios as e-values); Waudby-Smith and
    Ramdas, "Estimating means of bounded random variables by betting", arXiv:2010.09686 (the capital process
    ``prod (1 + lambda_t (X_t - m))`` with predictable ``lambda_t``).
    """
    ratios, support, largest = _validated(ratio, alternative_on_support, max_ratio)
    return 1.0 + contamination_bets(epsilon, support, largest) * (ratios - support)


def log_contamination_increments(
    ratio: ArrayLike, alternative_on_support: ArrayLike, max_ratio: ArrayLike, levels: int = 6, noise: float = 0.0
) -> Floats:
    """Return the logarithms of the increments for each contamination of `contamination_epsilons`.

    Parameters and errors are those of `contamination_increments`, and:

    Parameters
    ----------
    noise : float
        A bound on the mean total variation between the target's law and the one that a lossless engine of this
        arithmetic draws from, times the largest ratio ``R`` that any context has. Each increment of the bet ``b`` is
        divided by ``1 + |b| noise``, its expectation at most under any such law: an increment spans at most
        ``|b| R``. Contexts whose own distance is larger are made up for by others, since the logarithm is concave.

    Returns
    -------
    ndarray, [2 * levels, tokens]

    References
    ----------
    Saha and Ramdas, "Huber-robust likelihood ratio tests for composite nulls and alternatives", arXiv:2408.14015
    (increments divided by their worst expectation in a total-variation ball).
    """
    ratios, support, largest = _validated(ratio, alternative_on_support, max_ratio)
    epsilons = contamination_epsilons(levels)
    gains = [contamination_bets(float(epsilon), support, largest) * (ratios - support) for epsilon in epsilons]
    # log1p keeps the digits of a small bet; increments are at least one half, so every logarithm is finite.
    return np.log1p(np.stack(gains)) - np.log1p(np.abs(epsilons) * checks.least("noise", noise, 0.0))[:, None]


def log_contamination_eprocess(
    ratio: ArrayLike, alternative_on_support: ArrayLike, max_ratio: ArrayLike, levels: int = 6, noise: float = 0.0
) -> ContaminationEProcess:
    """Return the e-process mixed over contaminations ``+-2^-j``, j = 1 .. levels.

    Under "lossless" the mixture is a martingale from one, so it ever reaches ``1 / delta`` with probability at most
    ``delta`` (Ville), for any dependence of the contexts on the past. Increments are those of
    `log_contamination_increments`; parameters and errors are as there.

    Parameters
    ----------
    ratio, alternative_on_support, max_ratio : array_like, [tokens]
        In the order in which the tokens are to be read, which must not depend on the tokens themselves.
    levels : int
        Number of contaminations of each sign.

    Returns
    -------
    ContaminationEProcess

    References
    ----------
    Ramdas, Grunwald, Vovk and Shafer, "Game-theoretic statistics and safe anytime-valid inference", arXiv:2210.01948
    (Ville's inequality, mixtures).
    """
    epsilons = contamination_epsilons(levels)
    mixture = RunningMixture(np.ones(epsilons.size))
    mixture.read(log_contamination_increments(ratio, alternative_on_support, max_ratio, levels, noise))
    whole = mixture.eprocess
    return ContaminationEProcess(
        whole.log_e, whole.running_max_log_e, whole.tokens, epsilons, mixture.log_e_by_component
    )


def _validated(ratio: ArrayLike, alternative_on_support: ArrayLike, max_ratio: ArrayLike) -> tuple[Floats, ...]:
    ratios = checks.vector("ratio", ratio, low=0.0)
    support = checks.vector("alternative_on_support", alternative_on_support, 0.0, 1.0 + checks.ROUNDING)
    largest = checks.array("max_ratio", max_ratio, dimensions=(1,))
    checks.same_length(ratio=ratios, alternative_on_support=support, max_ratio=largest)
    # Written so that a nan fails. A drawn ratio above its maximum would let a negative increment through.
    passed = ratios <= largest * (1.0 + checks.ROUNDING)
    if not passed.all():
        first = int(np.argmin(passed))
        problem = f"must be the largest ratio at its context, but ratio is {ratios[first]:g} at index {first}"
        raise InputError("max_ratio", float(largest[first]), problem, "take the maximum over the target's support")
    return ratios, support, largest
