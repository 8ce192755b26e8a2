"""What a transcript says of itself, checked exactly against its own lengths."""

from __future__ import annotations

from collections.abc import Sequence

from specaudit.core.types import Transcript


def check(transcripts: Sequence[Transcript]) -> int:
    """How many transcripts claim rounds that do not add up to their output.

    Every round emits its accepted tokens and one more; only the last may be cut short.
    """
    return sum(1 for transcript in transcripts if not adds_up(transcript))


def adds_up(transcript: Transcript) -> bool:
    """Whether its rounds, if it names any, account for its output."""
    if transcript.rounds is None:
        return True
    if any(count < 0 for count in transcript.rounds):
        return False
    claimed = sum(transcript.rounds) + len(transcript.rounds)
    return claimed - 1 <= len(transcript.output_ids) <= claimed
