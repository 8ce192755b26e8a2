"""A chain drawn token by token from a draft's processed distribution, which every drafter of chains shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from specaudit.core.sampling import TokenCounts, penalise, processed_probs, sample
from specaudit.core.types import Proposal, SamplingParams


def nothing(batch: int, device: torch.device) -> Proposal:
    """No proposal for any row: a round gives the target's own next token."""
    return Proposal(torch.zeros(batch, 0, dtype=torch.long, device=device), (0,) * batch, "point_mass")


def draw_chain(
    logits_after: Callable[[Int[Tensor, " batch"] | None], Float[Tensor, "batch vocab"]],
    depth: int,
    params: SamplingParams,
    counts: TokenCounts | None,
    uniforms: Float[Tensor, "batch k"],
) -> tuple[Int[Tensor, "batch depth"], Float[Tensor, "batch depth vocab"] | Literal["point_mass"]]:
    """``depth`` tokens a row, and the distributions that they were drawn from.

    Parameters
    ----------
    logits_after : callable
        The draft's logits after the token just drawn; after each row's root where that is None.
    depth : int
        At least one and at most ``k``.
    counts : TokenCounts, optional
        Of the committed text, where there are penalties.

    Returns
    -------
    tokens : Int[Tensor, "batch depth"]
    draft_probs : Float[Tensor, "batch depth vocab"] or "point_mass"
        Greedy decoding proposes the most probable token and calls it a point mass.
    """
    tokens: list[Tensor] = []
    probs: list[Tensor] = []
    for step in range(depth):
        logits = logits_after(tokens[-1] if tokens else None)
        if counts is not None:
            logits = _penalised(logits, counts, tokens, params)
        if params.greedy:
            tokens.append(logits.argmax(-1))
        else:
            probs.append(processed_probs(logits, params))
            tokens.append(sample(probs[-1], uniforms[:, step]))
    return torch.stack(tokens, 1), torch.stack(probs, 1) if probs else "point_mass"


def _penalised(
    logits: Float[Tensor, "batch vocab"], counts: TokenCounts, drafted: list[Tensor], params: SamplingParams
) -> Float[Tensor, "batch vocab"]:
    chain = torch.stack(drafted, 1) if drafted else torch.zeros(len(logits), 0, dtype=torch.long, device=logits.device)
    return penalise(logits.float(), counts.prompt, counts.along(chain)[:, -1], params)
