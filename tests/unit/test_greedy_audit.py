"""Greedy output against the target's own margins, token by token."""

import dataclasses
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.audit import greedy
from specaudit.audit.lossless import audit
from specaudit.audit.noise import Noise, measure_noise
from specaudit.core.artifacts import to_json
from specaudit.core.types import SamplingParams, Transcript
from specaudit.models.tabular import TabularModel

GREEDY = SamplingParams(temperature=0)
# After token 0 token 1 leads by 0.5; after 1 tokens 2 and 3 are equal; after 2 token 3 is excluded; after 3 comes 0.
LOGITS = torch.tensor(
    [[0.0, 2.0, 1.5, -1.0], [0.0, 1.0, 3.0, 3.0], [5.0, 1.0, 0.0, -torch.inf], [4.0, 0.0, 0.0, 0.0]],
    dtype=torch.float64,
)  # fmt: skip
TARGET = TabularModel(LOGITS)


def checked(output, margin=0.0, *, prompt=(0,), params=GREEDY, target=TARGET):
    defects, details = greedy.check(target, [Transcript(prompt, tuple(output), params)], params, Noise(margin, 0.0, 9))
    assert details["defects"] == defects
    return details


def test_the_argmax_diverges_nowhere():
    details = checked([1, 2, 0, 1, 2, 0])
    assert details == {"near_ties": 0, "defects": 0, "noise_margin": 0.0, "divergences": []}


@pytest.mark.parametrize(("margin", "kind"), [(0.49, "defect"), (0.5, "near_tie"), (0.6, "near_tie")])
def test_a_divergence_is_a_tie_within_the_noise_and_else_a_defect(margin, kind):
    (found,) = checked([1, 2, 0, 2, 0], margin)["divergences"]
    place = {"transcript": 0, "position": 3, "emitted": 2, "argmax": 1}
    assert found == {**place, "margin": 0.5, "kind": kind}


def test_exactly_equal_logits_are_a_tie_without_any_noise():
    details = checked([1, 3, 0, 1, 2, 0])
    assert (details["near_ties"], details["defects"]) == (1, 0)
    assert details["divergences"][0]["margin"] == 0.0


def test_what_follows_a_divergence_is_judged_on_its_own_prefix():
    """It is right where it follows from the wrong token, and a second wrong token counts for itself."""
    right_after = checked([3, 0, 1, 2, 0])
    assert [d["position"] for d in right_after["divergences"]] == [0]
    twice = checked([3, 0, 1, 0, 1])
    assert [(d["position"], d["margin"]) for d in twice["divergences"]] == [(0, 3.0), (3, 3.0)]


def test_an_excluded_token_is_a_defect_of_infinite_margin():
    details = checked([1, 2, 3], margin=1e9)
    assert details["defects"] == 1
    assert details["divergences"][0]["margin"] == math.inf
    assert json.loads(to_json(details))["divergences"][0]["margin"] is None


def test_a_margin_that_no_probability_can_show():
    """Two hundred nats below the best a probability is zero in float32."""
    far = TabularModel(torch.tensor([[0.0, 200.0], [0.0, 200.0]]))
    (found,) = checked([0], target=far)["divergences"]
    assert found["margin"] == 200.0


def test_penalties_are_part_of_the_choice():
    """Token 1 has been said, which halves its logit after 0: token 2 then leads by a half."""
    penalised = dataclasses.replace(GREEDY, repetition_penalty=2.0)
    assert checked([2, 0], prompt=(1, 0), params=penalised)["divergences"] == []
    (found,) = checked([1, 2], prompt=(1, 0), params=penalised)["divergences"]
    assert (found["emitted"], found["argmax"], found["margin"]) == (1, 2, 0.5)


def test_the_noise_is_that_of_penalised_logits(monkeypatch):
    """A shape that adds 0.01 to token 1 moves its gap by a half of that where a penalty of 2 halves it."""
    other = TabularModel(LOGITS + torch.tensor([0.0, 0.01, 0.0, 0.0]))
    outputs = [Transcript((1, 0), (1, 2, 0, 1), GREEDY)]
    target = TabularModel(LOGITS)
    monkeypatch.setattr(target, "score_full", other.score_full)
    margins = [measure_noise(target, outputs, dataclasses.replace(GREEDY, repetition_penalty=r)).margin for r in (1, 2)]
    assert margins == pytest.approx([2 * 0.01, 2 * 0.005], rel=1e-3)  # the safety factor is two


def test_the_worst_are_shown_and_all_are_counted():
    details = checked([3, 0] * 30)
    assert (details["defects"], len(details["divergences"])) == (30, greedy.SHOWN)
    margins = [d["margin"] for d in checked([3, 0, 1, 0, 2])["divergences"]]
    assert margins == sorted(margins, reverse=True)


@settings(max_examples=60)
@given(output=st.lists(st.integers(0, 3), min_size=1, max_size=12), margin=st.floats(0, 4))
def test_every_token_is_compared_with_the_best_at_its_own_context(output, margin):
    contexts = [0, *output[:-1]]
    gaps = [float(LOGITS[c].max() - LOGITS[c, x]) for c, x in zip(contexts, output, strict=True)]
    differs = [int(LOGITS[c].argmax()) != x for c, x in zip(contexts, output, strict=True)]
    details = checked(output, margin)
    assert details["defects"] == sum(gap > margin for gap in gaps)
    assert details["near_ties"] == sum(differs) - details["defects"]


def test_an_audit_counts_and_names_them():
    result = audit(TARGET, None, [Transcript((0,), (1, 3, 0, 3, 0), GREEDY), Transcript((0,), (1, 2), GREEDY)])
    assert (result["verdict"], result["cause"]["name"]) == ("violated", "greedy")
    assert (result["tokens"], result["greedy"]["near_ties"], result["greedy"]["defects"]) == (7, 1, 1)
