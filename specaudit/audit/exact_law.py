"""The emission law of a shipped verifier, integrated exactly over every proposal and every uniform.

The verifier is treated as a black box: a deterministic function of its uniforms. Whether a node is accepted, and which
extra token is drawn, are step functions of one uniform each; their steps are found by bisection to the last bit, so
nothing about how the verifier computes them is assumed but that they are monotone. No sampling, and no flakiness.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from specaudit.core.protocols import Verifier
from specaudit.core.types import Proposal

BISECTIONS = 60  # halves [0, 1] below the spacing of float64
BELOW_ONE = np.nextafter(1.0, 0.0)  # the largest uniform: a midpoint between it and 1 rounds to 1, which is none


@dataclass(frozen=True)
class ChainCase:
    """Target and draft laws after every prefix of at most k tokens.

    Attributes
    ----------
    target, draft : list of float64 arrays
        Entry d has shape ``[vocab] * d + [vocab]``: the law of the next token after each prefix of d tokens. ``target``
        has k + 1 entries, ``draft`` has k. A draft of None stands for point masses, tried over every chain.
    """

    target: list[np.ndarray]
    draft: list[np.ndarray] | None

    @property
    def k(self) -> int:
        return len(self.target) - 1

    @property
    def vocabulary(self) -> int:
        return self.target[0].shape[-1]


def emission_laws(verifier: Verifier, case: ChainCase) -> np.ndarray:
    """Joint laws of the first k + 1 tokens, rounds shorter than that being continued from the target.

    Returns
    -------
    float64 array, ``[laws] + [vocab] * (k + 1)``
        One law where the case has draft laws, chains being weighed by them; otherwise one for each point-mass chain.
    """
    chains = list(itertools.product(range(case.vocabulary), repeat=case.k))
    weights = np.ones(len(chains)) if case.draft is None else np.array([_draft_mass(case, c) for c in chains])
    chains, weights = [c for c, w in zip(chains, weights, strict=True) if w > 0], weights[weights > 0]
    target_probs, proposal = _batch(case, chains)
    laws = np.zeros((len(chains) if case.draft is None else 1,) + (case.vocabulary,) * (case.k + 1))
    survive = weights
    for depth in range(case.k + 1):
        accept = _accept_threshold(verifier, target_probs, proposal, depth) if depth < case.k else np.zeros(len(chains))
        masses = (survive * (1.0 - accept))[:, None] * _extra_masses(verifier, target_probs, proposal, depth)
        for row, token in zip(*np.nonzero(masses), strict=True):
            emitted = (*chains[row][:depth], int(token))
            _spread(laws[row if case.draft is None else 0], case, emitted, float(masses[row, token]))
        survive = survive * accept
    return laws


def target_law(case: ChainCase) -> np.ndarray:
    """The joint law of k + 1 tokens of the target itself."""
    law = case.target[0]
    for conditional in case.target[1:]:
        law = law[..., None] * conditional
    return law


def largest_error(verifier: Verifier, case: ChainCase) -> float:
    """The largest difference between the verifier's emission law and the target's, over all outputs (and chains)."""
    return float(np.abs(emission_laws(verifier, case) - target_law(case)).max())


def random_case(generator: np.random.Generator, vocabulary: int, k: int, *, point_mass: bool = False) -> ChainCase:
    """Random laws with ties, zeros and one-hot rows among them."""

    def laws(depth: int) -> np.ndarray:
        weights = generator.integers(0, 4, size=(vocabulary,) * (depth + 1)).astype(float)
        weights *= generator.choice([1.0, 0.37], size=weights.shape)
        empty = weights.sum(-1) == 0
        weights[empty, generator.integers(vocabulary)] = 1.0
        return weights / weights.sum(-1, keepdims=True)

    return ChainCase([laws(d) for d in range(k + 1)], None if point_mass else [laws(d) for d in range(k)])


def _draft_mass(case: ChainCase, chain: tuple[int, ...]) -> float:
    assert case.draft is not None
    return float(np.prod([case.draft[depth][chain[: depth + 1]] for depth in range(case.k)]))


def _batch(case: ChainCase, chains: list[tuple[int, ...]]) -> tuple[Float[Tensor, "batch nodes vocab"], Proposal]:
    target = [[case.target[depth][chain[:depth]] for depth in range(case.k + 1)] for chain in chains]
    tokens = torch.tensor(chains, dtype=torch.long).reshape(len(chains), case.k)
    draft_probs: Tensor | str = "point_mass"
    if case.draft is not None:
        draft = [[case.draft[depth][chain[:depth]] for depth in range(case.k)] for chain in chains]
        draft_probs = torch.tensor(np.array(draft))
    proposal = Proposal(tokens, (case.k,) * len(chains), draft_probs)  # type: ignore[arg-type]
    return torch.tensor(np.array(target)), proposal


def _accept_threshold(verifier: Verifier, target_probs: Tensor, proposal: Proposal, depth: int) -> np.ndarray:
    """The measure of uniforms at which node ``depth`` is accepted, all before it being accepted where they can be."""

    def accepted(u: np.ndarray) -> np.ndarray:
        uniforms = torch.zeros(len(u), proposal.width + 1, dtype=torch.float64)
        uniforms[:, depth] = torch.from_numpy(np.minimum(u, BELOW_ONE))
        return (verifier(target_probs, proposal, uniforms).accepted > depth).numpy()

    batch = len(proposal.lengths)
    low, high = np.zeros(batch), np.full(batch, 1.0)
    always, never = accepted(np.full(batch, BELOW_ONE)), ~accepted(np.zeros(batch))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        inside = accepted(middle)
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.where(always, 1.0, np.where(never, 0.0, high))


def _extra_masses(verifier: Verifier, target_probs: Tensor, proposal: Proposal, depth: int) -> np.ndarray:
    """The law of the extra token of a round that ends at ``depth``: lengths of the steps of the last uniform."""
    batch, vocabulary = target_probs.shape[0], target_probs.shape[-1]

    def extra(u: np.ndarray) -> np.ndarray:
        uniforms = torch.zeros(batch, proposal.width + 1, dtype=torch.float64)
        if depth < proposal.width:
            uniforms[:, depth] = BELOW_ONE
        uniforms[:, -1] = torch.from_numpy(np.minimum(u, BELOW_ONE))
        return verifier(target_probs, proposal, uniforms).extra_token.numpy()

    edges = np.zeros((batch, vocabulary + 1))
    edges[:, -1] = 1.0
    for token in range(1, vocabulary):
        low, high = np.zeros(batch), np.ones(batch)
        already = extra(low) >= token
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            reached = extra(middle) >= token
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
        edges[:, token] = np.where(already, 0.0, high)
    return np.diff(edges, axis=1)


def _spread(law: np.ndarray, case: ChainCase, emitted: tuple[int, ...], mass: float) -> None:
    rest = np.array(mass)
    for depth in range(len(emitted), case.k + 1):
        rest = rest[..., None] * case.target[depth][emitted]
    law[emitted] += rest
