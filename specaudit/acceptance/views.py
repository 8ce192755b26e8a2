"""Where a draft is accepted: alpha by entropy, by place in the answer and by prompt length, and the worst prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specaudit.acceptance.intervals import MINIMUM_PROMPTS, interval

if TYPE_CHECKING:
    from specaudit.acceptance.profile import AcceptanceProfile

DECILES = 10
FIRST_EDGE = 16  # tokens; every further bin of positions and lengths is twice as wide
WORST = 10
WORST_K = 4  # tokens drafted a round by which prompts are compared
WORST_TOKENS = 8  # a shorter output says too little of its prompt

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _Tokens:
    """``[tokens]`` each; ``row`` is the prompt's in the walk, ``accept`` zero where nothing is drafted."""

    row: Ints
    position: Ints
    entropy: Floats
    drafted: NDArray[np.bool_]
    accept: Floats


def views(profile: AcceptanceProfile, generator: np.random.Generator) -> dict[str, Any]:
    """The figures of ``profile.json`` under ``views``.

    In each list ``alpha`` is the chance that one token drafted at a position of the group is accepted, every position
    with a draft counting the same, as in the profile's own ``alpha``; its interval is bootstrapped by prompt, and null
    where fewer than ``MINIMUM_PROMPTS`` prompts have such a position.

    Returns
    -------
    dict
        ``entropy_decile``: by the entropy of the target's distribution, in nats, ten groups of as many tokens each.
        ``position``: by the token's place in the answer. ``prompt_tokens``: by the prompt's length. Each row has
        ``from`` and ``to``, inclusive, ``prompts``, ``tokens``, ``drafted``, ``alpha`` and ``alpha_interval``; by the
        prompt's length also ``tokens_per_round`` for each k. ``worst_prompts``: those with the fewest tokens a round at
        k = ``WORST_K``.
    """
    tokens, lengths = _tokens(profile), _prompt_lengths(profile)
    return {
        "entropy_decile": _by_entropy(tokens, generator),
        "position": _by_bins(tokens, tokens.position, generator),
        "prompt_tokens": [
            {**row, "tokens_per_round": _tokens_per_round(profile, (lengths >= row["from"]) & (lengths <= row["to"]))}
            for row in _by_bins(tokens, lengths[tokens.row], generator)
        ],
        "worst_prompts": _worst(profile, tokens),
    }


def _tokens(profile: AcceptanceProfile) -> _Tokens:
    row = np.searchsorted(np.array(profile.prompts), np.asarray(profile.tokens["prompt"]))
    position = np.asarray(profile.tokens["position"])
    drafted = profile.drafted[row, position] > 0
    accept = np.where(drafted, profile.accept[row, position, 0], 0.0)
    return _Tokens(row, position, np.asarray(profile.tokens["entropy"]), drafted, accept)


def _prompt_lengths(profile: AcceptanceProfile) -> Ints:
    lengths = np.zeros(profile.count, dtype=np.int64)
    row = np.searchsorted(np.array(profile.prompts), np.asarray(profile.tokens["prompt"]))
    lengths[row] = np.asarray(profile.tokens["context"]) - np.asarray(profile.tokens["position"])
    return lengths


def _by_entropy(tokens: _Tokens, generator: np.random.Generator) -> list[dict[str, Any]]:
    # By rank: where most entropies are the same, as at temperature zero, every tenth is still a tenth.
    order = np.argsort(tokens.entropy, kind="stable")
    return [
        {
            "decile": number, "from": float(tokens.entropy[chosen[0]]), "to": float(tokens.entropy[chosen[-1]]),
            **_group(tokens, chosen, generator),
        }
        for number, chosen in enumerate(np.array_split(order, DECILES), start=1)
        if chosen.size
    ]  # fmt: skip


def _by_bins(tokens: _Tokens, values: Ints, generator: np.random.Generator) -> list[dict[str, Any]]:
    """Bins 0 to 15, 16 to 31, 32 to 63 and so on; those without a token are left out."""
    edges = [0, FIRST_EDGE]
    while edges[-1] <= values.max():
        edges.append(2 * edges[-1])
    place = np.searchsorted(edges, values, side="right") - 1
    return [
        {"from": edges[one], "to": edges[one + 1] - 1, **_group(tokens, np.flatnonzero(place == one), generator)}
        for one in np.unique(place).tolist()
    ]


def _group(tokens: _Tokens, chosen: Ints, generator: np.random.Generator) -> dict[str, Any]:
    """Alpha over some of the tokens, with its interval by prompt."""
    _, row = np.unique(tokens.row[chosen], return_inverse=True)
    accept, drafted = (_sums(row, each[chosen]) for each in (tokens.accept, tokens.drafted))
    enough = int((drafted > 0).sum()) >= MINIMUM_PROMPTS
    return {
        "prompts": len(drafted), "tokens": len(chosen), "drafted": int(drafted.sum()),
        "alpha": _quotient(accept.sum(), drafted.sum()),
        "alpha_interval": interval(accept, drafted, generator) if enough else [None, None],
    }  # fmt: skip


def _tokens_per_round(profile: AcceptanceProfile, chosen: NDArray[np.bool_]) -> dict[str, float]:
    rounds = profile.walk.rounds[chosen].sum(0).tolist()
    return {str(k): float(profile.lengths[chosen].sum()) / value for k, value in enumerate(rounds, start=1)}


def _worst(profile: AcceptanceProfile, tokens: _Tokens) -> list[dict[str, Any]]:
    k = min(WORST_K, profile.walk.rounds.shape[1])
    per_round = profile.lengths / profile.walk.rounds[:, k - 1]
    rows = [row for row in np.argsort(per_round, kind="stable").tolist() if profile.lengths[row] >= WORST_TOKENS]
    accept, drafted = (_sums(tokens.row, each) for each in (tokens.accept, tokens.drafted))
    return [
        {
            "prompt": profile.prompts[row], "category": profile.categories[row], "tokens": int(profile.lengths[row]),
            "alpha": _quotient(accept[row], drafted[row]), "k": k, "tokens_per_round": float(per_round[row]),
        }
        for row in rows[:WORST]
    ]  # fmt: skip


def _sums(row: Ints, values: Floats | NDArray[np.bool_]) -> Floats:
    return np.bincount(row, weights=values).astype(np.float64)


def _quotient(top: Any, bottom: Any) -> float | None:
    return float(top) / float(bottom) if bottom else None
