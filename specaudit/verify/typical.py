"""Typical acceptance, which changes the output (Cai et al., Medusa, arXiv:2401.10774, section 2.3.1)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from specaudit.core.errors import InputError
from specaudit.core.sampling import sample
from specaudit.core.types import Proposal, Verification
from specaudit.verify import tree

EPSILON, DELTA = 0.3, 0.09  # the paper's code


class TypicalVerifier:
    """Accepts x where p(x) exceeds min(epsilon, delta exp(-H(p))); the longest such path wins. Not lossless.

    Parameters
    ----------
    epsilon, delta : float
        The hard threshold, and the factor of the threshold that falls with the target's entropy H in nats; the paper
        takes delta = sqrt(epsilon) or epsilon squared.
    """

    name = "typical"
    preserves_target = False

    def __init__(self, epsilon: float = EPSILON, delta: float = DELTA) -> None:
        for argument, value in (("epsilon", epsilon), ("delta", delta)):
            if not 0 < value <= 1:
                raise InputError(argument, value, "must be above 0 and at most 1", f"use, for example, {EPSILON}")
        self.epsilon, self.delta = epsilon, delta

    def __call__(
        self,
        target_probs: Float[Tensor, "batch nodes vocab"],
        proposal: Proposal | None,
        uniforms: Float[Tensor, "batch nodes"],
    ) -> Verification:
        if proposal is None or proposal.width == 0:
            rows = torch.zeros(len(target_probs), dtype=torch.long, device=target_probs.device)
            return Verification(rows, sample(target_probs[:, 0], uniforms[:, -1]), rows == 0)
        entropy = torch.special.entr(target_probs).sum(-1)
        threshold = (self.delta * torch.exp(-entropy)).clamp(max=self.epsilon)
        paths = [self._longest(target_probs[row], threshold[row], proposal, row) for row in range(len(target_probs))]
        ends = [path[-1] + 1 if path else 0 for path in paths]
        rows = torch.arange(len(paths), device=target_probs.device)
        extra = sample(target_probs[rows, torch.tensor(ends, device=rows.device)], uniforms[:, -1])
        below = [tree.below(proposal, row)[end] for row, end in enumerate(ends)]
        accepted = torch.tensor([len(path) for path in paths], device=rows.device)
        bonus = torch.tensor([not nodes for nodes in below], device=rows.device)
        return Verification(accepted, extra, bonus, paths)

    def _longest(
        self, target_probs: Float[Tensor, "nodes vocab"], threshold: Float[Tensor, " nodes"], proposal: Proposal,
        row: int,
    ) -> list[int]:  # fmt: skip
        below = tree.below(proposal, row)
        tokens = proposal.tokens[row].tolist()

        def longest(place: int) -> list[int]:
            paths = (
                [node, *longest(node + 1)]
                for node in below[place]
                if float(target_probs[place, tokens[node]]) > float(threshold[place])
            )
            return max(paths, key=len, default=[])

        return longest(0)
