"""Faults planted in the decode loop: the audit finds them and says which they are."""

import dataclasses

import numpy as np
import pytest
import torch

from specaudit.audit.lossless import audit
from specaudit.core.sampling import processed_probs, sample
from specaudit.core.types import SamplingParams, Verification
from specaudit.models.tabular import TabularModel
from specaudit.verify import RejectionVerifier, TypicalVerifier

PLAIN = SamplingParams(seed=30)
WARM = SamplingParams(temperature=0.7, seed=31)
TRUNCATED = SamplingParams(temperature=0.8, top_k=5, top_p=0.9, seed=32)


class Lenient:
    """Accepts with p / (l q)."""

    name, preserves_target = "rejection", True

    def __init__(self, size):
        self.size = size

    def __call__(self, target_probs, proposal, uniforms):
        lowered = torch.cat([self.size * uniforms[:, :-1], uniforms[:, -1:]], dim=1)
        return RejectionVerifier()(target_probs, proposal, lowered)


class AcceptsAll:
    """Verifies nothing."""

    name, preserves_target = "rejection", True

    def __call__(self, target_probs, proposal, uniforms):
        accepted = torch.tensor(proposal.lengths)
        bonus = sample(target_probs[torch.arange(len(accepted)), accepted], uniforms[:, -1])
        return Verification(accepted, bonus, torch.ones_like(accepted, dtype=torch.bool))


class Replacing:
    """Draws the token after a rejection, or the bonus, from other weights than it should."""

    name, preserves_target = "rejection", True

    def __init__(self, weights, bonus):
        self.weights, self.bonus = weights, bonus

    def __call__(self, target_probs, proposal, uniforms):
        right = RejectionVerifier()(target_probs, proposal, uniforms)
        rows = torch.arange(len(right.accepted))
        p = target_probs[rows, right.accepted]
        q = proposal.draft_probs[rows, right.accepted.clamp(max=proposal.width - 1)] if proposal.width else p
        anew = sample(self.weights(p, q), uniforms[:, -1])
        return dataclasses.replace(right, extra_token=torch.where(right.bonus == self.bonus, anew, right.extra_token))


class OnVerifiedRows:
    """Verifies drafts against rows that are processed with other sampling parameters, the bonus against the right."""

    name, preserves_target = "rejection", True

    def __init__(self, logits, right, wrong):
        self.right, self.wrong = processed_probs(logits, right), processed_probs(logits, wrong)

    def __call__(self, target_probs, proposal, uniforms):
        found = RejectionVerifier()(self.rows(target_probs), proposal, uniforms)
        at = torch.arange(len(found.accepted)), found.accepted
        bonus = sample(target_probs[at], uniforms[:, -1])
        return Verification(found.accepted, torch.where(found.bonus, bonus, found.extra_token), found.bonus)

    def rows(self, target_probs):
        """No two rows of the table are alike, so a processed one tells which it is."""
        return self.wrong[(target_probs.unsqueeze(-2) - self.right).abs().sum(-1).argmin(-1)]


FAULTS = {
    "lenience": Lenient(0.7),
    "draft_unverified": AcceptsAll(),
    "residual_from_target": Replacing(lambda p, q: p, bonus=False),
    "residual_exponentiated": Replacing(lambda p, q: (p - q).clamp(min=0).softmax(-1), bonus=False),
    "typical_acceptance": TypicalVerifier(),
    "bonus_argmax": Replacing(lambda p, q: (p == p.amax(-1, keepdim=True)).double(), bonus=True),
}


@pytest.fixture(scope="module")
def outputs(tabular_pair):
    """Some 3000 tokens."""

    def made(params, verifier=None, draft="draft"):
        rows = np.random.default_rng(12).integers(0, 8, size=(60, 3)).tolist()
        return tabular_pair.decode(draft, params, rows, k=3, max_new_tokens=50, verifier=verifier).transcripts

    return made


