"""The law of a drafter's excess over the target, all that the power of a contamination test depends on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specaudit.core.errors import InputError
from specaudit.stats import checks
from specaudit.stats.checks import Floats

# Bins of |excess|, 16 an octave: coarsening moves information and power by less than one part in a thousand.
_BINS_PER_OCTAVE, _LOWEST_OCTAVE, _OCTAVES = 16, -24, 104
_HALF = _BINS_PER_OCTAVE * _OCTAVES


@dataclass(frozen=True)
class ExcessLaw:
    """The law of ``g = q(x)/p(x) - s`` for ``x`` drawn from the target ``p``, pooled over contexts, in bins.

    ``s`` is the mass of the drafter's law ``q`` on the support of ``p``, so ``g`` has mean zero and is at least -1.
    Laws of more contexts add up: ``law_of_one_chunk + law_of_the_next``.

    Attributes
    ----------
    mass : ndarray, [bins]
        Target probability in each bin, summed over contexts; its total is ``contexts``.
    moment : ndarray, [bins]
        Sum of ``p g = q - s p`` in each bin.
    contexts : int
        Number of contexts.
    """

    mass: Floats
    moment: Floats
    contexts: int

    def __add__(self, other: ExcessLaw) -> ExcessLaw:
        return ExcessLaw(self.mass + other.mass, self.moment + other.moment, self.contexts + other.contexts)

    def points(self) -> tuple[Floats, Floats, Floats]:
        """Return (excess, probability, probability times excess) of the bins in use, each of shape [points]."""
        used = self.mass > 0.0
        mass, moment = self.mass[used], self.moment[used]
        # Mass of the order of 1e-308 can overflow the quotient; its bin then stands at infinity, with no weight.
        with np.errstate(over="ignore"):
            excess = np.maximum(moment / mass, -1.0)
        return excess, mass / self.contexts, moment / self.contexts

    @property
    def mean_information(self) -> float:
        """Mean over contexts of the chi-square divergence ``sum over the support of (q - s p)^2 / p``, from the bins.

        Heavy tails can make it huge while little can be found: power follows the whole law, not this number.
        """
        excess, _, weighted = self.points()
        return float(np.sum(excess * weighted))


def excess_law(target_probs: ArrayLike, draft_probs: ArrayLike) -> ExcessLaw:
    """Return the excess law of some contexts.

    Parameters
    ----------
    target_probs, draft_probs : array_like, [contexts, vocab]
        Processed distributions of target and drafter in float64. The target's zeros are outside its support. The
        drafter's rows may sum to less than one, where their largest values are cut off.

    Returns
    -------
    ExcessLaw
        Its size does not depend on contexts or vocabulary, so a long audit adds chunks up.

    Raises
    ------
    InputError
        If shapes differ, or a row of the target is not a distribution, or one of the drafter sums to more than one.
    """
    target = _distributions("target_probs", target_probs, least=1.0)
    draft = _distributions("draft_probs", draft_probs, least=0.0)
    if target.shape != draft.shape:
        raise InputError("draft_probs", draft.shape, f"must have the target's shape {target.shape}", "align the rows")
    supported = target > 0.0
    on_support = np.where(supported, draft, 0.0).sum(axis=1, keepdims=True)
    mass = target[supported]
    moment = (draft - on_support * target)[supported]
    # Denormal mass overflows the quotient to infinity, which the last bin takes.
    with np.errstate(over="ignore"):
        index = _bins(moment / mass)
    return ExcessLaw(_totals(index, mass), _totals(index, moment), target.shape[0])


def _totals(index: NDArray[np.int64], weights: Floats) -> Floats:
    return np.bincount(index, weights=weights, minlength=2 * _HALF).astype(np.float64)


def _bins(excess: Floats) -> NDArray[np.int64]:
    # Zero goes to the lowest bin, and a logarithm of zero is kept from being taken.
    octave = np.log2(np.maximum(np.abs(excess), 2.0**_LOWEST_OCTAVE)) - _LOWEST_OCTAVE
    step = np.minimum(octave * _BINS_PER_OCTAVE, _HALF - 1).astype(np.int64)
    return np.where(excess < 0.0, step, step + _HALF)


def _distributions(argument: str, values: ArrayLike, least: float) -> Floats:
    rows = checks.bounded(argument, checks.array(argument, values, dimensions=(2,)), 0.0, 1.0 + checks.ROUNDING)
    if rows.shape[0] == 0:
        raise InputError(argument, rows.shape, "must hold a context", "pass one row or more")
    totals = rows.sum(axis=1)
    wrong = ~((totals >= least - checks.ROUNDING) & (totals <= 1.0 + checks.ROUNDING))
    if wrong.any():
        first = int(np.argmax(wrong))
        wanted = "1" if least else "at most 1"
        problem = f"every row must sum to {wanted}, first broken at row {first}"
        raise InputError(argument, float(totals[first]), problem, "normalise the processed distribution in float64")
    return rows
