"""Which known defect explains the output best, and what it is in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from specaudit.audit import independence, structure
from specaudit.audit.bug_laws import OFF
from specaudit.audit.outcome import Test
from specaudit.audit.tally import Tally
from specaudit.stats import calibrated_log_e

HARD = (*structure.EXPLANATIONS, "impossible_token", "greedy")  # no statistics: one is enough
APART = math.log(10.0)  # e-values within this factor name their laws side by side
OTHER = "the tokens' probabilities are not spread as the target's would be"
EXPLANATIONS = {
    "draft": "the output leans towards (or away from) the drafter's own distribution",
    "sharper": "the output is more, or less, concentrated than the target's distribution",
    "flatter": "the output is flatter, or less flat, than the target's distribution",
    "impossible_token": "tokens were emitted to which the target gives no probability",
    **structure.EXPLANATIONS,
    **independence.EXPLANATIONS,
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

SEEN = {  # a public report of each defect, in the open
    "residual_from_target": "https://github.com/ShopeeLLM/Spec-RL/issues/14",
    "residual_exponentiated": "https://github.com/huggingface/transformers/pull/28508",
    "lenience": "https://github.com/sgl-project/sglang/pull/7702",
    "argmax_draft": "https://github.com/huggingface/transformers/issues/32867",
    "typical_acceptance": "https://github.com/vllm-project/vllm/pull/5131",
    "siblings_with_replacement": "https://github.com/SafeAILab/EAGLE/issues/20",
    "shared_noise": "https://github.com/vllm-project/vllm/pull/54282",
    "penalties_ignored": "https://github.com/NVIDIA/TensorRT-LLM/pull/17701",
    "top_p_before_top_k": "https://github.com/vllm-project/vllm/pull/1885",
    "processing_missing_from_ratio": "https://github.com/huggingface/transformers/issues/47932",
    **{f"{name}_missing_from_ratio": "https://github.com/huggingface/transformers/issues/47932" for name in OFF},
    "temperature_missing_from_ratio": "https://github.com/ohdearquant/lattice/issues/388",
    "temperature_missing_from_draft": "https://github.com/huggingface/transformers/pull/40976",
    **{f"{name}_ignored_on_verified_rows": "https://github.com/vllm-project/vllm/pull/10198" for name in OFF},
    "min_p_ignored_on_verified_rows": "https://github.com/vllm-project/vllm/pull/42802",
    "cross_row": "https://github.com/NVIDIA/TensorRT-LLM/issues/19487",
    "repeated_output": "https://github.com/NVIDIA/TensorRT-LLM/issues/19487",
    "after_end": "https://github.com/huggingface/transformers/issues/47912",
    "past_limit": "https://github.com/sgl-project/sglang/issues/31599",
    "declared_lossy": "https://github.com/sgl-project/sglang/pull/7702",
}


def cause_of(flagged: Sequence[Test], tally: Tally) -> dict[str, Any]:
    """The likely cause of a violation, as of `named`: hard violations first, then the largest e-value, then the rest.

    Impossible tokens have a cause of their own where one explains them better than chance strays would. Random numbers
    that are used twice compete with the bug laws by what their p-values are worth as e-values. The tests that say only
    that something is wrong come after them, and what the transcripts say of themselves last.
    """

    def rank(test: Test) -> tuple[bool, bool, bool]:
        return test.name != "declared_lossy", test.name in HARD, test.log10_e is not None

    first = max(flagged, key=rank)
    if first.name == "impossible_token":
        return named_with_strays(tally.explained())
    if first.name in HARD:
        return named({first.name: 0.0})
    laws = tally.log_e if first.log10_e is not None else {}
    twice = {
        test.name: calibrated_log_e(test.p_value)
        for test in flagged
        if test.name in independence.EXPLANATIONS and test.p_value is not None
    }
    return named({**laws, **twice} or {first.name: 0.0})


def named(log_scores: Mapping[str, float]) -> dict[str, Any]:
    """The cause of the largest score, and those that cannot be told apart from it: within a factor of ten.

    Returns
    -------
    dict
        ``name``, ``text`` in plain words, ``seen``, the address of a public report of this defect or None, and
        ``close``, the other names.
    """
    # Rounded, so that laws which agree everywhere are named in their own order and not in that of rounding errors.
    name = max(log_scores, key=lambda key: round(log_scores[key], 6))
    near = [key for key in log_scores if key != name and log_scores[key] > log_scores[name] - APART]
    near.sort(key=lambda key: -log_scores[key])
    text = EXPLANATIONS.get(name, OTHER)
    if near:
        text += f" (cannot be told apart from {', '.join(near)} by these tokens)"
    return {"name": name, "text": text, "seen": SEEN.get(name), "close": near}


def named_with_strays(log_likelihoods: Mapping[str, float]) -> dict[str, Any]:
    """The cause of impossible tokens: ``impossible_token`` unless another is ten times as likely."""
    strays = log_likelihoods["impossible_token"]
    better = {name: value for name, value in log_likelihoods.items() if value > strays + APART}
    return named(better or {"impossible_token": strays})
