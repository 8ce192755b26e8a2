"""Which known defect explains the output best: the laws' e-values, and what they say in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from specaudit.audit import structure
from specaudit.audit.bug_laws import OFF, BugLaw
from specaudit.audit.evidence import Alternative, Evidence
from specaudit.stats import contamination_epsilons, log_law_path, log_mean_exp, mixed_log_path
from specaudit.stats.checks import Floats

FULL = 63 / 64  # the rest survives tokens that a law all but excludes
IN_FULL = (FULL,)
IN_PART = (FULL, 0.5, 0.25)  # of laws whose size or place is not known
APART = math.log(10.0)  # e-values within this factor name their laws side by side
OTHER = "the tokens' probabilities are not spread as the target's would be"
EXPLANATIONS = {
    "draft": "the output leans towards (or away from) the drafter's own distribution",
    "sharper": "the output is more, or less, concentrated than the target's distribution",
    "flatter": "the output is flatter, or less flat, than the target's distribution",
    "impossible_token": "tokens were emitted to which the target gives no probability",
    **structure.EXPLANATIONS,
    "greedy": "tokens were emitted that are not the target's argmax, by more than the machine's noise",
    "residual_from_target": "after a rejection the token is drawn from the target's whole distribution p instead of "
    "what the draft left over, max(0, p - q)",
    "residual_exponentiated": "after a rejection the leftover max(0, p - q) is put through a softmax instead of being "
    "divided by its sum",
    "draft_unverified": "drafted tokens are emitted as the draft drew them, without being verified",
    "lenience": "drafted tokens are accepted too readily, with p / (l q) for some l below 1",
    "argmax_draft": "the draft proposes its most probable token, but the token is scored as if it had been sampled",
    "typical_acceptance": "drafted tokens are accepted by typical acceptance, which does not preserve the target's "
    "distribution",
    "siblings_with_replacement": "sibling tokens are drafted without replacement, but scored as if each were drawn "
    "from the whole draft distribution",
    "shared_noise": "the draft and the token after a rejection seem to share their random numbers",
    "bonus_from_draft": "the extra token after a fully accepted draft is drawn from the draft's distribution",
    "bonus_argmax": "the extra token after a fully accepted draft is the target's most probable one, not a draw",
    "penalties_ignored": "the repetition, presence or frequency penalty is not applied to the target's distribution",
    "top_p_before_top_k": "top_p is applied before top_k instead of after it",
    "processing_missing_from_ratio": "the draft is sampled with its temperature and truncation, but the acceptance "
    "ratio uses its plain softmax",
    **{f"{name}_ignored": f"{name} is not applied to the target's distribution (or to the draft's alone)"
       for name in OFF},
    **{f"{name}_ignored_on_verified_rows": f"{name} is not applied to the target's rows that verify a draft"
       for name in OFF},
    **{f"{name}_missing_from_ratio": f"the draft is sampled with {name}, but the acceptance ratio uses its "
       f"distribution without it" for name in OFF},
    **{f"{name}_missing_from_draft": f"the draft is sampled without {name}, but the acceptance ratio uses its "
       f"distribution with it" for name in OFF},
}  # fmt: skip


def law_paths(evidence: Sequence[Evidence]) -> dict[str, Floats]:
    """The e-process of each named defect after every token, its variants averaged."""
    exact = all(item.exact for item in evidence)
    impossible = np.concatenate([item.impossible for item in evidence])

    def path(law: BugLaw) -> Floats:
        relative, support = _numbers(evidence, lambda item: item.laws[law])
        # A token outside the support is a violation counted apart; here it is neutral.
        return log_law_path(np.where(impossible, support, relative), support, _strengths(law, exact))

    return {name: mixed_log_path([path(law) for law in laws]) for name, laws in _by_name(evidence).items()}


def explained(evidence: Sequence[Evidence], vocabulary: int) -> dict[str, float]:
    """Each cause's log-likelihood over the target's, impossible tokens included: to name a cause, and for no test.

    The cause ``impossible_token`` stands for stray tokens from anywhere in the vocabulary, as many as there are.
    Others that leave one unexplained have none, ``-inf``.
    """
    exact = all(item.exact for item in evidence)
    impossible = np.concatenate([item.impossible for item in evidence])
    strays, tokens = int(impossible.sum()), len(impossible)
    rate = strays / tokens
    usual = strays * math.log(rate / vocabulary) + (tokens - strays) * math.log1p(-rate) if strays < tokens else 0.0
    scores = {"impossible_token": usual}
    positive = (FULL, *(float(epsilon) for epsilon in contamination_epsilons(6) if epsilon > 0))

    def likelihoods(alternative: Callable[[Evidence], Alternative], strengths: Sequence[float]) -> list[float]:
        relative, _ = _numbers(evidence, alternative)
        with np.errstate(divide="ignore"):
            return [
                float(np.log(np.where(impossible, strength * relative, 1.0 + strength * (relative - 1.0))).sum())
                for strength in strengths
            ]

    for name in evidence[0].directions:
        scores[name] = float(log_mean_exp(likelihoods(lambda item, name=name: item.directions[name], positive)))
    for name, laws in _by_name(evidence).items():
        parts = [likelihoods(lambda item, law=law: item.laws[law], _strengths(law, exact)) for law in laws]
        scores[name] = float(log_mean_exp([float(log_mean_exp(part)) for part in parts]))
    return scores


def named(log_scores: Mapping[str, float]) -> dict[str, Any]:
    """The cause of the largest score, and those that cannot be told apart from it: within a factor of ten.

    Returns
    -------
    dict
        ``name``, ``text`` in plain words, and ``close``, the other names.
    """
    name = max(log_scores, key=lambda key: log_scores[key])
    near = [key for key in log_scores if key != name and log_scores[key] > log_scores[name] - APART]
    near.sort(key=lambda key: -log_scores[key])
    text = EXPLANATIONS.get(name, OTHER)
    if near:
        text += f" (cannot be told apart from {', '.join(near)} by these tokens)"
    return {"name": name, "text": text, "close": near}


def named_with_strays(log_likelihoods: Mapping[str, float]) -> dict[str, Any]:
    """The cause of impossible tokens: ``impossible_token`` unless another is ten times as likely."""
    strays = log_likelihoods["impossible_token"]
    better = {name: value for name, value in log_likelihoods.items() if value > strays + APART}
    return named(better or {"impossible_token": strays})


def _by_name(evidence: Sequence[Evidence]) -> dict[str, list[BugLaw]]:
    names: dict[str, list[BugLaw]] = {}
    for law in evidence[0].laws:
        names.setdefault(law.name, []).append(law)
    return names


def _numbers(evidence: Sequence[Evidence], alternative: Callable[[Evidence], Alternative]) -> tuple[Floats, Floats]:
    chosen = [alternative(item) for item in evidence]
    return np.concatenate([one.relative for one in chosen]), np.concatenate([one.on_support for one in chosen])


def _strengths(law: BugLaw, exact: bool) -> tuple[float, ...]:
    return IN_FULL if not law.graded and (exact or law.where == "all") else IN_PART
