"""Verifiers that go wrong, for planting in the real decoder; each says what it does wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from specaudit.audit.faults.drafters import KeepsOneMore, RemembersUniforms, gumbel_choice
from specaudit.core.protocols import Verifier
from specaudit.core.sampling import sample
from specaudit.core.types import Proposal, Verification
from specaudit.verify import RejectionVerifier

Probs = Float[Tensor, "batch vocab"]
Uniforms = Float[Tensor, "batch nodes"]


class Claiming:
    """A verifier that calls itself rejection sampling, whatever it does: nothing in a transcript gives it away."""

    name, preserves_target = "rejection", True

    def __init__(self, rule: Verifier | None = None) -> None:
        self.rule = rule if rule is not None else RejectionVerifier()

    def __call__(
        self, target_probs: Float[Tensor, "batch nodes vocab"], proposal: Proposal | None, uniforms: Uniforms
    ) -> Verification:
        return self.rule(target_probs, proposal, uniforms)


class Decides(Claiming):
    """Accepts and rejects by changed uniforms; the extra token is drawn by the right one."""

    def __init__(self, change: Callable[[Uniforms], Uniforms]) -> None:
        super().__init__()
        self.change = change

    def __call__(
        self, target_probs: Float[Tensor, "batch nodes vocab"], proposal: Proposal | None, uniforms: Uniforms
    ) -> Verification:
        return self.rule(target_probs, proposal, torch.cat([self.change(uniforms[:, :-1]), uniforms[:, -1:]], dim=1))


class AcceptsAll(Claiming):
    """Verifies nothing: every drafted token is accepted, and the bonus follows."""

    def __call__(
        self, target_probs: Float[Tensor, "batch nodes vocab"], proposal: Proposal | None, uniforms: Uniforms
    ) -> Verification:
        if proposal is None:
            return self.rule(target_probs, proposal, uniforms)
        accepted = torch.tensor(proposal.lengths, device=target_probs.device)
        bonus = sample(target_probs[torch.arange(len(accepted)), accepted], uniforms[:, -1])
        return Verification(accepted, bonus, torch.ones_like(accepted, dtype=torch.bool))


class OneUniform(Claiming):
    """The seed is set anew inside the loop over nodes: every decision of a round has the same uniform."""

    def __call__(
        self, target_probs: Float[Tensor, "batch nodes vocab"], proposal: Proposal | None, uniforms: Uniforms
    ) -> Verification:
        return self.rule(target_probs, proposal, uniforms[:, :1].expand_as(uniforms))


class Replaces(Claiming):
    """Draws the token after a rejection, or the bonus, from other weights than it should.

    Parameters
    ----------
    weights : callable
        Of p, and of q at the rejected token; where nothing was rejected q is that of the last one drafted.
    bonus : bool
        Whether the bonus is replaced, or the token after a rejection.
    """

    def __init__(self, weights: Callable[[Probs, Probs], Probs], *, bonus: bool) -> None:
        super().__init__()
        self.weights, self.bonus = weights, bonus

    def __call__(
        self, target_probs: Float[Tensor, "batch nodes vocab"], proposal: Proposal | None, uniforms: Uniforms
    ) -> Verification:
        right = self.rule(target_probs, proposal, uniforms)
        if proposal is None or not proposal.width:
            return right
        assert not isinstance(proposal.draft_probs, str)
        rows = torch.arange(len(right.accepted), device=target_probs.device)
        q = proposal.draft_probs[rows, right.accepted.clamp(max=proposal.width - 1)]
        drafted = torch.tensor(proposal.lengths, device=rows.device) > 0
        anew = sample(self.weights(target_probs[rows, right.accepted], q), uniforms[:, -1])
        replaced = torch.where(drafted & (right.bonus == self.bonus), anew, right.extra_token)
        return dataclasses.replace(right, extra_token=replaced)


class BonusFrom(Claiming):
    """Draws the bonus from the draft's law."""

    def __init__(self, drafter: KeepsOneMore) -> None:
        super().__init__()
        self.drafter = drafter

    def __call__(
        self, target_probs: Float[Tensor, "batch nodes vocab"], proposal: Proposal | None, uniforms: Uniforms
    ) -> Verification:
        right = self.rule(target_probs, proposal, uniforms)
        assert self.drafter.law is not None
        anew = sample(self.drafter.law, uniforms[:, -1])
        return dataclasses.replace(right, extra_token=torch.where(right.bonus, anew, right.extra_token))


class SharesNoise(Claiming):
    """Draws the token after a rejection with the noise that drew the rejected one."""

    def __init__(self, drafter: RemembersUniforms) -> None:
        super().__init__()
        self.drafter = drafter

    def __call__(
        self, target_probs: Float[Tensor, "batch nodes vocab"], proposal: Proposal | None, uniforms: Uniforms
    ) -> Verification:
        right = self.rule(target_probs, proposal, uniforms)
        if proposal is None or not proposal.width:
            return right
        assert not isinstance(proposal.draft_probs, str)
        rows = torch.arange(len(right.accepted), device=target_probs.device)
        node = right.accepted.clamp(max=proposal.width - 1)
        residual = (target_probs[rows, right.accepted] - proposal.draft_probs[rows, node]).clamp(min=0.0)
        anew = gumbel_choice(residual, self.drafter.uniforms[rows, node])
        return dataclasses.replace(right, extra_token=torch.where(right.bonus, right.extra_token, anew))


class AcceptsEqual(Claiming):
    """No fault: draws the target's own token at every node, and accepts as far as the draft has the same."""

    def __call__(
        self, target_probs: Float[Tensor, "batch nodes vocab"], proposal: Proposal | None, uniforms: Uniforms
    ) -> Verification:
        width = proposal.width if proposal is not None else 0
        rows = target_probs[:, : width + 1]
        own = sample(rows.flatten(0, 1), uniforms[:, : width + 1].flatten()).view(len(rows), -1)
        lengths = torch.tensor(proposal.lengths if proposal is not None else [0] * len(rows), device=own.device)
        equal = torch.arange(width, device=own.device) < lengths.unsqueeze(-1)
        if proposal is not None:
            equal &= own[:, :width] == proposal.tokens
        accepted = equal.long().cumprod(-1).sum(-1)
        return Verification(accepted, own.gather(1, accepted.unsqueeze(1)).squeeze(1), accepted == lengths)
