import dataclasses

import numpy as np
import pandas as pd
import pytest

from specaudit.acceptance import profile as profiles
from specaudit.acceptance.scoring import score_outputs
from specaudit.core.artifacts import provenance
from specaudit.core.errors import InputError
from specaudit.core.types import SamplingParams

PARAMS = SamplingParams(temperature=0.9, seed=31)
BUDGET = 60
PROMPTS = np.random.default_rng(4).integers(0, 8, size=(80, 4)).tolist()


def profiled(pair, draft, params, transcripts, budget=BUDGET, k_max=6):
    scored = list(score_outputs(pair.target, pair.drafter(draft), transcripts, params, k_max))
    return profiles.from_tokens(profiles.token_table(scored, transcripts, budget), k_max)


@pytest.fixture(scope="module")
def baseline(tabular_pair):
    """Outputs of the target alone, which is all that a profile needs."""
    return tabular_pair.decode(None, PARAMS, PROMPTS, max_new_tokens=BUDGET).transcripts


def ratio_and_error(tokens, rounds):
    """Tokens a round, and its standard error over prompts (delta method)."""
    tokens, rounds = np.array(tokens, dtype=float), np.array(rounds, dtype=float)
    ratio = tokens.sum() / rounds.sum()
    return ratio, np.std(tokens - ratio * rounds, ddof=1) * np.sqrt(len(rounds)) / rounds.sum()


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("draft", ["draft", "prompt-lookup"])
def test_the_walk_over_plain_outputs_foretells_the_decoders_tokens_per_round(tabular_pair, baseline, draft, k):
    decoded = tabular_pair.decode(draft, PARAMS, PROMPTS, k=k, max_new_tokens=BUDGET).transcripts
    measured, error = ratio_and_error([len(t.output_ids) for t in decoded], [len(t.rounds) for t in decoded])
    figures = profiles.summarise(profiled(tabular_pair, draft, PARAMS, baseline), np.random.default_rng(0))
    assert figures["tokens_per_round"][str(k)] == pytest.approx(measured, abs=3 * error)
    assert error < 0.03 * measured


@pytest.mark.parametrize("draft", ["draft", "prompt-lookup"])
def test_the_walk_over_the_decoders_own_outputs_counts_its_rounds(tabular_pair, draft):
    """Widths too: the same outputs, so the rounds differ by the accept decisions alone."""
    k = 3
    decoded = tabular_pair.decode(draft, PARAMS, PROMPTS, k=k, max_new_tokens=BUDGET)
    walked = profiled(tabular_pair, draft, PARAMS, decoded.transcripts).walk
    rounds = np.array([len(transcript.rounds) for transcript in decoded.transcripts])
    spread = np.std(rounds - walked.rounds[:, k - 1], ddof=1) / np.sqrt(len(rounds))
    assert walked.rounds[:, k - 1].mean() == pytest.approx(rounds.mean(), abs=3 * spread)
    widths = np.bincount([w for r in decoded.rounds for w in r.proposed], minlength=k + 1) / rounds.sum()
    expected = walked.rounds_by_width[:, k - 1, : k + 1].sum(0) / walked.rounds[:, k - 1].sum()
    assert expected == pytest.approx(widths, abs=0.03)


@pytest.mark.parametrize("penalty", [{}, {"repetition_penalty": 1.3, "frequency_penalty": 0.2}], ids=["", "penalised"])
@pytest.mark.parametrize("draft", ["draft", "prompt-lookup"])
@pytest.mark.parametrize("name", ["tabular_pair", "llama_pair"])
def test_greedy_rounds_are_walked_exactly(name, draft, penalty, request):
    """So the drafter proposes in the loop what its replay says, whatever was rejected before."""
    pair = request.getfixturevalue(name)
    params = SamplingParams(temperature=0, **penalty)
    for k in (1, 3):
        decoded = pair.decode(draft, params, k=k, max_new_tokens=30).transcripts
        walked = profiled(pair, draft, params, decoded, budget=30).walk
        assert walked.rounds[:, k - 1].tolist() == [len(transcript.rounds) for transcript in decoded]


def test_alpha_is_the_overlap_of_target_and_draft(tabular_pair, baseline):
    """A token drafted at a prefix is accepted with sum(min(p, q)): the two differ by the draw of the output alone."""
    profile = profiled(tabular_pair, "draft", PARAMS, baseline)
    figures = profiles.summarise(profile, np.random.default_rng(0))
    low, high = figures["alpha_interval"]
    assert low < figures["alpha"] < high
    assert low < profile.tokens["overlap"].mean() < high
    assert figures["alpha_by_depth"][0] == pytest.approx(figures["alpha"], abs=0.1)
    assert figures["biased_estimates"]["geometric"]["1"] == pytest.approx(1 + figures["alpha"])


def test_a_profile_is_written_and_read_back(tabular_pair, baseline, tmp_path):
    profile = profiled(tabular_pair, "draft", PARAMS, baseline)
    figures = profiles.summarise(profile, np.random.default_rng(0))
    profiles.write(tmp_path / "profile", profile, figures, provenance(seed=1))
    read, artifact = profiles.read(tmp_path / "profile")
    assert artifact["schema"] == "specaudit.profile/1"
    assert artifact["provenance"]["seed"] == 1
    assert artifact["tokens_per_round"] == pytest.approx(figures["tokens_per_round"])
    assert artifact["alpha_interval"] == pytest.approx(figures["alpha_interval"])
    assert artifact["tokens"] == len(profile.tokens) == 80 * BUDGET
    pd.testing.assert_frame_equal(
        read.tokens.drop(columns="draft_logprob"), profile.tokens.drop(columns="draft_logprob"), check_dtype=False
    )
    for part in ("rounds", "rounds_by_width", "reached", "accepted"):
        assert getattr(read.walk, part) == pytest.approx(getattr(profile.walk, part), abs=1e-12)


def test_a_chain_drafts_profile_survives_the_file(tabular_pair, baseline, tmp_path):
    """Its log-probabilities by depth are zero or minus infinity."""
    profile = profiled(tabular_pair, "prompt-lookup", PARAMS, baseline[:10])
    profiles.write(tmp_path, profile, profiles.summarise(profile, np.random.default_rng(0)), {})
    assert profiles.read(tmp_path)[0].walk.rounds == pytest.approx(profile.walk.rounds, abs=1e-12)


def test_figures_by_category(tabular_pair):
    names = ["code"] * 6 + ["talk"] * 2
    made = tabular_pair.decode(None, PARAMS, PROMPTS[:8], max_new_tokens=20).transcripts
    labelled = [dataclasses.replace(t, category=name) for t, name in zip(made, names, strict=True)]
    figures = profiles.summarise(profiled(tabular_pair, "draft", PARAMS, labelled), np.random.default_rng(0))
    by = figures["by_category"]
    assert {name: by[name]["prompts"] for name in by} == {"code": 6, "talk": 2}
    assert by["code"]["tokens"] == 120
    assert by["talk"]["alpha_interval"] == [None, None]  # two prompts tell nothing of others
    low, high = by["code"]["alpha_interval"]
    assert low < by["code"]["alpha"] < high


def test_a_folder_that_is_no_profile_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not a folder; give the folder that"):
        profiles.read(tmp_path / "nowhere")
    with pytest.raises(InputError, match="cannot be read"):
        profiles.read(tmp_path)
