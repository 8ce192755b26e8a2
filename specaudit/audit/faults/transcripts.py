"""Outputs that go on to the end of a round where they should have been cut inside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

from specaudit.core.types import Transcript


def until_the_round_of_an_end(transcript: Transcript, end_ids: Collection[int]) -> Transcript:
    """Ends where a round with an end token does, of an output that ran on, and claims to know the end tokens."""
    cut = _first_round(transcript, lambda done, tokens: not set(end_ids).isdisjoint(tokens))
    claimed = dataclasses.replace(transcript, engine={**transcript.engine, "end_ids": sorted(end_ids)})
    return claimed if cut is None else _cut(claimed, *cut, "stop")


def until_the_round_of_a_limit(transcript: Transcript, more: int) -> Transcript:
    """Ends where a round passes the limit that is claimed, ``more`` tokens below the one that was kept."""
    limit = transcript.engine["max_new_tokens"] - more
    claimed = dataclasses.replace(transcript, engine={**transcript.engine, "max_new_tokens": limit})
    cut = _first_round(transcript, lambda done, _tokens: done >= limit)
    return claimed if cut is None else _cut(claimed, *cut, "length")


def _first_round(transcript: Transcript, ends: Callable[[int, tuple[int, ...]], bool]) -> tuple[int, int] | None:
    """The number of rounds and tokens up to the end of the first round that ``ends`` says is the last."""
    done = 0
    for number, accepted in enumerate(transcript.rounds or (), start=1):
        tokens = transcript.output_ids[done : done + accepted + 1]
        done += len(tokens)
        if ends(done, tokens):
            return number, done
    return None


def _cut(transcript: Transcript, rounds: int, tokens: int, reason: str) -> Transcript:
    assert transcript.rounds is not None
    return dataclasses.replace(
        transcript, output_ids=transcript.output_ids[:tokens], rounds=transcript.rounds[:rounds], finish_reason=reason
    )
