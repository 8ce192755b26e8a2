"""Two samples of outputs of the same prompts, without any probabilities: permutation tests within prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import cast

import numpy as np
import scipy.sparse
import scipy.special
from numpy.typing import ArrayLike, NDArray

from specaudit.core.errors import InputError
from specaudit.stats import checks
from specaudit.stats.checks import Floats
from specaudit.stats.gof import TestResult

EXCEEDANCES = 20  # a test stops at this many: its p-value is then far from small and known to about a fifth
_CHUNK_ELEMENTS = 1 << 21  # labels, or differences, held at once: sixteen megabytes
_LARGEST_DIFFERENCE = math.sqrt(2.0)  # between two laws that are each sure of another token
_TIE = 1e-9  # relative: permuted sums of fractions differ from the observed one by rounding


def exchange_tests(
    counts: Mapping[str, scipy.sparse.csr_array],
    engine: ArrayLike,
    prompts: ArrayLike,
    permutations: int,
    generator: np.random.Generator,
    progress: Callable[[Iterable[int], int], Iterable[int]] = lambda chunks, _total: chunks,
) -> list[TestResult]:
    """Test whether two engines' outputs are exchangeable within each prompt, by how often each token is written.

    With ``n_i`` the smaller number of outputs that prompt i has on a side, and ``mean`` over a side's outputs,

        D = sum over prompts of n_i (mean of counts of the engine - mean of counts of the baseline)

    and the statistic is ``|D| / sum of n_i``, a Euclidean norm over tokens. Differences are taken within the prompt,
    so that what the prompts ask for cancels, and pooled over prompts before the norm, because with one output a side
    a single prompt says nothing: the norm of its own difference is the same whichever side is which. Frequencies are
    not divided by their variances: tokens that were seen once would then weigh as much as those that a defect moves
    in many outputs. Differences of opposite signs in different prompts cancel and are not found.

    Under the null every assignment of a prompt's outputs to the two sides is equally likely, independently over
    prompts; with one output each the two are swapped or not. All tests share the assignments drawn.

    Parameters
    ----------
    counts : mapping of str to csr_array, [outputs, tokens]
        For each test, how often each output has each token there; as `token_counts` gives them.
    engine : array_like of bool, [outputs]
        True for the engine's outputs and False for the baseline's.
    prompts : array_like, [outputs]
        The prompt of each output, any label. Every prompt needs an output on both sides.
    permutations : int
        Assignments drawn at most. A test ends earlier at ``EXCEEDANCES`` statistics as large as the observed one.
    generator : numpy.random.Generator
        Source of the assignments.
    progress : callable, optional
        Wraps the chunks in which they are drawn, given how many there are at most.

    Returns
    -------
    list of TestResult
        In the order of ``counts``. The p-value is ``(1 + b) / (1 + m)`` with b of m drawn statistics at least as large
        as the observed one; where the test ended early, the last of them stands for the observed one. Either way it is
        at most a level with at most that probability, whatever the laws and the number of prompts.

    Raises
    ------
    InputError
        If lengths differ, there is no output, or a prompt has outputs on one side only.

    References
    ----------
    Phipson and Smyth (2010), "Permutation p-values should never be zero", SAGMB 9; Besag and Clifford (1991),
    "Sequential Monte Carlo p-values", Biometrika 78; Kim, Balakrishnan and Wasserman (2022), "Minimax optimality of
    permutation tests", Annals of Statistics 50, section 4 (the norm of differences of multinomial frequencies).
    """
    # scipy.stats.permutation_test has this exchange (permutation_type="samples") for one output a side only, runs all
    # permutations of every test, and draws them anew for each; the tests compare with it where it applies.
    sides = np.atleast_1d(np.asarray(engine, dtype=bool))
    labels = np.unique(np.atleast_1d(np.asarray(prompts)), return_inverse=True)[1]
    checks.same_length(engine=sides, prompts=labels, **{name: np.diff(table.indptr) for name, table in counts.items()})
    groups, weights = _groups(sides, labels)
    pairs = sum(len(rows) * min(shape) for shape, rows in groups.items())
    checks.count("permutations", permutations)
    observed = {name: float(_norms(table, weights[:, None])[0]) for name, table in counts.items()}
    drawn, exceeding = dict.fromkeys(counts, 0), dict.fromkeys(counts, 0)
    running = list(counts)
    chunks = _chunks(permutations, max(sides.size, *map(_columns, counts.values())))
    for chunk in progress(chunks, len(chunks)):
        if not running:
            break
        assigned = _assigned(groups, sides.size, chunk, generator)
        for name in running:
            larger = np.cumsum(_norms(counts[name], assigned) >= observed[name] * (1.0 - _TIE)) + exceeding[name]
            ended = int(np.searchsorted(larger, EXCEEDANCES)) + 1  # draws until it ends, or one more than there are
            drawn[name] += min(ended, chunk)
            exceeding[name] = int(larger[min(ended, chunk) - 1])
        running = [name for name in running if exceeding[name] < EXCEEDANCES]
    return [
        TestResult(name, observed[name] / pairs, _p_value(exceeding[name], drawn[name]), sides.size) for name in counts
    ]


def token_counts(outputs: Sequence[Sequence[Hashable]]) -> scipy.sparse.csr_array:
    """Return how often each output has each token, shape [outputs, different tokens] in the tokens' order of sight."""
    columns: dict[Hashable, int] = {}
    cells = [(row, columns.setdefault(token, len(columns))) for row, output in enumerate(outputs) for token in output]
    rows, seen = np.array(cells, dtype=np.int64).reshape(-1, 2).T
    shape = (len(outputs), max(1, len(columns)))
    return scipy.sparse.csr_array(scipy.sparse.coo_array((np.ones(len(cells)), (rows, seen)), shape=shape))


