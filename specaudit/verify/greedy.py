"""Greedy verification: accept while the target's argmax agrees."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from specaudit.core.types import Proposal, Verification
from specaudit.verify import tree


class GreedyVerifier:
    """Accepts the longest path that the target's argmax agrees with; the extra token is its argmax."""

    name = "greedy"
    preserves_target = True

    def __call__(
        self,
        target_probs: Float[Tensor, "batch nodes vocab"],
        proposal: Proposal | None,
        uniforms: Float[Tensor, "batch nodes"],
    ) -> Verification:
        if proposal is not None and proposal.tree is not None:
            return tree.verify_greedy(target_probs, proposal)
        return verify(target_probs, proposal)


def verify(target_probs: Float[Tensor, "batch nodes vocab"], proposal: Proposal | None) -> Verification:
    """One greedy round. ``target_probs`` may be probabilities or logits: only their argmax is read."""
    best = target_probs.argmax(-1)
    rows = torch.arange(best.shape[0], device=best.device)
    if proposal is None or proposal.width == 0:
        return Verification(torch.zeros_like(rows), best[:, 0], torch.ones_like(rows).bool())
    lengths = torch.tensor(proposal.lengths, device=best.device)
    inside = torch.arange(proposal.width, device=best.device) < lengths.unsqueeze(-1)
    agreed = (best[:, : proposal.width] == proposal.tokens) & inside
    accepted = agreed.long().cumprod(-1).sum(-1)
    return Verification(accepted, best[rows, accepted], accepted == lengths)
