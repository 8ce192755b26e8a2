"""Every fault is found and named, and no control is taken for one."""

import dataclasses

import pytest

from specaudit.audit.faults import CONTROLS, FAULTS
from specaudit.audit.faults.transcripts import until_the_round_of_a_limit, until_the_round_of_an_end
from specaudit.audit.selftest import selftest
from specaudit.core.errors import InputError
from specaudit.core.types import Limits, SamplingParams, Transcript
from specaudit.models.tabular import TabularModel
from tests.commands import refused, specaudit

CACHED = ("stale_cache", "cache_off_by_one")  # a table of next tokens has no cache
NAMES = [fault.name for fault in FAULTS if fault.name not in CACHED]
CLOSE = {  # alike on a vocabulary of eight, or found at so few tokens that a plainer cause is as likely
    "contamination": {"lenience"},
    "typical_acceptance": {"draft_unverified"},
    "top_k_ignored": {"impossible_token"},
    "top_k_ignored_on_verified_rows": {"impossible_token"},
}
PARAMS = SamplingParams(temperature=0.8, seed=3)


@pytest.fixture(scope="module")
def ending_pair(tabular_pair):
    """The tabular pair, whose outputs end at a token of their own."""
    target, draft = (
        TabularModel(one.logits, one.name, end_ids=[7]) for one in (tabular_pair.target, tabular_pair.draft)
    )
    return dataclasses.replace(tabular_pair, target=target, draft=draft)


def run_selftest(pair, *only, draft="draft", tokens=30_000, control_tokens=4_000, params=PARAMS):
    prompts = [[n % 7, (3 * n) % 7] for n in range(40)]
    return selftest(
        pair.target, pair.drafter(draft), prompts, params, Limits(40, frozenset(pair.target.end_ids)), k=4,
        tokens=tokens, control_tokens=control_tokens, false_alarm_rate=1e-3, seed=1, batch_size=32,
        reload=lambda _dtype: (pair.target, pair.drafter(draft)), only=only,
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_is_found_and_named(tabular_pair, ending_pair, name):
    pair = ending_pair if name == "end_ignored" else tabular_pair
    (row,) = run_selftest(pair, name)["faults"]
    assert row["found"], row
    causes = next(fault for fault in FAULTS if fault.name == name).causes
    if causes:
        assert {row["cause"], *row["close"]} & {*causes, *CLOSE.get(name, ())}, row


@pytest.mark.parametrize("name", CACHED)
def test_a_fault_of_the_cache_is_found(name):
    done = specaudit("selftest", "--only", name, "--limit", 16, "--tokens", 3000, "--batch-size", 8, "--json")
    (row,) = done.json["faults"]
    assert (done.code, row["found"], row["cause_right"]) == (0, True, None)


@pytest.mark.parametrize("draft", ["draft", "prompt-lookup"])
def test_no_control_is_flagged(tabular_pair, draft):
    result = run_selftest(tabular_pair, *(control.name for control in CONTROLS), draft=draft)
    assert [row["name"] for row in result["controls"] if row["flagged"]] == []
    assert {row["name"] for row in result["controls"]} | set(result["skipped"]) == {one.name for one in CONTROLS}
    assert ("argmax_point_masses" in result["skipped"]) == (draft == "prompt-lookup")


def test_faults_of_drawn_chains_are_left_out_for_a_draft_of_point_masses(ending_pair):
    result = run_selftest(ending_pair, "argmax_draft", "lenience", "top_k_ignored", draft="prompt-lookup")
    assert result["skipped"] == ["argmax_draft"]
    assert [row["name"] for row in result["faults"] if row["found"]] == ["lenience", "top_k_ignored"]


def test_a_fault_that_is_not_found_is_undecided(tmp_path):
    argv = ("selftest", "--only", "siblings_with_replacement", "--only", "no_fault", "--limit", 8, "--tokens", 1)
    done = specaudit(*argv, "--control-tokens", 1, "--batch-size", 8, "--out", tmp_path / "selftest.json")
    assert done.code == 3
    assert "siblings_with_replacement" in done.out
    assert "no_fault" in done.out
    assert (tmp_path / "selftest.json").exists()


def test_a_wrong_name_is_refused(tmp_path):
    refused(tmp_path, ("selftest", "--only", "nonsense"), "--only", "nonsense", "lenience")
    refused(tmp_path, ("selftest", "--tokens", 0), "--tokens", "at least 1")


def test_greedy_parameters_are_refused(ending_pair):
    with pytest.raises(InputError, match="temperature"):
        run_selftest(ending_pair, params=SamplingParams(temperature=0.0))


def test_outputs_run_on_to_the_end_of_the_round_alone():
    engine = {"max_new_tokens": 9, "k": 2}
    one = Transcript((1,), (5, 7, 5, 5, 5, 7, 5, 5, 5), SamplingParams(), (2, 2, 2), engine, "length")
    ended = until_the_round_of_an_end(one, [7])
    assert (ended.output_ids, ended.rounds, ended.finish_reason) == ((5, 7, 5), (2,), "stop")
    assert ended.engine["end_ids"] == [7]
    long = until_the_round_of_a_limit(one, 4)
    assert (long.output_ids, long.rounds, long.engine["max_new_tokens"]) == (one.output_ids[:6], (2, 2), 5)
    never = until_the_round_of_an_end(one, [8])
    assert (never.output_ids, never.rounds) == (one.output_ids, one.rounds)
