"""The acceptance profile: alpha by depth and tokens per round for every k, with intervals by prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from specaudit.acceptance.intervals import MINIMUM_PROMPTS, interval
from specaudit.acceptance.scoring import ScoredOutput, acceptance, score_outputs
from specaudit.acceptance.views import views
from specaudit.acceptance.walk import Walk, geometric, uniform_starts, walk
from specaudit.core.artifacts import atomic_folder, read_json, to_json, with_schema
from specaudit.core.errors import InputError
from specaudit.core.protocols import CausalModel, Drafter
from specaudit.core.types import SamplingParams, Transcript

K_MAX = 16

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class AcceptanceProfile:
    """The walk of every prompt, and what it was computed from.

    Attributes
    ----------
    tokens : pandas.DataFrame
        A row a token, as in ``tokens.parquet``.
    walk : Walk
        A row a prompt, in the order of ``prompts``.
    lengths : int[prompts]
    """

    tokens: pd.DataFrame
    prompts: list[int]
    categories: list[str | None]
    lengths: NDArray[np.int64]
    walk: Walk
    accept: Floats
    drafted: NDArray[np.int64]

    @property
    def count(self) -> int:
        return len(self.prompts)


def token_table(
    scored: Sequence[ScoredOutput], transcripts: Sequence[Transcript], budget: int | Sequence[int],
    places: Sequence[int] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """A row a token: prompt, position, token, log-probabilities, entropy, overlap, drafted, budget and category.

    ``budget`` is the ``max_new_tokens`` of all or of each, and ``places`` the numbers of the transcripts' prompts.
    """
    frames, budgets = [], np.broadcast_to(budget, len(transcripts))
    for output in sorted(scored, key=lambda item: item.index):
        frames.append(
            pd.DataFrame(
                {
                    "prompt": output.index if places is None else places[output.index],
                    "position": np.arange(len(output.tokens)),
                    "token": output.tokens,
                    "target_logprob": output.target_logprob,
                    "draft_logprob": list(output.draft_logprob),
                    "entropy": output.entropy,
                    "overlap": output.overlap,
                    "drafted": output.drafted,
                    "budget": budgets[output.index],
                    "context": len(transcripts[output.index].prompt_ids) + np.arange(len(output.tokens)),
                    "category": transcripts[output.index].category,
                }
            )
        )
    if not frames:
        raise InputError("--dataset", 0, "no output was scored", "give at least one prompt")
    return pd.concat(frames, ignore_index=True)


def from_tokens(tokens: pd.DataFrame, k_max: int = K_MAX) -> AcceptanceProfile:
    """Walks a token table, as scored or as read back from ``tokens.parquet``."""
    groups = list(tokens.groupby("prompt", sort=True))
    lengths = np.array([len(group) for _, group in groups], dtype=np.int64)
    depths = len(tokens["draft_logprob"].iloc[0])
    accept = np.zeros((len(groups), int(lengths.max()), depths))
    drafted = np.zeros(accept.shape[:2], dtype=np.int64)
    budgets = np.zeros(len(groups), dtype=np.int64)
    for row, (_, group) in enumerate(groups):
        draft = np.stack(group["draft_logprob"].to_list())
        accept[row, : len(group)] = acceptance(group["target_logprob"].to_numpy(), draft)
        drafted[row, : len(group)] = group["drafted"]
        budgets[row] = group["budget"].iloc[0]
    return AcceptanceProfile(
        tokens=tokens, prompts=[int(str(prompt)) for prompt, _ in groups], lengths=lengths,
        categories=[_category(group["category"].iloc[0]) for _, group in groups],
        walk=walk(accept, drafted, lengths, budgets, k_max), accept=accept, drafted=drafted,
    )  # fmt: skip


def _category(value: Any) -> str | None:
    # Read back from a file, a missing text is NaN beside others and None where there is no other.
    return None if pd.isna(value) else str(value)


def summarise(profile: AcceptanceProfile, generator: np.random.Generator) -> dict[str, Any]:
    """The figures of ``profile.json``.

    ``alpha`` is the chance that one token drafted at a uniformly chosen position is accepted (Leviathan et al. def.
    3.4), over positions where one is drafted; ``alpha_by_depth`` is that chance at each depth of a round of
    ``k_max``, under the walk's own law of rounds; ``survival_by_depth`` is the share of those rounds in which all
    drafted tokens up to that depth were accepted, and ``rounds_by_accepted`` has, for each k, the share of rounds with
    0 to k accepted tokens.
    """
    k_max = profile.walk.rounds.shape[1]
    per_round, per_round_interval = _tokens_per_round(profile, np.arange(profile.count), generator)
    alpha, alpha_interval = _alpha(profile, np.arange(profile.count), generator)
    deepest = profile.walk.accepted[:, -1], profile.walk.reached[:, -1]
    by_depth = _ratio(deepest[0].sum(0), deepest[1].sum(0))
    uniform = uniform_starts(profile.accept * _any_draft(profile), profile.lengths, k_max)
    drafts = profile.walk.rounds_by_width @ np.arange(k_max + 1)
    longest = profile.walk.rounds[:, -1]
    return {
        "prompts": profile.count,
        "tokens": int(profile.lengths.sum()),
        "k_max": k_max,
        "mean_context": float(np.mean(profile.tokens["context"])),
        "alpha": alpha,
        "alpha_interval": alpha_interval,
        "alpha_by_depth": by_depth.tolist(),
        "alpha_by_depth_interval": [
            interval(deepest[0][:, depth], deepest[1][:, depth], generator) for depth in range(k_max)
        ],
        "survival_by_depth": _ratio(deepest[0].sum(0), longest.sum()).tolist(),
        "survival_by_depth_interval": [interval(deepest[0][:, depth], longest, generator) for depth in range(k_max)],
        "tokens_per_round": _by_k(per_round),
        "tokens_per_round_interval": _by_k(per_round_interval),
        "rounds_by_accepted": _by_k(_rounds_by_accepted(profile)),
        "drafted_per_round": _by_k(_ratio(drafts.sum(0), profile.walk.rounds.sum(0)).tolist()),
        "biased_estimates": {"uniform_starts": _by_k(uniform), "geometric": _by_k(geometric(alpha, k_max))},
        "by_category": _by_category(profile, generator),
        "views": views(profile, generator),
    }


def _rounds_by_accepted(profile: AcceptanceProfile) -> list[list[float]]:
    """For each k the share of rounds in which 0, 1, ..., k tokens were accepted."""
    rounds, accepted = profile.walk.rounds.sum(0), profile.walk.accepted.sum(0)
    return [
        (-np.diff([rounds[k - 1], *accepted[k - 1, :k], 0.0]) / rounds[k - 1]).tolist()
        for k in range(1, len(rounds) + 1)
    ]


def _any_draft(profile: AcceptanceProfile) -> Floats:
    if profile.accept.shape[2] > 1:
        return np.ones((1, 1, 1))
    return (profile.drafted > 0)[:, :, None].astype(float)


def _tokens_per_round(
    profile: AcceptanceProfile, rows: NDArray[np.int64], generator: np.random.Generator
) -> tuple[list[float], list[list[float | None]]]:
    rounds = profile.walk.rounds[rows]
    tokens = profile.lengths[rows].astype(float)
    intervals = [interval(tokens, rounds[:, column], generator) for column in range(rounds.shape[1])]
    return _ratio(tokens.sum(), rounds.sum(0)).tolist(), intervals


def _alpha(
    profile: AcceptanceProfile, rows: NDArray[np.int64], generator: np.random.Generator
) -> tuple[float, list[float | None]]:
    inside = np.arange(profile.drafted.shape[1]) < profile.lengths[:, None]
    drafted = (profile.drafted > 0) & inside
    totals = np.where(drafted, profile.accept[:, :, 0], 0.0).sum(1)[rows], drafted.sum(1).astype(float)[rows]
    return float(_ratio(totals[0].sum(), totals[1].sum())), interval(*totals, generator)


def _by_category(profile: AcceptanceProfile, generator: np.random.Generator) -> dict[str, Any]:
    out = {}
    labels = np.array([str(category) for category in profile.categories])
    for category in sorted({str(c) for c in profile.categories if c is not None}):
        rows = np.flatnonzero(labels == category)
        alpha, alpha_interval = _alpha(profile, rows, generator)
        per_round, per_round_interval = _tokens_per_round(profile, rows, generator)
        enough = len(rows) >= MINIMUM_PROMPTS
        out[category] = {
            "prompts": len(rows),
            "tokens": int(profile.lengths[rows].sum()),
            "alpha": alpha,
            "alpha_interval": alpha_interval if enough else [None, None],
            "tokens_per_round": _by_k(per_round),
            "tokens_per_round_interval": _by_k(per_round_interval) if enough else None,
        }
    return out


def _by_k(values: Any) -> dict[str, Any]:
    return {str(k): value for k, value in enumerate(values, start=1)}


def _ratio(numerator: Any, denominator: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.divide(numerator, denominator)


def write(folder: Path, profile: AcceptanceProfile, figures: dict[str, Any], provenance: dict[str, Any]) -> None:
    """Writes ``profile.json`` and ``tokens.parquet``, both or neither."""
    with atomic_folder(folder) as temporary:
        profile.tokens.to_parquet(temporary / "tokens.parquet", index=False)
        artifact = with_schema("profile", figures, provenance)
        (temporary / "profile.json").write_text(to_json(artifact) + "\n", encoding="utf-8")


def read(folder: Path, argument: str = "--profile") -> tuple[AcceptanceProfile, dict[str, Any]]:
    """A profile folder's walk, recomputed from its tokens, and its ``profile.json``."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(argument, folder, "is not a folder", "give the folder that `specaudit profile --out` wrote")
    artifact = read_json(argument, folder / "profile.json", "profile")
    try:
        tokens = pd.read_parquet(folder / "tokens.parquet")
    except (OSError, ValueError) as error:
        raise InputError(argument, folder, f"tokens.parquet cannot be read ({error})", "profile again") from None
    return from_tokens(tokens, artifact["k_max"]), artifact


