"""Tokens just outside a cut of the vocabulary: another machine's arithmetic may have put them inside."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from specaudit.core.sampling import processed_probs
from specaudit.core.types import SamplingParams

SUMMED = 1e-5  # float32 sums of probabilities over a vocabulary of 10^5 differ by this with their order


@torch.inference_mode()
def boundary_tokens(
    logits: Float[Tensor, "tokens vocab"], tokens: Int[Tensor, " tokens"], params: SamplingParams, margin: float
) -> Bool[Tensor, " tokens"]:
    """Which tokens have no processed probability here, and may have some where logits are within the machine's noise.

    Every such token is marked: with ``m = margin / temperature``, no change of the logits that moves no gap between two
    of them by more than the margin can bring in another. The bounds, for a token ``x`` of scaled logit ``z_x``:

    - top_k: fewer than k tokens have ``z > z_x + m``, since only those stay above it for certain;
    - top_p: their mass A among the tokens that top_k may keep, lowered to ``A exp(-m) / (A exp(-m) + 1 - A)``, is below
      top_p or within the rounding of its sum;
    - min_p: the largest logit is at most ``m - log(min_p)`` above it.

    Parameters
    ----------
    logits : Float[Tensor, "tokens vocab"]
        The target's, after the penalties.
    tokens : Int[Tensor, "tokens"]
        The token emitted at each.
    params : SamplingParams
        Of a temperature above zero.
    margin : float
        Nats by which the gap between two logits may differ from one machine to another, zero or more.

    Returns
    -------
    Bool[Tensor, "tokens"]
        False inside the support, and outside of it where the cut cannot be to blame.
    """
    place = tokens.to(logits.device)[:, None]
    outside = processed_probs(logits, params).gather(1, place).squeeze(1) <= 0
    scaled, slack = logits.double() / params.temperature, margin / params.temperature
    own = scaled.gather(1, place)
    above = scaled > own + slack
    kept = torch.ones_like(above)
    may = own.squeeze(1) > -torch.inf
    if params.top_k:
        k = min(params.top_k, scaled.shape[1])
        may &= above.sum(-1) < k
        kept = scaled >= scaled.topk(k).values[:, -1:] - slack
    if params.top_p < 1.0:
        law = torch.where(kept, scaled, -torch.inf).softmax(-1)
        mass = (law * above).sum(-1)
        lowered = mass * math.exp(-slack)
        may &= lowered / (lowered + 1.0 - mass) < params.top_p + SUMMED
    if params.min_p > 0.0:
        may &= scaled.amax(-1) - own.squeeze(1) <= slack - math.log(params.min_p)
    return outside & may
