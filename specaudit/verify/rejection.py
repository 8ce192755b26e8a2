"""Speculative sampling of a chain (Leviathan et al. arXiv:2211.17192 alg. 1; Chen et al. arXiv:2302.01318 alg. 2)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specaudit.core.sampling import sample
from specaudit.core.types import Proposal, Verification
from specaudit.verify import tree


class RejectionVerifier:
    """Accept x with min(1, p(x)/q(x)); on rejection draw from norm(max(0, p - q)); after k acceptances draw from p.

    In a tree the rejected token's next sibling is tried first.
    """

    name = "rejection"
    preserves_target = True

    def __call__(
        self,
        target_probs: Float[Tensor, "batch nodes vocab"],
        proposal: Proposal | None,
        uniforms: Float[Tensor, "batch nodes"],
    ) -> Verification:
        if proposal is not None and proposal.tree is not None:
            return tree.verify(target_probs, proposal, uniforms)
        return verify(target_probs, proposal, uniforms)


def verify(
    target_probs: Float[Tensor, "batch nodes vocab"],
    proposal: Proposal | None,
    uniforms: Float[Tensor, "batch nodes"],
) -> Verification:
    """One round of speculative sampling for a batch of chains.

    Parameters
    ----------
    target_probs : Float[Tensor, "batch nodes vocab"]
        The target's processed distribution at the root and after each proposed token; ``nodes >= width + 1``.
    proposal : Proposal or None
        The chains; None proposes nothing, and the extra token is drawn from the root.
    uniforms : Float[Tensor, "batch nodes"]
        In [0, 1): column ``d < width`` decides node ``d``, the last column draws the extra token.

    Returns
    -------
    Verification
        A node is accepted where ``u q(x) < p(x)``. Where the residual mass at a rejected node rounds to zero, p and q
        are equal to rounding, and the extra token is drawn from p: accepting the rejected one could emit a token that
        the target gives no mass.
    """
    rows = torch.arange(target_probs.shape[0], device=target_probs.device)
    if proposal is None or proposal.width == 0:
        accepted = torch.zeros_like(rows)
        return Verification(accepted, sample(target_probs[:, 0], uniforms[:, -1]), torch.ones_like(rows).bool())
    lengths = torch.tensor(proposal.lengths, device=rows.device)
    accept = acceptances(target_probs, proposal, uniforms, lengths)
    accepted = accept.long().cumprod(-1).sum(-1)
    bonus = accepted == lengths
    weights = target_probs[rows, accepted]
    if not bool(bonus.all()):
        residual = _residual(weights, proposal, rows, accepted.clamp(max=proposal.width - 1))
        from_target = bonus | (residual.sum(-1) <= 0)
        weights = torch.where(from_target.unsqueeze(-1), weights, residual)
    return Verification(accepted, sample(weights, uniforms[:, -1]), bonus)


def acceptances(
    target_probs: Float[Tensor, "batch nodes vocab"],
    proposal: Proposal,
    uniforms: Float[Tensor, "batch nodes"],
    lengths: Int[Tensor, " batch"],
) -> Bool[Tensor, "batch width"]:
    """Each node's own decision, as if all before it had been accepted; False beyond a row's length."""
    width = proposal.width
    tokens = proposal.tokens.unsqueeze(-1)
    target_mass = target_probs[:, :width].gather(-1, tokens).squeeze(-1)
    needed = uniforms[:, :width].double()
    if not isinstance(proposal.draft_probs, str):
        needed = needed * proposal.draft_probs.gather(-1, tokens).squeeze(-1)
    # Strictly below, in products: u = 0 must not accept a token that the target never emits.
    accept = needed < target_mass
    if min(proposal.lengths) < width:
        accept &= torch.arange(width, device=accept.device) < lengths.unsqueeze(-1)
    return accept


def _residual(
    probs: Float[Tensor, "batch vocab"], proposal: Proposal, rows: Int[Tensor, " batch"], node: Int[Tensor, " batch"]
) -> Float[Tensor, "batch vocab"]:
    """max(0, p - q) at each row's node, not normalised."""
    if isinstance(proposal.draft_probs, str):
        residual = probs.clone()
        residual[rows, proposal.tokens[rows, node]] = 0.0
        return residual
    return (probs - proposal.draft_probs[rows, node]).clamp_(min=0.0)
