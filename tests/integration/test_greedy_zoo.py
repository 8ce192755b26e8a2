"""Greedy output of the bundled pair in float32: a hundred prompts, every drafter, one at a time and in batches."""

import pytest

from specaudit.acceptance.pair import decode_prompts, encode, limits_of, load_pair
from specaudit.acceptance.workloads import load_workload
from specaudit.core.types import SamplingParams

GREEDY = SamplingParams(temperature=0)
TOKENS, PROMPTS = 64, 100
DRAFTS = ["zoo:tiny", "prompt-lookup", "lookahead:6,4,4", "early-exit:3"]


def outputs(draft, *, batch_size, count=PROMPTS):
    pair = load_pair("zoo:tiny", draft, dtype="float32", device="cpu")
    workload = load_workload("zoo:prompts")
    few = type(workload)(workload.name, workload.fingerprint, workload.prompts[:count], {})
    prompts = encode(few, pair.target, chat=None)
    limits = limits_of(pair.target, TOKENS)
    return pair, decode_prompts(pair, prompts, GREEDY, limits, k=4 if draft else 0, batch_size=batch_size)


@pytest.fixture(scope="module")
def baseline():
    return outputs(None, batch_size=1)[1]


def test_the_baseline_itself_does_not_depend_on_its_batch(baseline, assert_equal_or_tied):
    assert len(baseline) == PROMPTS
    pair, batched = outputs(None, batch_size=8)
    assert_equal_or_tied(pair.target, batched, baseline)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("batch_size", [1, 8])
def test_greedy_ids_are_the_baselines(baseline, assert_equal_or_tied, draft, batch_size):
    count = PROMPTS if batch_size == 8 or draft in DRAFTS[:2] else 20
    pair, drafted = outputs(draft, batch_size=batch_size, count=count)
    assert_equal_or_tied(pair.target, drafted, baseline[:count])
    assert sum(len(t.rounds) for t in drafted) < sum(len(t.output_ids) for t in drafted)