def claiming(params, transcripts):
    """The same outputs as if they had been made under other sampling parameters, each under its own seed."""
    own = [dataclasses.replace(params, seed=t.sampling.seed) for t in transcripts]
    return [dataclasses.replace(t, sampling=sampling) for t, sampling in zip(transcripts, own, strict=True)]


def cause_of(pair, transcripts, draft="draft"):
    result = audit(pair.target, pair.drafter(draft), transcripts)
    assert result["verdict"] == "violated"
    assert result["causes"] == sorted(result["causes"], key=lambda cause: -cause["log10_e"])
    return result["cause"]


@pytest.mark.parametrize("params", [PLAIN, WARM, TRUNCATED], ids=["plain", "warm", "truncated"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named(tabular_pair, outputs, fault, params):
    transcripts = outputs(params, FAULTS[fault])
    cause = cause_of(tabular_pair, transcripts)
    if (fault, params) == ("typical_acceptance", TRUNCATED):
        # No token that truncation leaves falls below its threshold: it accepts all, and that law comes first.
        assert (cause["name"], cause["close"]) == ("draft_unverified", ["typical_acceptance"])
    else:
        assert cause["name"] == fault


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_where_rounds_are_unknown(tabular_pair, outputs, fault):
    transcripts = outputs(PLAIN, FAULTS[fault])
    unknown = [dataclasses.replace(transcript, rounds=None) for transcript in transcripts]
    assert cause_of(tabular_pair, unknown)["name"] == fault


@pytest.mark.parametrize(
    ("params", "off"),
    [(WARM, {"temperature": 1.0}), (TRUNCATED, {"top_k": 0}), (TRUNCATED, {"top_p": 1.0})],
    ids=["temperature", "top_k", "top_p"],
)
def test_a_parameter_ignored_everywhere_or_on_verified_rows_is_named(tabular_pair, outputs, params, off):
    (name,) = off
    wrong = dataclasses.replace(params, **off)
    everywhere = claiming(params, outputs(wrong))
    assert cause_of(tabular_pair, everywhere)["name"] == f"{name}_ignored"
    verified = outputs(params, OnVerifiedRows(tabular_pair.target.logits, params, wrong))
    assert cause_of(tabular_pair, verified)["name"] == f"{name}_ignored_on_verified_rows"
    # Without the drafter nothing tells verified rows from others; all of the target's own may be named.
    assert cause_of(tabular_pair, everywhere, None)["name"] == f"{name}_ignored"


def test_penalties_ignored_are_named(tabular_pair, outputs):
    claimed = dataclasses.replace(WARM, repetition_penalty=1.3)
    transcripts = claiming(claimed, outputs(WARM))
    assert cause_of(tabular_pair, transcripts)["name"] == "penalties_ignored"


def test_top_p_before_top_k_is_named(tabular_pair):
    params = SamplingParams(temperature=0.9, top_k=3, top_p=0.65, seed=33)
    nucleus = processed_probs(tabular_pair.target.logits, dataclasses.replace(params, top_k=0))
    swapped = TabularModel(processed_probs(nucleus.log(), SamplingParams(top_k=3)).log())
    faulty = dataclasses.replace(tabular_pair, target=swapped)
    made = faulty.decode(None, PLAIN, [[i % 8] for i in range(40)], max_new_tokens=50).transcripts
    transcripts = claiming(params, made)
    assert cause_of(tabular_pair, transcripts)["name"] == "top_p_before_top_k"


def test_prompt_lookup_accepted_too_readily_is_named(tabular_pair, outputs):
    transcripts = outputs(PLAIN, Lenient(0.5), "prompt-lookup")
    assert cause_of(tabular_pair, transcripts, "prompt-lookup")["name"] == "lenience"


@pytest.mark.parametrize("draft", ["draft", "prompt-lookup", None])
def test_no_law_is_found_in_a_lossless_output(tabular_pair, outputs, draft):
    for params in (PLAIN, WARM, TRUNCATED):
        result = audit(tabular_pair.target, tabular_pair.drafter(draft), outputs(params, draft=draft))
        assert result["verdict"] == "no_violation_found"
        assert max(cause["log10_e"] for cause in result["causes"]) < 3
