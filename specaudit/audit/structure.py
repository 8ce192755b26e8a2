"""What a transcript says of itself, checked exactly against its own lengths."""

from __future__ import annotations

from collections.abc import Sequence

from specaudit.audit.outcome import Test
from specaudit.core.types import Transcript

EXPLANATIONS = {
    "structure": "the transcripts contradict their own round counts or limits",
    "declared_lossy": "the transcripts name a verification rule that does not preserve the target's distribution",
}


def tests(transcripts: Sequence[Transcript]) -> list[Test]:
    """How many claim rounds that do not add up to their output, and how many call themselves lossy.

    Every round emits its accepted tokens and one more; only the last may be cut short. No amount of agreement makes
    lossless what declares itself lossy.
    """
    wrong = sum(not adds_up(transcript) for transcript in transcripts)
    declared = sum(not transcript.engine.get("preserves_target", True) for transcript in transcripts)
    counts = {"structure": wrong, "declared_lossy": declared}
    return [Test(name, float(count), count > 0) for name, count in counts.items()]


def adds_up(transcript: Transcript) -> bool:
    """Whether its rounds, if it names any, account for its output."""
    if transcript.rounds is None:
        return True
    if any(count < 0 for count in transcript.rounds):
        return False
    claimed = sum(transcript.rounds) + len(transcript.rounds)
    return claimed - 1 <= len(transcript.output_ids) <= claimed