def profile_outputs(
    target: CausalModel, drafter: Drafter, transcripts: Sequence[Transcript], budget: int, *, k_max: int = K_MAX,
    seed: int = 0, progress: Callable[[Iterable[Any], int], Iterable[Any]] = lambda items, _total: items,
) -> tuple[AcceptanceProfile, dict[str, Any]]:  # fmt: skip
    """Scores outputs of the target and walks them: the profile, and the figures of ``profile.json``.

    Parameters
    ----------
    transcripts : sequence of Transcript
        The target's own outputs, all made under the same sampling parameters.
    budget : int
        The ``max_new_tokens`` they were made under.
    """
    params = transcripts[0].sampling
    scored = list(progress(score_outputs(target, drafter, transcripts, params, k_max), len(transcripts)))
    profile = from_tokens(token_table(scored, transcripts, budget), k_max)
    return profile, profile_figures(target, drafter, profile, params, budget, seed)


def profile_figures(
    target: CausalModel, drafter: Drafter, profile: AcceptanceProfile, params: SamplingParams, budget: int | None,
    seed: int,
) -> dict[str, Any]:  # fmt: skip
    """The figures of ``profile.json``; ``budget`` is None where the outputs do not say under which they were made."""
    return {
        "target": target.name,
        "draft": drafter.name,
        **summarise(profile, np.random.default_rng(seed)),
        "sampling": {**params.as_dict(), "seed": seed},
        "max_new_tokens": budget,
    }
