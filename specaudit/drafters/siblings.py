"""Children of a node, drawn one after another without replacement (Chen et al., Sequoia, arXiv:2402.12374).

Each child's own law is its parent's without the siblings before it, renormalised; ``verify.tree`` needs these laws.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from specaudit.core.sampling import processed_probs, sample
from specaudit.core.types import SamplingParams


class Siblings:
    """The law of the next child of each of some nodes.

    Where the processed distribution has no token left, as under a tight ``top_p``, the next child is the most probable
    token of the unprocessed one that is not a sibling yet: a point mass.

    Parameters
    ----------
    logits : Float[Tensor, "*nodes vocab"]
        The draft's, penalised.
    params : SamplingParams
        Not greedy.
    """

    def __init__(self, logits: Float[Tensor, "*nodes vocab"], params: SamplingParams) -> None:
        self.weights, self.logits = processed_probs(logits, params), logits.float().clone()

    def law(self) -> Float[Tensor, "*nodes vocab"]:
        total = self.weights.sum(-1, keepdim=True)
        fallback = one_hot(self.logits.argmax(-1), self.logits.shape[-1]).to(total)
        return torch.where(total > 0, self.weights / total, fallback)

    def without(self, tokens: Int[Tensor, "*nodes"]) -> None:
        """Takes each node's newest child out of the laws of the next."""
        self.weights.scatter_(-1, tokens.unsqueeze(-1), 0.0)
        self.logits.scatter_(-1, tokens.unsqueeze(-1), -torch.inf)


def draw_siblings(
    logits: Float[Tensor, "batch parents vocab"], params: SamplingParams, uniforms: Float[Tensor, "batch parents m"]
) -> tuple[Int[Tensor, "batch parents m"], Float[Tensor, "batch parents m vocab"]]:
    """``m`` children of each parent, with their own uniforms, and the law that each was drawn from."""
    siblings = Siblings(logits, params)
    tokens, laws = [], []
    for number in range(uniforms.shape[-1]):
        law = siblings.law()
        token = sample(law.flatten(0, -2), uniforms[..., number].flatten()).view(law.shape[:-1])
        siblings.without(token)
        tokens.append(token)
        laws.append(law)
    return torch.stack(tokens, -1), torch.stack(laws, -2)


def accepted_mass(
    target_probs: Float[Tensor, "tokens vocab"],
    logits: Float[Tensor, "tokens vocab"],
    params: SamplingParams,
    children: int,
    emitted: Int[Tensor, " tokens"],
    generator: torch.Generator,
) -> Float[Tensor, " tokens"]:
    """The probability that ``emitted`` is emitted and is an accepted child, unbiased and at most its target mass.

    While child j is tried, the mass of the emitted token that is accepted there is ``min(p, q)``, with p and q as the
    earlier rejections left them. The second child's term is a sum over the first and so on, so one path of rejected
    siblings is drawn: a rejected child has the law ``norm(max(0, q - p))``.
    """
    siblings, own = Siblings(logits, params), emitted.unsqueeze(-1)
    accepted = torch.zeros(len(emitted), dtype=torch.float64, device=logits.device)
    left, reached = target_probs.double(), torch.ones_like(accepted)
    for number in range(children):
        law = siblings.law().double()
        accepted += reached * torch.minimum(left, law).gather(-1, own).squeeze(-1)
        if number + 1 == children:
            break
        refused, residual = (law - left).clamp_(min=0.0), (left - law).clamp_(min=0.0)
        mass = residual.sum(-1)
        reached = reached * mass
        # Where nothing is refused, nothing is reached: any sibling and any p will do.
        refused[:, 0] += (refused.sum(-1) <= 0).to(refused)
        siblings.without(sample(refused, torch.rand(len(refused), generator=generator, dtype=torch.float64).to(mass)))
        left = residual / mass.clamp(min=torch.finfo(mass.dtype).tiny).unsqueeze(-1)
    return accepted
