"""The pieces of a profile: prompts to decode or outputs to read, scored one piece after another."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from specaudit.acceptance.pair import Pair, PromptSet, decoded_batches
from specaudit.acceptance.profile import K_MAX, token_table
from specaudit.acceptance.scoring import score_outputs
from specaudit.acceptance.shards import Shards
from specaudit.core.types import Limits, SamplingParams, Transcript
from specaudit.engines.checks import check_transcripts
from specaudit.engines.transcripts import in_pieces, read

PIECE = 128  # outputs that are scored together, and lost where a run is interrupted


# Outputs by their place in the data set, in batches that are made when they are asked for.
Piece = Callable[[], Iterable[Mapping[int, Transcript]]]


def of_prompts(
    pair: Pair, prompts: PromptSet, params: SamplingParams, limits: Limits, batch_size: int
) -> Iterator[Piece]:
    """The target's own outputs, decoded ``batch_size`` prompts of like length at a time."""

    def decoded(first: int) -> Iterator[dict[int, Transcript]]:
        piece = prompts.piece(first, PIECE)
        for batch in decoded_batches(pair, piece, params, limits, batch_size=batch_size, first=first):
            yield {first + index: transcript for index, transcript in batch.items()}

    for start in range(0, len(prompts.ids), PIECE):
        yield functools.partial(decoded, start)


def of_transcripts(path: Path) -> Iterator[Piece]:
    """Outputs of a file; those without a token are left out, and the others keep their place in the file."""
    places = itertools.count()
    for piece in in_pieces(read(path), PIECE):
        outputs = {next(places): transcript for transcript in piece}
        some = {place: transcript for place, transcript in outputs.items() if transcript.output_ids}
        yield lambda some=some: [some] if some else []


def budget_of(transcript: Transcript) -> int:
    """The ``max_new_tokens`` of an output, as far as it says: a round drafts at most one token less than is left."""
    said = transcript.engine.get("max_new_tokens")
    length = len(transcript.output_ids)
    if isinstance(said, int) and said >= length:
        return said
    return length if transcript.finish_reason == "length" else length + K_MAX


def score_pieces(pair: Pair, pieces: Iterable[Piece], shards: Shards) -> Iterator[int]:
    """Decodes and scores the pieces that no shard holds yet. Yields each place once it is decoded, and once scored.

    Raises
    ------
    InputError
        If the target cannot score an output.
    """
    assert pair.drafter is not None
    for number, piece in enumerate(pieces):
        if number in shards:
            continue
        outputs: dict[int, Transcript] = {}
        for batch in piece():
            outputs |= batch
            yield from batch
        if not outputs:
            continue
        places = sorted(outputs)
        transcripts = [outputs[place] for place in places]
        params = check_transcripts(pair.target, transcripts)
        scored = []
        for output in score_outputs(pair.target, pair.drafter, transcripts, params, K_MAX):
            scored.append(output)
            yield places[output.index]
        budgets = [budget_of(transcript) for transcript in transcripts]
        shards.add(number, token_table(scored, transcripts, budgets, places))
