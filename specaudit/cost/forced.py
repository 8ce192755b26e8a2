"""Rounds of a chosen shape, so that their cost does not depend on a draft's luck."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from specaudit.core.protocols import Drafter, Target, Verifier
from specaudit.core.sequences import Sequence_
from specaudit.core.types import Proposal, Replay, SamplingParams, Verification


class ForcedVerifier:
    """Does the whole work of a real verifier, then accepts a scheduled number of tokens instead.

    Row r accepts ``(turn + r) mod (depth + 1)`` tokens: every count in turn, and rows of a batch apart from each other.
    """

    name = "forced"
    preserves_target = False

    def __init__(self, inner: Verifier) -> None:
        self.inner, self.turn = inner, 0

    def __call__(
        self,
        target_probs: Float[Tensor, "batch nodes vocab"],
        proposal: Proposal | None,
        uniforms: Float[Tensor, "batch nodes"],
    ) -> Verification:
        real = self.inner(target_probs, proposal, uniforms)
        if proposal is None:
            return real
        depths = proposal.depths
        counts = [min((self.turn + row) % (max(depths) + 1), depth) for row, depth in enumerate(depths)]
        self.turn += 1
        device = real.accepted.device
        nodes = None if proposal.tree is None else [_branch(proposal, row, count) for row, count in enumerate(counts)]
        accepted = torch.tensor(counts, device=device)
        return Verification(accepted, real.extra_token, accepted == torch.tensor(depths, device=device), nodes)


def _branch(proposal: Proposal, row: int, depth: int) -> list[int]:
    """The nodes down to the last one of that depth, so that as a rule the cache has something to move."""
    assert proposal.tree is not None
    place = proposal.tree.row(row)
    depths = proposal.tree.depths[place, 1 : proposal.lengths[row] + 1].tolist()
    path: list[int] = []
    node = max((node for node, own in enumerate(depths) if own == depth), default=-1)
    while node >= 0:
        path.append(node)
        node = int(proposal.tree.parents[place, node])
    return path[::-1]


class FixedWidthDrafter:
    """Lets a drafter do its work and then proposes exactly ``width`` tokens deep, as far as the row has room.

    A drafter that found fewer (prompt lookup) has its chain filled up with token 0, which costs the target the same. A
    tree is left as it is.
    """

    def __init__(self, inner: Drafter, width: int) -> None:
        self.inner, self.width, self.name = inner, width, inner.name
        self.hidden_layers, self.declares_lossy = inner.hidden_layers, inner.declares_lossy
        self.content = inner.content

    def room(self, k: int) -> tuple[int, int]:
        nodes, width = self.inner.room(k)
        return max(nodes, self.width), max(width, self.width)

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int, target: Target) -> None:
        self.inner.start(prompts, params, capacity, target)

    def propose(self, limits: Sequence[int], uniforms: Float[Tensor, "batch k"]) -> Proposal:
        wanted = [min(limit, self.width) for limit in limits]
        proposal = self.inner.propose(wanted, uniforms)
        if proposal.tree is not None or not isinstance(proposal.draft_probs, str):
            return proposal
        filled = torch.zeros(len(limits), max(wanted), dtype=torch.long, device=proposal.tokens.device)
        filled[:, : proposal.width] = proposal.tokens
        return dataclasses.replace(proposal, tokens=filled, lengths=tuple(wanted))

    def observe(self, emitted: Sequence[Sequence[int]]) -> None:
        self.inner.observe(emitted)

    def keep(self, rows: list[int]) -> None:
        self.inner.keep(rows)

    def replay(
        self, sequences: Sequence[Sequence_], params: SamplingParams, depth: int
    ) -> Iterator[tuple[int, Replay]]:
        return self.inner.replay(sequences, params, depth)
