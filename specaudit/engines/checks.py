"""What must hold for transcripts before a target scores them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import fields

from specaudit.core.errors import InputError
from specaudit.core.protocols import CausalModel
from specaudit.core.types import SamplingParams, Transcript


def one_setting(
    transcripts: Sequence[Transcript], argument: str = "transcripts", *, tokens_needed: bool = True
) -> SamplingParams:
    """The sampling parameters that all transcripts share, without a seed.

    Raises
    ------
    InputError
        If there is no output token, or parameters differ.
    """
    if not transcripts or (tokens_needed and not any(transcript.output_ids for transcript in transcripts)):
        raise InputError(argument, len(transcripts), "hold no output token", "give outputs of at least one token")
    kinds = {dataclasses.replace(transcript.sampling, seed=0) for transcript in transcripts}
    if len(kinds) > 1:
        values = {field.name: sorted({getattr(kind, field.name) for kind in kinds}) for field in fields(SamplingParams)}
        differing = {name: found for name, found in values.items() if len(found) > 1}
        problem = f"were made under different sampling parameters, {len(kinds)} settings in all"
        raise InputError(argument, differing, problem, "take one setting at a time")
    return kinds.pop()


def check_transcripts(target: CausalModel, transcripts: Sequence[Transcript]) -> SamplingParams:
    """Checks that a target can score transcripts; the sampling parameters that they share, without a seed.

    Raises
    ------
    InputError
        If sampling parameters differ, a prompt is empty, an id is outside the vocabulary, or the whole is longer than
        the target's context.
    """
    params = one_setting(transcripts, tokens_needed=False)
    if not all(transcript.prompt_ids for transcript in transcripts):
        raise InputError("transcripts", "an empty prompt", "has no token to condition on", "keep the first token")
    largest = max(max((*transcript.prompt_ids, *transcript.output_ids)) for transcript in transcripts)
    least = min(min((*transcript.prompt_ids, *transcript.output_ids)) for transcript in transcripts)
    if least < 0:
        raise InputError("transcripts", least, "is no token id", "leave out masked and padded places")
    if largest >= target.vocabulary:
        raise InputError(
            "transcripts", largest, f"a token id is outside the target's vocabulary of {target.vocabulary}",
            "score them with the model that made them",
        )  # fmt: skip
    longest = max(len(transcript.prompt_ids) + len(transcript.output_ids) for transcript in transcripts)
    # The last token is drawn and never read: it may stand one place behind the context.
    if longest > target.max_context + 1:
        raise InputError(
            "transcripts", f"{longest} tokens", f"{target.name}'s context holds {target.max_context}",
            "score them with the model that made them, or leave longer ones out",
        )  # fmt: skip
    return params
