"""Greedy output of the bundled pair in float32: every drafter, one prompt at a time and in batches.

``SPECAUDIT_GREEDY_PROMPTS=100`` takes that many prompts for every drafter and both batch sizes: half an hour.
"""

import os

import pytest

from specaudit.acceptance.pair import decode_prompts, encode, limits_of, load_pair
from specaudit.acceptance.workloads import load_workload
from specaudit.core.types import SamplingParams

GREEDY = SamplingParams(temperature=0)
TOKENS = 64
ASKED = os.environ.get("SPECAUDIT_GREEDY_PROMPTS")
PROMPTS = int(ASKED or 40)
ALONE = PROMPTS if ASKED else 10  # one at a time, where the drafter is slow on a processor
DRAFTS = [
    ("zoo:tiny", None), ("prompt-lookup", None), ("lookahead:6,4,4", None), ("early-exit:3", None),
    ("medusa:zoo:tiny", None), ("medusa:zoo:tiny", "auto"), ("eagle:zoo:tiny", None), ("eagle:zoo:tiny", "4,2,1"),
    ("eagle:zoo:tiny", "auto"),
]  # fmt: skip


def outputs(draft, *, batch_size, count=PROMPTS, tree=None):
    pair = load_pair("zoo:tiny", draft, dtype="float32", device="cpu", tree=tree)
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


@pytest.mark.parametrize(("draft", "tree"), DRAFTS)
@pytest.mark.parametrize("batch_size", [1, 8])
def test_greedy_ids_are_the_baselines(baseline, assert_equal_or_tied, draft, tree, batch_size):
    count = PROMPTS if batch_size == 8 or draft in ("zoo:tiny", "prompt-lookup") else ALONE
    pair, drafted = outputs(draft, batch_size=batch_size, count=count, tree=tree)
    assert_equal_or_tied(pair.target, drafted, baseline[:count])
    assert sum(len(t.rounds) for t in drafted) < sum(len(t.output_ids) for t in drafted)
