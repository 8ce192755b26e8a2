"""What audits have in common, with weights or without: a test's outcome, and one setting for all transcripts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from specaudit.core.errors import InputError
from specaudit.core.types import SamplingParams, Transcript

MISSED_RATE = 0.05


@dataclass(frozen=True)
class Test:
    """One test of the audit: a p-value or a log10 e-value, and whether it passed its share of the error budget."""

    name: str
    statistic: float
    flagged: bool
    p_value: float | None = None
    log10_e: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


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
        raise InputError(argument, differing, problem, "audit one setting at a time")
    return kinds.pop()
