"""Tests that the audit is compared with: chi-squares over counted tokens, and the MMD two-sample test on outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.stats
from numpy.typing import NDArray

Floats = NDArray[np.float64]
LEAST_EXPECTED = 5.0


def binned_chi_square(counts: Floats, expected: Floats, covariance: Floats) -> float:
    """p-value of the counts in bins of q/p, pooled over contexts.

    The contexts differ, so the counts are no multinomial; given the contexts their deviations are sums of martingale
    differences of the covariance given, and the quadratic form in its inverse is chi-square in the limit. Bins are
    pooled with the next until ``LEAST_EXPECTED`` are expected in each.
    """
    pooled = _runs(expected)
    if len(pooled) < 2:
        return 1.0
    off, covariance = pooled @ (counts - expected), pooled @ covariance @ pooled.T
    # The deviations sum to zero, so the last says nothing new.
    statistic = float(off[:-1] @ np.linalg.solve(covariance[:-1, :-1], off[:-1]))
    return float(scipy.stats.chi2.sf(statistic, len(pooled) - 1))


def _runs(expected: Floats) -> Floats:
    """Which bins make up each pooled one, ``[pooled, bins]``."""
    runs, total = [np.zeros(len(expected))], 0.0
    for place, value in enumerate(expected):
        if total >= LEAST_EXPECTED:
            runs.append(np.zeros(len(expected)))
            total = 0.0
        runs[-1][place], total = 1.0, total + value
    if total < LEAST_EXPECTED and len(runs) > 1:
        last = runs.pop()
        runs[-1] += last
    return np.stack(runs)


@dataclass(frozen=True)
class FirstTokens:
    """The laws of one prompt's first output token: of the target, and of the decoder under test. ``[vocab]`` each."""

    target_probs: Floats
    emitted_probs: Floats

    def statistics(self, generator: np.random.Generator, outputs: int, samples: int) -> tuple[Floats, int]:
        """Pearson's statistic of ``samples`` times ``outputs`` first tokens, and its degrees of freedom.

        Tokens of which fewer than ``LEAST_EXPECTED`` are expected are one cell, with the next larger one where they
        are too few together. Counts of cells are drawn from the exact law: outputs of one prompt are independent, and
        so are their first tokens.
        """
        order = np.argsort(-self.target_probs)
        p, r = self.target_probs[order], self.emitted_probs[order]
        kept = int((outputs * p >= LEAST_EXPECTED).sum())
        if kept and kept < len(p) and outputs * p[kept:].sum() < LEAST_EXPECTED:
            kept -= 1
        if kept == 0:
            return np.zeros(samples), 0
        expected, cells = (
            np.append(law[:kept], law[kept:].sum()) if kept < len(law) else law for law in (p * outputs, r)
        )
        counts = generator.multinomial(outputs, cells / cells.sum(), size=samples)
        return ((counts - expected) ** 2 / expected).sum(-1), len(cells) - 1


def chi_square_flags(statistics: Floats, degrees: int, false_alarm_rate: float) -> NDArray[np.bool_]:
    """Which statistics, or sums of independent ones, pass the level; none where there is nothing to compare."""
    if degrees == 0:
        return np.zeros(len(statistics), dtype=np.bool_)
    return scipy.stats.chi2.sf(statistics, degrees) <= false_alarm_rate


def hamming_kernel(outputs: Sequence[Sequence[int]], prompts: NDArray[np.int64], length: int) -> NDArray[np.float32]:
    """At how many positions two outputs of one prompt agree, 0 for outputs of different prompts.

    Outputs are padded to ``length`` with a token of its own. Gao, Liang and Guestrin, "Model Equality Testing: Which
    Model Is This API Serving?", arXiv:2410.20247, section 3; they divide by the length, which changes no p-value, and
    whole numbers have no rounding.
    """
    ids = np.full((len(outputs), length), -1, dtype=np.int32)
    for row, output in enumerate(outputs):
        ids[row, : len(output)] = output
    kernel = np.zeros((len(outputs), len(outputs)), dtype=np.float32)
    for prompt in np.unique(prompts):
        rows = np.flatnonzero(prompts == prompt)
        kernel[np.ix_(rows, rows)] = (ids[rows, None, :] == ids[None, rows, :]).sum(-1)
    return kernel


def permuted_labels(
    prompts: NDArray[np.int64], engine: int, permutations: int, within: bool, generator: np.random.Generator
) -> NDArray[np.float32]:
    """The side of each row, one for the engine's: first as it is (the first ``engine`` rows), then permuted.

    ``[rows, 1 + permutations]``; (prompt, output) pairs are permuted as a whole, or outputs within each prompt.
    """
    labels = np.zeros((len(prompts), permutations + 1), dtype=np.float32)
    labels[:engine] = 1.0
    kinds = prompts if within else np.zeros_like(prompts)
    for kind in np.unique(kinds):
        rows = np.flatnonzero(kinds == kind)
        labels[rows, 1:] = generator.permuted(labels[rows, 1:], axis=0)
    return labels


def mmd_p_value(kernel: NDArray[np.float32], prompts: NDArray[np.int64], labels: NDArray[np.float32]) -> float:
    """The permutation p-value ``(1 + b) / (1 + m)`` of the unbiased MMD^2 between the two sides of ``labels``.

    Means are over pairs of one prompt, an output with itself left out (arXiv:2410.20247, section 3).
    """
    similar = kernel - np.diag(np.diag(kernel))
    toward = similar @ labels
    within = np.einsum("nd,nd->d", labels, toward, dtype=np.float64)
    across = np.einsum("nd,nd->d", labels, similar.sum(1)[:, None] - toward, dtype=np.float64)
    rest = float(similar.sum(dtype=np.float64)) - within - 2.0 * across
    groups = (prompts[:, None] == np.unique(prompts)).astype(np.float64)
    mine = groups.T @ labels
    theirs = groups.sum(0)[:, None] - mine
    pairs = [(mine * (mine - 1)).sum(0), (mine * theirs).sum(0), (theirs * (theirs - 1)).sum(0)]
    if min(float(count[0]) for count in pairs) == 0:
        return 1.0
    # A permutation without a pair on one side has no statistic; it counts as large, which is conservative.
    with np.errstate(divide="ignore", invalid="ignore"):
        statistics = within / pairs[0] - 2.0 * across / pairs[1] + rest / pairs[2]
    statistics = np.where(np.isfinite(statistics), statistics, np.inf)
    # Of means that are equal one may be rounded down.
    least = statistics[0] - 1e-9 * abs(statistics[0])
    return float(((statistics[1:] >= least).sum() + 1) / labels.shape[1])
