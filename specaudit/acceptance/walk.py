"""The walk: the expected number of rounds for every k, from the logged acceptance of one scoring pass.

Given an output drawn from the target, token i at draft depth d of its round was accepted with probability
``a[i, d] = min(1, q_d(x_i) / p(x_i))``, because the mass that is emitted and accepted is ``min(p, q)``. The round
structure is then a Markov chain over depth, and one dynamic programme gives its law exactly, for every k at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Walk:
    """The expected round structure of each of several outputs.

    Attributes
    ----------
    rounds : float[outputs, k_max]
        Expected rounds, for k = 1..k_max.
    rounds_by_width : float[outputs, k_max, k_max + 1]
        The same by how many tokens the round drafted: entry ``[:, k - 1, n]`` counts rounds that drafted n.
    reached, accepted : float[outputs, k_max, k_max]
        Expected drafted tokens that stand at depth d (last axis, from zero) with all before them accepted, and those
        accepted themselves, for each k.
    """

    rounds: Floats
    rounds_by_width: Floats
    reached: Floats
    accepted: Floats


def walk(accept: Floats, drafted: Ints, lengths: Ints, budgets: Ints, k_max: int) -> Walk:
    """Runs the chain over outputs side by side.

    Parameters
    ----------
    accept : float[outputs, tokens, depths]
        Probability that token i was accepted if it sat at depth d; one column where depth does not matter.
    drafted : int[outputs, tokens]
        How many tokens a round that starts at token i would draft if k were unlimited.
    lengths : int[outputs]
        Tokens of each output; what follows is padding.
    budgets : int[outputs]
        The ``max_new_tokens`` each was made under: a round drafts at most one token less than is left of it.
    k_max : int
        The largest k.

    Notes
    -----
    With ``pi[d]`` the probability that token i is at depth d, ``rounds += pi[0]``; the next token is at depth d + 1
    with ``pi[d] a[i, d]`` and starts a round otherwise; after k acceptances the bonus token ends the round.
    """
    outputs, tokens = drafted.shape
    ks, depths = np.arange(1, k_max + 1), np.arange(k_max)
    room = np.clip(np.minimum(drafted, budgets[:, None] - 1 - np.arange(tokens)), 0, None)
    inside = depths < ks[:, None]
    pi = np.zeros((outputs, k_max, k_max + 1))
    pi[:, :, 0] = 1.0
    rounds, by_width = np.zeros((outputs, k_max)), np.zeros((outputs, k_max, k_max + 1))
    reached, accepted = np.zeros((outputs, k_max, k_max)), np.zeros((outputs, k_max, k_max))
    everyone = np.arange(outputs)[:, None]
    for i in range(tokens):
        pi[i >= lengths] = 0.0
        rounds += pi[:, :, 0]
        by_width[everyone, ks - 1, np.minimum(ks, room[:, i, None])] += pi[:, :, 0]
        # Whether there is a draft at depth d depends on where the round began, which was at token i - d.
        starts = i - depths
        has_draft = (starts >= 0) & (depths < room[:, np.clip(starts, 0, None)])
        here = pi[:, :, :k_max] * inside
        drafted_here = here * has_draft[:, None, :]
        go = drafted_here * accept[:, i, None, :k_max]
        reached += drafted_here
        accepted += go
        restart = (here - go).sum(-1) + pi[:, ks - 1, ks]
        pi = np.concatenate([restart[:, :, None], go], axis=-1)
    return Walk(rounds, by_width, reached, accepted)


def uniform_starts(accept: Floats, lengths: Ints, k_max: int) -> Floats:
    """Tokens per round, for k = 1..k_max, if rounds began at uniformly chosen tokens.

    Biased upward, since real rounds restart at hard tokens; shown because many tools print it. It is
    ``1 + sum_d prod_(j<=d) a[i + j, j]`` averaged over i.
    """
    outputs, tokens, columns = accept.shape
    inside = np.arange(tokens) < lengths[:, None]
    survival = inside.astype(float)
    totals, total = np.zeros(k_max), survival.sum()
    for depth in range(k_max):
        if depth >= tokens:
            break
        shifted = np.zeros((outputs, tokens))
        shifted[:, : tokens - depth] = np.where(inside, accept[:, :, min(depth, columns - 1)], 0.0)[:, depth:]
        survival = survival * shifted
        totals[depth:] += survival.sum()
    return 1.0 + totals / total


def geometric(alpha: float, k_max: int) -> Floats:
    """``(1 - alpha^(k+1)) / (1 - alpha)`` for k = 1..k_max (Leviathan et al. eq. 1): assumes independent acceptance."""
    return (np.cumsum(np.full(k_max, alpha) ** np.arange(1, k_max + 1)) + 1.0).astype(np.float64)
