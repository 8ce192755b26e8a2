"""Random numbers that a decoder uses twice, seeds that a user gives twice, and tokens at the edge of a cut."""

import dataclasses

import numpy as np
import pytest
import torch

from specaudit import decode
from specaudit.audit import checkpoint
from specaudit.audit.independence import SHARED_SEEDS
from specaudit.audit.lossless import Audit, audit
from specaudit.audit.noise import Noise
from specaudit.core.sampling import RowUniforms
from specaudit.core.types import SamplingParams, Transcript
from specaudit.models.tabular import TabularModel

PLAIN = SamplingParams(seed=30)
OUTPUTS, TOKENS = 30, 40


class OneStream(RowUniforms):
    """Every row draws what the first one does."""

    def __init__(self, seeds):
        super().__init__([7] * len(seeds))


class Reset(RowUniforms):
    """Every round begins its row's stream anew."""

    def __init__(self, seeds):
        self.seeds = list(seeds)
        super().__init__(seeds)

    def draw(self, count, device="cpu"):
        super().__init__(self.seeds)
        return super().draw(count, device)

    def keep(self, rows):
        self.seeds = [self.seeds[row] for row in rows]


@pytest.fixture(scope="module")
def made(tabular_pair):
    """Outputs of different prompts, or of one, under a seed each; by the decode loop with a stream of its own."""

    def outputs(stream=RowUniforms, draft="draft", *, one_prompt=False):
        rows = [[2, 5]] * OUTPUTS if one_prompt else np.random.default_rng(4).integers(0, 8, (OUTPUTS, 2)).tolist()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decode, "RowUniforms", stream)
            return tabular_pair.decode(draft, PLAIN, rows, max_new_tokens=TOKENS).transcripts

    return outputs


def audited(pair, transcripts, draft="draft"):
    result = audit(pair.target, pair.drafter(draft), transcripts)
    return result, {test["name"] for test in result["tests"] if test["flagged"]}


def seeded(transcripts, seeds):
    return [
        dataclasses.replace(t, sampling=dataclasses.replace(t.sampling, seed=seed))
        for t, seed in zip(transcripts, seeds, strict=True)
    ]


@pytest.mark.parametrize("draft", ["draft", "prompt-lookup", None])
@pytest.mark.parametrize("one_prompt", [False, True])
def test_streams_of_their_own_are_not_accused(tabular_pair, made, draft, one_prompt):
    _, flagged = audited(tabular_pair, made(draft=draft, one_prompt=one_prompt), draft)
    assert flagged == set()


@pytest.mark.parametrize("draft", ["draft", None])
def test_rows_that_share_their_stream_are_found(tabular_pair, made, draft):
    result, flagged = audited(tabular_pair, made(OneStream, draft), draft)
    assert "cross_row" in flagged
    assert result["verdict"] == "violated"


@pytest.mark.parametrize("draft", ["draft", None])
def test_a_stream_that_begins_anew_with_every_round_is_found(tabular_pair, made, draft):
    result, flagged = audited(tabular_pair, made(Reset, draft), draft)
    assert "within_row" in flagged
    assert result["verdict"] == "violated"


def test_copies_of_an_output_are_found(tabular_pair, made):
    """One prompt, of which two outputs are alike, though their seeds are not."""
    outputs = made(one_prompt=True)
    outputs[20] = dataclasses.replace(outputs[20], output_ids=outputs[3].output_ids, rounds=outputs[3].rounds)
    result, flagged = audited(tabular_pair, outputs)
    assert (flagged, result["verdict"]) == ({"repeated_output"}, "violated")
    assert (result["cause"]["name"], "copies" in result["cause"]["text"]) == ("repeated_output", True)


@pytest.mark.parametrize("seeds", [[0] * OUTPUTS, [7] * OUTPUTS, [*range(1, OUTPUTS), 1]])
def test_under_one_recorded_seed_the_user_may_have_shared_the_numbers(tabular_pair, made, seeds):
    result, flagged = audited(tabular_pair, seeded(made(OneStream), seeds))
    assert "cross_row" in flagged
    assert (result["verdict"], result["inconclusive_because"]) == ("inconclusive", SHARED_SEEDS)
    assert result["repeated_seeds"] == OUTPUTS - len(set(seeds))
    hard = seeded(made(OneStream), seeds)
    hard[0] = dataclasses.replace(hard[0], rounds=())
    assert audited(tabular_pair, hard)[0]["verdict"] == "violated"


def test_one_recorded_seed_says_nothing_against_independent_outputs(tabular_pair, made):
    result, flagged = audited(tabular_pair, seeded(made(), [1] * OUTPUTS))
    assert (result["verdict"], flagged, result["tokens"]) == ("no_violation_found", set(), OUTPUTS * TOKENS)


def test_an_end_token_speaks_against_an_output_of_another_piece(tabular_pair):
    target = TabularModel(tabular_pair.target.logits, "ends at 4", end_ids=[4])
    ended = Transcript((1,), (2, 4), SamplingParams(seed=1), finish_reason="stop")
    went_on = Transcript((1,), (2, 4, 3), SamplingParams(seed=2))
    whole = Audit(target, None)
    whole.add([went_on])
    assert whole.result()["verdict"] == "inconclusive"
    whole.add([ended])
    assert (whole.result()["verdict"], whole.result()["cause"]["name"]) == ("violated", "after_end")


def test_what_was_read_of_seeds_and_claims_is_taken_up_again(tabular_pair, made, tmp_path):
    outputs = seeded(made(one_prompt=True), [*range(1, 16), *range(1, 11), *[0] * 5])
    outputs[2] = dataclasses.replace(outputs[2], rounds=())
    outputs[28] = dataclasses.replace(outputs[28], output_ids=outputs[4].output_ids, rounds=None)
    first, second = (Audit(tabular_pair.target, tabular_pair.drafter("draft")) for _ in range(2))
    first.add(outputs[:17])
    checkpoint.save(tmp_path / "audit.npz", first, {})
    checkpoint.load(tmp_path / "audit.npz", second, {})
    for whole in (first, second):
        whole.add(outputs[17:])
    assert first.result() == second.result()
    assert first.result()["repeated_seeds"] == 14
    assert {t["name"]: t["statistic"] for t in first.result()["tests"]}["repeated_output"] >= 1.0


@pytest.mark.parametrize(("margin", "boundary"), [(0.0, False), (0.2, True)])
def test_a_token_at_the_edge_of_a_cut_is_reported_apart(tabular_pair, monkeypatch, margin, boundary):
    """The fourth token under top_k = 3, short by 0.1 of a logit, once in 30 outputs."""
    logits = tabular_pair.target.logits.clone()
    logits[2] = torch.tensor([2.0, 1.0, 0.5, 0.4, -1.0, -1.0, -1.0, -1.0])
    params = SamplingParams(top_k=3, seed=30)
    pair = dataclasses.replace(tabular_pair, target=TabularModel(logits))
    outputs = pair.decode(None, params, [[n % 8, 2] for n in range(OUTPUTS)], max_new_tokens=TOKENS).transcripts
    outputs[4] = dataclasses.replace(outputs[4], output_ids=(3,), rounds=None)
    monkeypatch.setattr("specaudit.audit.lossless.measure_noise", lambda *_: Noise(margin, 0.0, 100))
    result = audit(pair.target, None, outputs)
    assert (result["boundary_tokens"], result["impossible_tokens"]) == (int(boundary), int(not boundary))
    assert result["verdict"] == ("no_violation_found" if boundary else "violated")
    assert np.isfinite(result["log10_e"])
