"""Whether the audit alarms as rarely as it says, and finds what it says it would find."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
import torch

from specaudit.audit.lossless import MISSED_RATE, audit
from specaudit.core.types import Limits, SamplingParams
from specaudit.decode import decode
from specaudit.drafters import create_drafter
from specaudit.models.tabular import TabularModel
from specaudit.models.target import ModelTarget
from specaudit.verify import RejectionVerifier

AUDITS, OUTPUTS, TOKENS = 100, 20, 30
RATE = 0.05
PARAMS = SamplingParams(temperature=0.9, seed=1000)


def transcripts_of(target, drafter, count):
    """``count`` audits' worth of outputs, all decoded in one batch."""
    prompts = np.random.default_rng(5).integers(0, target.vocabulary, size=(count * OUTPUTS, 2)).tolist()
    made = decode(ModelTarget(target), drafter, RejectionVerifier(), prompts, PARAMS, Limits(TOKENS), k=3).transcripts
    return [made[start : start + OUTPUTS] for start in range(0, len(made), OUTPUTS)]


@pytest.fixture(scope="module")
def lossless(tabular_models):
    """A hundred audits of 600 tokens each of a lossless decoder, with its drafter and without."""
    target, small = tabular_models
    groups = transcripts_of(target, create_drafter("draft", target, lambda _: small), AUDITS)
    drafters = {"draft": create_drafter("draft", target, lambda _: small), "no drafter": None}
    return {
        name: [audit(target, drafter, group, false_alarm_rate=RATE, seed=number) for number, group in enumerate(groups)]
        for name, drafter in drafters.items()
    }


@pytest.mark.parametrize("drafter", ["draft", "no drafter"])
def test_a_lossless_decoder_is_accused_no_more_often_than_promised(lossless, share, drafter):
    accused = sum(result["verdict"] == "violated" for result in lossless[drafter])
    assert all(result["verdict"] != "inconclusive" for result in lossless[drafter])
    # The chance of as many accusations or more at the promised rate.
    assert scipy.stats.binom.sf(accused - 1, AUDITS, RATE) > share(f"calibration: {drafter}")


def test_the_bug_laws_reach_a_threshold_no_more_often_than_promised(lossless, share):
    """At the whole rate, as if nothing else were tested; temperature 0.9 brings the laws of a parameter left out."""
    log_e = [t["statistic"] for result in lossless["draft"] for t in result["tests"] if t["name"] == "bug_laws"]
    assert len(log_e) == AUDITS
    reached = sum(value >= -np.log(RATE) for value in log_e)
    assert scipy.stats.binom.sf(reached - 1, AUDITS, RATE) > share("calibration: bug laws")


@pytest.mark.parametrize("test", ["pit_chi_square", "pit_cramer_von_mises", "pit_lag", "pit_depth", "pit_output"])
def test_p_values_of_a_lossless_decoder_are_uniform(lossless, share, test):
    p_values = [t["p_value"] for result in lossless["draft"] for t in result["tests"] if t["name"] == test]
    assert len(p_values) == AUDITS
    assert scipy.stats.kstest(p_values, "uniform").pvalue > share(f"calibration: {test}")


def test_the_contamination_said_to_be_detectable_is_detected(tabular_models, lossless, share):
    """Tokens drawn from (1 - e) p + e q, with e what the audits of the lossless decoder said they would have found."""
    target, small = tabular_models
    e = max(result["detectable_contamination"] for result in lossless["draft"])
    assert e < 0.9
    mixed = [torch.softmax(model.logits / PARAMS.temperature, -1) for model in (target, small)]
    # Logits that give the mixture back once the temperature divides them.
    contaminated = TabularModel(((1 - e) * mixed[0] + e * mixed[1]).log() * PARAMS.temperature)
    drafter = create_drafter("draft", target, lambda _: small)
    audits = 40
    found = 0
    for number, group in enumerate(transcripts_of(contaminated, None, audits)):
        unknown_rounds = [dataclasses.replace(transcript, rounds=None) for transcript in group]
        found += audit(target, drafter, unknown_rounds, false_alarm_rate=RATE, seed=number)["verdict"] == "violated"
    assert scipy.stats.binom.cdf(found, audits, 1 - MISSED_RATE) > share("power: detectable contamination")
