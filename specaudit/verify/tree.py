"""Verification of token trees: recursive rejection, and the greedy walk.

Children are tried in order. Each was drawn from a distribution q of its own: a point mass where the children are a
fixed set, the parent's law without the earlier siblings where they were drawn without replacement. It is accepted with
min(1, p(x)/q(x)); on rejection p becomes norm(max(0, p - q)) for the next sibling, and the extra token is drawn from
what is left after the last (Miao et al., SpecInfer, arXiv:2305.09781 alg. 2; Chen et al., Sequoia, arXiv:2402.12374).
For a tree of width one this is the chain rule, in the same arithmetic.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from specaudit.core.sampling import sample
from specaudit.core.types import Proposal, Verification


def verify(
    target_probs: Float[Tensor, "batch nodes vocab"], proposal: Proposal, uniforms: Float[Tensor, "batch nodes"]
) -> Verification:
    """One round of recursive rejection for a batch of trees.

    Parameters
    ----------
    target_probs : Float[Tensor, "batch nodes vocab"]
        The target's processed distribution at the root and after each node; ``nodes >= width + 1``.
    proposal : Proposal
        With a tree.
    uniforms : Float[Tensor, "batch nodes"]
        In [0, 1): column ``i < width`` decides node i, the last column draws the extra token.
    """
    tokens, decisions = proposal.tokens.tolist(), uniforms.double().tolist()
    paths, weights = [], []
    for row in range(len(proposal.lengths)):
        path, left = _descend(target_probs[row], proposal, row, tokens[row], decisions[row])
        paths.append(path)
        weights.append(left)
    return _verification(proposal, paths, sample(torch.stack(weights), uniforms[:, -1]))


def _descend(
    target_probs: Float[Tensor, "nodes vocab"], proposal: Proposal, row: int, tokens: list[int],
    uniforms: list[float],
) -> tuple[list[int], Float[Tensor, " vocab"]]:  # fmt: skip
    """The accepted path of one row, and the weights that its extra token is drawn from."""
    children = below(proposal, row)
    path: list[int] = []
    place = 0
    while True:
        weights, total = target_probs[place], 1.0
        for node in children[place]:
            drawn = None if isinstance(proposal.draft_probs, str) else proposal.draft_probs[row, node]
            token = tokens[node]
            mass = 1.0 if drawn is None else float(drawn[token])
            # Strictly below, in products: u = 0 must not accept a token that the target never emits.
            if uniforms[node] * mass * total < float(weights[token]):
                break
            left = _residual(weights, total, drawn, token)
            mass_left = float(left.sum(dtype=torch.float64))
            if mass_left <= 0:  # p and q are equal to rounding, so a rejection is rounding too: draw from p
                return path, weights
            weights, total = left, mass_left
        else:
            return path, weights
        path.append(node)
        place = node + 1


def _residual(
    weights: Float[Tensor, " vocab"], total: float, drawn: Float[Tensor, " vocab"] | None, token: int
) -> Float[Tensor, " vocab"]:
    """max(0, p - q) where ``weights`` are p times ``total``; not normalised."""
    if drawn is not None:
        return (weights - drawn * total if total != 1.0 else weights - drawn).clamp_(min=0.0)
    left = weights.clone()
    left[token] = 0.0
    return left


def verify_greedy(target_probs: Float[Tensor, "batch nodes vocab"], proposal: Proposal) -> Verification:
    """Follows the target's argmax down each tree as far as it is among the children."""
    best = target_probs.argmax(-1)
    choices, tokens = best.tolist(), proposal.tokens.tolist()
    paths = []
    for row in range(len(proposal.lengths)):
        children = below(proposal, row)
        path: list[int] = []
        place = 0
        while (
            node := next((node for node in children[place] if tokens[row][node] == choices[row][place]), None)
        ) is not None:
            path.append(node)
            place = node + 1
        paths.append(path)
    ends = torch.tensor([path[-1] + 1 if path else 0 for path in paths], device=best.device)
    return _verification(proposal, paths, best.gather(1, ends.unsqueeze(1)).squeeze(1))


def below(proposal: Proposal, row: int) -> list[list[int]]:
    """The verified nodes below the root and below each node of one row, a chain's too; neither padding nor extra."""
    length = proposal.lengths[row]
    if proposal.tree is None:
        return [[node] if node < length else [] for node in range(proposal.width + 1)]
    children = proposal.tree.children[proposal.tree.row(row)]
    if length == proposal.tree.nodes:
        return children
    return [[node for node in nodes if node < length] for nodes in children]


def _verification(proposal: Proposal, paths: list[list[int]], extra: Tensor) -> Verification:
    """A row ends with a bonus where nothing stood below the last accepted node."""
    bonus = [not below(proposal, row)[path[-1] + 1 if path else 0] for row, path in enumerate(paths)]
    accepted = torch.tensor([len(path) for path in paths], device=extra.device)
    return Verification(accepted, extra, torch.tensor(bonus, device=extra.device), paths)
