"""One teacher-forced pass of target and drafter over finished outputs: what the walk and the audit's figures need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specaudit.core.protocols import CausalModel, Drafter
from specaudit.core.types import Replay, SamplingParams, Transcript

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ScoredOutput:
    """One output's tokens with their log-probabilities; whole vocabularies are never kept.

    Attributes
    ----------
    index : int
        Which transcript.
    target_logprob : float[tokens]
    draft_logprob : float[tokens, depths]
        Log-probability under the draft at each depth: one column where only the prefix matters. Column d of token i
        is about a round that started d tokens before. ``-inf`` where another token, or none, was proposed.
    drafted : int[tokens]
        How many tokens a round that starts here would draft.
    entropy, overlap : float[tokens]
        Of the target's distribution, in nats; and ``sum(min(p, q))``, the acceptance of a token drafted at this prefix.
    """

    index: int
    tokens: NDArray[np.int64]
    target_logprob: Floats
    draft_logprob: Floats
    drafted: NDArray[np.int64]
    entropy: Floats
    overlap: Floats


def acceptance(target_logprob: Floats, draft_logprob: Floats) -> Floats:
    """``a[i, d] = min(1, q_d(x_i) / p(x_i))``: a token that was emitted was accepted with this probability."""
    # Where the draft gives no mass nothing was accepted, though the target's own mass may round to zero there as well
    # (a near tie at temperature zero, scored in another shape than it was decoded in).
    with np.errstate(invalid="ignore"):
        ratio = np.exp(np.minimum(0.0, draft_logprob - target_logprob[:, None]))
    return np.where(np.isneginf(draft_logprob), 0.0, ratio)


def score_outputs(
    target: CausalModel, drafter: Drafter, transcripts: Sequence[Transcript], params: SamplingParams, depth: int
) -> Iterator[ScoredOutput]:
    """Scores each transcript once, in ``core.sequences.scoring_order``; ``depth`` is the deepest draft looked at."""
    pairs = [(transcript.prompt_ids, transcript.output_ids) for transcript in transcripts]
    laws = target.conditionals(pairs, params)
    for (index, probs), (other, replay) in zip(laws, drafter.replay(pairs, params, depth), strict=True):
        assert index == other, "target and drafter must score in the same order"
        yield _scored(index, pairs[index][1], probs, replay, depth)


@torch.inference_mode()
def _scored(index: int, output: Sequence[int], probs: torch.Tensor, replay: Replay, depth: int) -> ScoredOutput:
    tokens = torch.tensor(list(output), dtype=torch.long, device=probs.device)
    target_logprob = probs.gather(1, tokens[:, None]).squeeze(1).double().log()
    entropy = torch.special.entr(probs).sum(-1)
    if replay.probs is not None:
        own = replay.probs.to(probs).gather(1, tokens[:, None]) if replay.token_probs is None else replay.token_probs
        draft_logprob = own.double().log()
        overlap = torch.minimum(probs, replay.probs.to(probs)).sum(-1)
        drafted = np.full(len(output), depth, dtype=np.int64)
        if replay.drafted is not None:
            drafted = replay.drafted.cpu().numpy()
    else:
        assert replay.chains is not None
        chains = replay.chains.to(probs.device)
        draft_logprob = _chain_logprob(chains, tokens)
        first = replay.first_tokens.to(probs.device)[:, None]
        overlap = torch.where(first >= 0, probs.gather(1, first.clamp(min=0)), 0.0).squeeze(1)
        drafted = (chains != -1).sum(-1).cpu().numpy()
    return ScoredOutput(
        index=index, tokens=tokens.cpu().numpy(), target_logprob=target_logprob.cpu().numpy(),
        draft_logprob=draft_logprob.cpu().numpy(), drafted=drafted, entropy=entropy.double().cpu().numpy(),
        overlap=overlap.double().cpu().numpy(),
    )  # fmt: skip


def _chain_logprob(chains: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Zero where the round that started d tokens before proposed this token at depth d, ``-inf`` elsewhere."""
    count, depth = chains.shape
    agreed = torch.zeros(count, depth, dtype=torch.bool, device=chains.device)
    for d in range(min(depth, count)):
        agreed[d:, d] = chains[: count - d, d] == tokens[d:]
    return torch.where(agreed, 0.0, -torch.inf).double()
