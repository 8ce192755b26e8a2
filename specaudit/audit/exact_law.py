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
from specaudit.core.tree import Tree
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


@dataclass(frozen=True)
class TreeCase:
    """Laws as in a ``ChainCase``, and the shape of the tree that is proposed from them.

    With draft laws the children of a node are drawn from its law without replacement; without, every tree of distinct
    siblings is a fixed set of its own.
    """

    laws: ChainCase
    tree: Tree

    @property
    def target(self) -> list[np.ndarray]:
        return self.laws.target

    @property
    def k(self) -> int:
        return self.laws.k


def tree_emission_laws(verifier: Verifier, case: TreeCase) -> np.ndarray:
    """As ``emission_laws``, for trees: every assignment of tokens to the nodes is integrated over.

    Returns
    -------
    float64 array, ``[laws] + [vocab] * (k + 1)``
        One law where the case has draft laws; otherwise one for each assignment of distinct siblings.
    """
    trees, draft_probs, weights = _assignments(case)
    tokens = torch.tensor(trees, dtype=torch.long)
    lengths = (case.tree.nodes,) * len(trees)
    dense = torch.from_numpy(draft_probs) if case.laws.draft is not None else "point_mass"
    proposal = Proposal(tokens, lengths, dense, tree=case.tree)  # type: ignore[arg-type]
    prefixes = [[_prefix(case.tree, tree, node) for node in range(-1, case.tree.nodes)] for tree in trees]
    target_probs = torch.from_numpy(
        np.array([[case.target[len(prefix)][prefix] for prefix in row] for row in prefixes])
    )
    single = case.laws.draft is not None
    laws = np.zeros((1 if single else len(trees),) + (case.laws.vocabulary,) * (case.k + 1))
    children = case.tree.children[0]

    def descend(place: int, forced: dict[int, float], survive: np.ndarray) -> None:
        for node in children[place]:
            accept = _node_threshold(verifier, target_probs, proposal, forced, node)
            descend(node + 1, {**forced, node: 0.0}, survive * accept)
            survive, forced = survive * (1.0 - accept), {**forced, node: BELOW_ONE}
        masses = survive[:, None] * _forced_extra_masses(verifier, target_probs, proposal, forced)
        for row, token in zip(*np.nonzero(masses), strict=True):
            emitted = (*prefixes[row][place], int(token))
            _spread(laws[0 if single else row], case.laws, emitted, float(masses[row, token]))

    descend(0, {}, weights)
    return laws


def largest_tree_error(verifier: Verifier, case: TreeCase) -> float:
    """The largest difference between the emission law and the target's, over all outputs (and fixed trees)."""
    return float(np.abs(tree_emission_laws(verifier, case) - target_law(case.laws)).max())


def _prefix(tree: Tree, tokens: tuple[int, ...], node: int) -> tuple[int, ...]:
    path: list[int] = []
    while node >= 0:
        path.append(tokens[node])
        node = int(tree.parents[0, node])
    return tuple(reversed(path))


def _assignments(case: TreeCase) -> tuple[list[tuple[int, ...]], np.ndarray, np.ndarray]:
    """Every assignment of tokens to nodes that can be proposed, each node's own law, and the chance of the whole."""
    trees, laws, weights = [], [], []
    vocabulary, nodes = case.laws.vocabulary, case.tree.nodes
    parents = case.tree.parents[0]
    for tokens in itertools.product(range(vocabulary), repeat=nodes):
        own, weight = np.zeros((nodes, vocabulary)), 1.0
        for node in range(nodes):
            before = [tokens[other] for other in range(node) if parents[other] == parents[node]]
            if tokens[node] in before:
                weight = 0.0
            elif case.laws.draft is not None:
                prefix = _prefix(case.tree, tokens, int(parents[node]))
                law = case.laws.draft[len(prefix)][prefix].copy()
                law[before] = 0.0
                weight *= law[tokens[node]] / (law.sum() or 1.0)
                own[node] = law / (law.sum() or 1.0)
            if weight == 0.0:
                break
        if weight > 0:
            trees.append(tokens)
            laws.append(own)
            weights.append(weight)
    return trees, np.array(laws), np.array(weights)


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
    """The measure of uniforms at which node ``depth`` of a chain is accepted, all before it being accepted."""
    return _node_threshold(verifier, target_probs, proposal, {}, depth)


def _node_threshold(
    verifier: Verifier, target_probs: Tensor, proposal: Proposal, forced: dict[int, float], node: int
) -> np.ndarray:
    """The measure of uniforms at which ``node`` is accepted, other nodes' uniforms being ``forced`` or zero."""
    batch = len(proposal.lengths)

    def accepted(u: np.ndarray) -> np.ndarray:
        uniforms = _uniforms(batch, proposal.width, forced)
        uniforms[:, node] = torch.from_numpy(np.minimum(u, BELOW_ONE))
        verification = verifier(target_probs, proposal, uniforms)
        if verification.nodes is not None:
            return np.array([node in path for path in verification.nodes])
        return (verification.accepted > node).numpy()

    low, high = np.zeros(batch), np.full(batch, 1.0)
    always, never = accepted(np.full(batch, BELOW_ONE)), ~accepted(np.zeros(batch))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        inside = accepted(middle)
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.where(always, 1.0, np.where(never, 0.0, high))


def _extra_masses(verifier: Verifier, target_probs: Tensor, proposal: Proposal, depth: int) -> np.ndarray:
    """The law of the extra token of a chain's round that ends at ``depth``."""
    return _forced_extra_masses(verifier, target_probs, proposal, {depth: BELOW_ONE} if depth < proposal.width else {})


def _forced_extra_masses(
    verifier: Verifier, target_probs: Tensor, proposal: Proposal, forced: dict[int, float]
) -> np.ndarray:
    """The law of the extra token under ``forced`` decisions: lengths of the steps of the last uniform."""
    batch, vocabulary = target_probs.shape[0], target_probs.shape[-1]

    def extra(u: np.ndarray) -> np.ndarray:
        uniforms = _uniforms(batch, proposal.width, forced)
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


def _uniforms(batch: int, width: int, forced: dict[int, float]) -> Float[Tensor, "batch nodes"]:
    uniforms = torch.zeros(batch, width + 1, dtype=torch.float64)
    for node, u in forced.items():
        uniforms[:, node] = u
    return uniforms


def _spread(law: np.ndarray, case: ChainCase, emitted: tuple[int, ...], mass: float) -> None:
    rest = np.array(mass)
    for depth in range(len(emitted), case.k + 1):
        rest = rest[..., None] * case.target[depth][emitted]
    law[emitted] += rest
