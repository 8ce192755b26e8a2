"""Rounds of a chosen shape, so that their cost does not depend on a draft's luck."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from specaudit.core.errors import InputError
from specaudit.core.protocols import Drafter, Target, Verifier
from specaudit.core.sequences import Sequence_
from specaudit.core.types import Proposal, Replay, SamplingParams, Verification


class ForcedVerifier:
    """Does the whole work of a real verifier, then accepts a scheduled number of tokens instead.

    Row r accepts ``(turn + r) mod (width + 1)`` tokens: every count in turn, and rows of a batch apart from each other.
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
        counts = [min((self.turn + row) % (proposal.width + 1), n) for row, n in enumerate(proposal.lengths)]
        self.turn += 1
        accepted = torch.tensor(counts, device=real.accepted.device)
        return Verification(accepted, real.extra_token, accepted == torch.tensor(proposal.lengths).to(accepted))


class FixedWidthDrafter:
    """Lets a drafter do its work and then proposes exactly ``width`` tokens a row, as far as the row has room.

    A drafter that found fewer (prompt lookup) has its chain filled up with token 0, which costs the target the same.
    """

    def __init__(self, inner: Drafter, width: int) -> None:
        self.inner, self.width, self.name = inner, width, inner.name
        self.hidden_layers = inner.hidden_layers

    def room(self, k: int) -> tuple[int, int]:
        nodes, width = self.inner.room(k)
        return max(nodes, self.width), max(width, self.width)

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int, target: Target) -> None:
        self.inner.start(prompts, params, capacity, target)

    def propose(self, limits: Sequence[int], uniforms: Float[Tensor, "batch k"]) -> Proposal:
        wanted = [min(limit, self.width) for limit in limits]
        proposal = self.inner.propose(wanted, uniforms)
        if proposal.tree is not None:  # its cost depends on the tree and its extra tokens, and a path is no prefix
            raise InputError(
                "--draft", self.name, "it proposes token trees, and costs are measured of chains only",
                "use generate, profile or audit, or a drafter of chains",
            )  # fmt: skip
        if not isinstance(proposal.draft_probs, str):
            return proposal
        filled = torch.zeros(len(limits), max(wanted), dtype=torch.long, device=proposal.tokens.device)
        filled[:, : proposal.width] = proposal.tokens
        return Proposal(filled, tuple(wanted), "point_mass")

    def observe(self, emitted: Sequence[Sequence[int]]) -> None:
        self.inner.observe(emitted)

    def keep(self, rows: list[int]) -> None:
        self.inner.keep(rows)

    def replay(
        self, sequences: Sequence[Sequence_], params: SamplingParams, depth: int
    ) -> Iterator[tuple[int, Replay]]:
        return self.inner.replay(sequences, params, depth)