def smallest_exchange_p_value(engine: ArrayLike, prompts: ArrayLike) -> float:
    """Return the p-value that `exchange_tests` cannot go below for these numbers of outputs.

    That is one over the number of assignments, and twice that where both sides have equally many outputs of every
    prompt: exchanging the sides altogether leaves the statistic as it is.
    """
    groups, _ = _groups(np.asarray(engine, dtype=bool), np.unique(np.asarray(prompts), return_inverse=True)[1])
    log_assignments = sum(len(rows) * math.log(math.comb(sum(shape), shape[0])) for shape, rows in groups.items())
    twins = 2.0 if all(one == other for one, other in groups) else 1.0
    return min(1.0, twins * math.exp(-log_assignments))


def detectable_exchange(pairs: int, permutations: int, false_alarm_rate: float, missed_rate: float) -> float:
    """Return a difference of token frequencies that `exchange_tests` is certain to find at these rates.

    For counts of one position, where an output has one token. The difference is the norm of the expected ``D / n``,
    with ``n = sum of n_i``: two laws of the next token, averaged over prompts, that far apart. At most ``exceeding``
    drawn statistics may be as large as the observed one; by the beta quantile that fails with half the missed rate if
    the exact tail is ``a``. By Pinelis that tail is at most ``a`` where ``|D| >= 2 sqrt(n log(2/a))``, and by
    McDiarmid ``|D|`` falls short of ``n`` times the difference by ``sqrt(2n) + sqrt(2n log(2/missed_rate))`` or more
    with the other half. It holds for all laws and every ``n``, if outputs are independent, and is conservative: often
    half of it is found.

    Parameters
    ----------
    pairs : int
        ``sum of n_i``: with one output a side, the prompts.
    permutations : int
        As given to the test.
    false_alarm_rate, missed_rate : float
        The level of the test, and the chance with which it may miss the difference returned.

    Returns
    -------
    float
        The difference in (0, sqrt(2)], or ``inf`` if there are too few pairs. A share e of outputs that have, at the
        position, one and the same token which the baseline does not write there is a difference of e or more.

    Raises
    ------
    InputError
        If a rate is not in (0, 0.5], a count is below one, or the level cannot be reached with so few permutations.

    References
    ----------
    Pinelis (1994), "Optimum bounds for the distributions of martingales in Banach spaces", Annals of Probability 22,
    theorem 3.5; McDiarmid (1989), "On the method of bounded differences", lemma 1.2.
    """
    difference = _needed(permutations, false_alarm_rate, missed_rate) / math.sqrt(checks.count("pairs", pairs))
    return difference if difference <= _LARGEST_DIFFERENCE else math.inf


