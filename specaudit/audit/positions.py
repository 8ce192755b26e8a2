"""Where in its round a token stands, as far as a transcript tells."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specaudit.audit.structure import adds_up
from specaudit.core.types import Transcript

ROUND = 1 << 20  # more tokens than any round emits


def bonus_positions(transcript: Transcript) -> NDArray[np.bool_] | None:
    """Which output tokens follow a fully accepted draft, or None where that is not known.

    A token's depth in its round is known before the token: the round is still open, so all before it in the round was
    accepted. It is a bonus where it stands as deep as the round could draft, which is ``engine["k"]``, or less at the
    end of ``engine["max_new_tokens"]``. Where a drafter proposed less than it could, a bonus passes for a drafted
    token.
    """
    k, budget = transcript.engine.get("k"), transcript.engine.get("max_new_tokens")
    if transcript.rounds is None or not isinstance(k, int) or k < 1 or not adds_up(transcript):
        return None
    bonus = np.zeros(len(transcript.output_ids), dtype=np.bool_)
    start = 0
    for accepted in transcript.rounds:
        deepest = k if not isinstance(budget, int) else max(0, min(k, budget - start - 1))
        if accepted >= deepest:
            bonus[start + deepest : start + deepest + 1] = True  # none where the output ended before it
        start += accepted + 1
    return bonus


def depths(transcript: Transcript) -> NDArray[np.int64]:
    """How many tokens of its round stand before each output token: 0 for the first; -1 where that is not known."""
    if transcript.rounds is None or not adds_up(transcript):
        return np.full(len(transcript.output_ids), -1)
    inside = [np.arange(accepted + 1) for accepted in transcript.rounds]
    return np.concatenate([*inside, np.zeros(0, dtype=np.int64)])[: len(transcript.output_ids)]


def places(transcript: Transcript) -> NDArray[np.int64]:
    """Round and depth in it of every output token, as one number; its depth is what `ROUND` leaves over.

    Where the rounds are not known every token is a round, as it is for a decoder that drafts nothing.
    """
    depth = depths(transcript)
    if depth.size and depth[0] < 0:
        return np.arange(depth.size) * ROUND
    return (np.cumsum(depth == 0) - 1) * ROUND + depth
