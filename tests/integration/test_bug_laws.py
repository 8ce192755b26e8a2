"""Faults under several settings, and with less known of them: the audit says which they are."""

import dataclasses

import numpy as np
import pytest

from specaudit.audit.faults import verifiers
from specaudit.audit.lossless import audit
from specaudit.core.types import SamplingParams
from specaudit.verify import TypicalVerifier

PLAIN = SamplingParams(seed=30)
WARM = SamplingParams(temperature=0.7, seed=31)
TRUNCATED = SamplingParams(temperature=0.8, top_k=5, top_p=0.9, seed=32)


FAULTS = {
    "lenience": verifiers.Decides(lambda u: 0.7 * u),
    "draft_unverified": verifiers.AcceptsAll(),
    "residual_from_target": verifiers.Replaces(lambda p, q: p, bonus=False),
    "residual_exponentiated": verifiers.Replaces(lambda p, q: (p - q).clamp(min=0).softmax(-1), bonus=False),
    "typical_acceptance": verifiers.Claiming(TypicalVerifier()),
    "bonus_argmax": verifiers.Replaces(lambda p, q: (p == p.amax(-1, keepdim=True)).double(), bonus=True),
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
def test_a_parameter_ignored_is_named_without_the_drafter(tabular_pair, outputs, params, off):
    """Nothing tells verified rows from others then; all of the target's own may be named."""
    (name,) = off
    everywhere = claiming(params, outputs(dataclasses.replace(params, **off)))
    assert cause_of(tabular_pair, everywhere, None)["name"] == f"{name}_ignored"


def test_prompt_lookup_accepted_too_readily_is_named(tabular_pair, outputs):
    transcripts = outputs(PLAIN, verifiers.Decides(lambda u: 0.5 * u), "prompt-lookup")
    assert cause_of(tabular_pair, transcripts, "prompt-lookup")["name"] == "lenience"


@pytest.mark.parametrize("draft", ["draft", "prompt-lookup", None])
def test_no_law_is_found_in_a_lossless_output(tabular_pair, outputs, draft):
    for params in (PLAIN, WARM, TRUNCATED):
        result = audit(tabular_pair.target, tabular_pair.drafter(draft), outputs(params, draft=draft))
        assert result["verdict"] == "no_violation_found"
        assert max(cause["log10_e"] for cause in result["causes"]) < 3
