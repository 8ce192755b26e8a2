"""Profiles side by side: the same prompts under several drafters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specaudit.acceptance.intervals import CONFIDENCE, RESAMPLES
from specaudit.acceptance.profile import AcceptanceProfile, read
from specaudit.core.errors import InputError
from specaudit.stats import percentile_interval, ratio_bootstrap

SHOWN = ("draft", "target", "prompts", "tokens", "alpha", "alpha_interval", "tokens_per_round")
SHOWN += ("tokens_per_round_interval", "by_category")


def compare(folders: Sequence[Path], seed: int = 0) -> dict[str, Any]:
    """The figures of each profile, and its tokens per round over the first one's, prompt by prompt.

    Returns
    -------
    dict
        ``profiles``: a row a folder, in order. In each ``over_first`` is by k the ratio of its tokens per round to the
        first profile's with an interval bootstrapped by prompt, the same prompts drawn for both; it is null where the
        two are not of the same target, prompts and sampling parameters, and ``differs`` then says in what.

    Raises
    ------
    InputError
        If a folder is no profile, or there is one folder alone.
    """
    if len(folders) < 2:
        raise InputError("PROFILE", str(*folders), "one profile has nothing beside it", "name two or more folders")
    read_ones = [read(folder, "PROFILE") for folder in folders]
    (first, first_artifact), rows = read_ones[0], []
    for folder, (profile, artifact) in zip(folders, read_ones, strict=True):
        differs = _differs(first, first_artifact, profile, artifact)
        row: dict[str, Any] = {"profile": str(folder), **{name: artifact[name] for name in SHOWN}, "differs": differs}
        row["over_first"] = None if differs or profile is first else _over(first, profile, np.random.default_rng(seed))
        rows.append(row)
    return {"profiles": rows}


def _differs(
    first: AcceptanceProfile, first_artifact: dict[str, Any], other: AcceptanceProfile, artifact: dict[str, Any]
) -> list[str]:
    """In what two profiles differ beside the draft; where in nothing, a prompt of one is a prompt of the other."""
    facts = [(each["provenance"], each["sampling"]) for each in (first_artifact, artifact)]
    named = {
        "target": [where_from.get("target_content") for where_from, _ in facts],
        "data set": [
            (where_from.get("dataset_fingerprint"), where_from.get("transcripts_content")) for where_from, _ in facts
        ],
        "sampling parameters": [{**sampling, "seed": 0} for _, sampling in facts],
        "prompts": [first.prompts, other.prompts],
    }
    return [name for name, (one, two) in named.items() if one != two]


def _over(first: AcceptanceProfile, other: AcceptanceProfile, generator: np.random.Generator) -> dict[str, Any]:
    k_max = min(first.walk.rounds.shape[1], other.walk.rounds.shape[1])
    rounds = np.concatenate([each.walk.rounds[:, :k_max] for each in (first, other)], axis=1)
    tokens = np.repeat(np.stack([first.lengths, other.lengths], axis=1).astype(float), k_max, axis=1)
    one, two = np.split(tokens.sum(0) / rounds.sum(0), 2)
    ends = np.full((2, k_max), np.nan)
    if len(tokens) > 1:
        samples = np.split(ratio_bootstrap(tokens, rounds, RESAMPLES, generator), 2, axis=1)
        ends = percentile_interval(samples[1] / samples[0], CONFIDENCE)
    found = zip((two / one).tolist(), ends.T.tolist(), strict=True)
    return {str(k): {"ratio": ratio, "interval": interval} for k, (ratio, interval) in enumerate(found, start=1)}