def required_pairs_exchange(difference: float, permutations: int, false_alarm_rate: float, missed_rate: float) -> int:
    """Return the pairs of outputs with which `exchange_tests` finds a difference of token frequencies.

    Inverse of `detectable_exchange`; see there. ``difference`` is in (0, sqrt(2)].
    """
    checks.effect("difference", difference, _LARGEST_DIFFERENCE)
    return math.ceil((_needed(permutations, false_alarm_rate, missed_rate) / difference) ** 2)


def _needed(permutations: int, false_alarm_rate: float, missed_rate: float) -> float:
    """``sqrt(pairs)`` times the detectable difference."""
    alarm, miss = checks.rate("false_alarm_rate", false_alarm_rate), checks.rate("missed_rate", missed_rate)
    allowed = math.floor(alarm * (1 + checks.count("permutations", permutations)))
    if allowed < 1:
        problem = f"cannot give a p-value of {alarm:g} or less"
        raise InputError("permutations", permutations, problem, f"draw {math.ceil(1.0 / alarm)} or more")
    draws = permutations
    if allowed >= EXCEEDANCES:  # a test that ended early rejects if it took this many draws to do so
        allowed, draws = EXCEEDANCES, math.ceil(EXCEEDANCES / alarm) - 1
    tail = float(scipy.special.betaincinv(allowed, draws - allowed + 1, miss / 2.0))
    return 2.0 * math.sqrt(math.log(2.0 / tail)) + math.sqrt(2.0) + math.sqrt(2.0 * math.log(2.0 / miss))


def _groups(sides: NDArray[np.bool_], labels: NDArray[np.int64]) -> tuple[dict[tuple[int, int], NDArray], Floats]:
    """Rows of the prompts by their numbers of outputs, [prompts, outputs of one], and every output's weight in D."""
    order = np.lexsort((~sides, labels))  # by prompt, the engine's outputs first
    total, first = np.bincount(labels), np.bincount(labels, weights=sides).astype(np.int64)
    if not sides.size or np.any(first == 0) or np.any(first == total):
        remedy = "give outputs of the same prompts on both sides"
        raise InputError("prompts", int(sides.size), "must each have an output on both sides", remedy)
    starts = np.cumsum(total) - total
    groups, weights = {}, np.zeros(sides.size)
    for own, whole in sorted(set(zip(first.tolist(), total.tolist(), strict=True))):
        chosen = starts[(first == own) & (total == whole)]
        rows = order[chosen[:, None] + np.arange(whole)]
        groups[own, whole - own] = rows
        weights[rows] = _weights(own, whole - own)
    return groups, weights


def _weights(engine: int, baseline: int) -> Floats:
    """Of one prompt's outputs in D. The smaller side's are one, which keeps every term of the bounds at most one."""
    smaller = min(engine, baseline)
    return np.repeat([smaller / engine, -smaller / baseline], [engine, baseline])


def _assigned(
    groups: Mapping[tuple[int, int], NDArray], outputs: int, draws: int, generator: np.random.Generator
) -> Floats:
    """Weights under fresh assignments, [outputs, draws]."""
    assigned = np.empty((outputs, draws))
    for shape, rows in groups.items():
        blank = np.broadcast_to(_weights(*shape), (draws, *rows.shape))
        assigned[rows] = np.moveaxis(generator.permuted(blank, axis=-1), 0, -1)
    return assigned


def _norms(counts: scipy.sparse.csr_array, weights: Floats) -> Floats:
    difference = counts.T @ weights
    return np.sqrt(np.einsum("td,td->d", difference, difference))


def _columns(counts: scipy.sparse.csr_array) -> int:
    return cast("tuple[int, int]", counts.shape)[1]


def _chunks(permutations: int, elements: int) -> list[int]:
    chunk = max(1, min(1024, permutations, _CHUNK_ELEMENTS // elements))
    return [min(chunk, permutations - start) for start in range(0, permutations, chunk)]


def _p_value(exceeding: int, drawn: int) -> float:
    return exceeding / drawn if exceeding == EXCEEDANCES else (1 + exceeding) / (1 + drawn)
