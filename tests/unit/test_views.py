"""Alpha by entropy, place, prompt length and prompt, from a token table that is small enough to count by hand."""

import numpy as np
import pandas as pd
import pytest

from specaudit.acceptance import profile as profiles

PROMPTS, LENGTH = 12, 20


@pytest.fixture(scope="module")
def profile():
    """The draft gives each token 1 / (1 + p % 3) of the target's probability; nothing is drafted at token 0."""
    frames = []
    for prompt in range(PROMPTS):
        entropy = np.linspace(0.0, 3.0, LENGTH) + prompt / 100
        share = 1.0 / (1 + prompt % 3)
        frames.append(pd.DataFrame({
            "prompt": 10 * prompt, "position": np.arange(LENGTH), "token": 1, "target_logprob": np.log(0.5),
            "draft_logprob": [np.array([np.log(0.5 * share)])] * LENGTH, "entropy": entropy, "overlap": share,
            "drafted": np.where(np.arange(LENGTH) == 0, 0, 8), "budget": LENGTH,
            "context": 5 + 20 * (prompt % 2) + np.arange(LENGTH), "category": "odd" if prompt % 2 else "even",
        }))  # fmt: skip
    return profiles.from_tokens(pd.concat(frames, ignore_index=True), 4)


@pytest.fixture(scope="module")
def figures(profile):
    return profiles.summarise(profile, np.random.default_rng(0))


def test_groups_hold_every_token_once_and_average_to_alpha(figures):
    for name in ("entropy_decile", "position", "prompt_tokens"):
        rows = figures["views"][name]
        assert sum(row["tokens"] for row in rows) == PROMPTS * LENGTH
        assert sum(row["drafted"] for row in rows) == PROMPTS * (LENGTH - 1)
        mean = sum(row["alpha"] * row["drafted"] for row in rows) / sum(row["drafted"] for row in rows)
        assert mean == pytest.approx(figures["alpha"])


def test_deciles_are_tenths_in_order(figures):
    rows = figures["views"]["entropy_decile"]
    assert [row["decile"] for row in rows] == list(range(1, 11))
    assert {row["tokens"] for row in rows} == {PROMPTS * LENGTH // 10}
    ends = [end for row in rows for end in (row["from"], row["to"])]
    assert ends == sorted(ends)


def test_bins_of_positions_and_of_prompt_lengths(figures):
    assert [(row["from"], row["to"], row["prompts"]) for row in figures["views"]["position"]] == [
        (0, 15, PROMPTS), (16, 31, PROMPTS),
    ]  # fmt: skip
    short, long = figures["views"]["prompt_tokens"]
    assert [(row["from"], row["to"], row["prompts"]) for row in (short, long)] == [(0, 15, 6), (16, 31, 6)]
    assert set(short["tokens_per_round"]) == {"1", "2", "3", "4"}
    low, high = short["alpha_interval"]
    assert low < short["alpha"] < high


def test_the_worst_prompts_come_first(figures):
    worst = figures["views"]["worst_prompts"]
    assert len(worst) == 10
    assert {row["prompt"] for row in worst[:4]} == {20, 50, 80, 110}  # a third of the target's probability
    assert worst[0]["alpha"] == pytest.approx(1 / 3)
    assert [row["tokens_per_round"] for row in worst] == sorted(row["tokens_per_round"] for row in worst)


def test_few_prompts_have_no_interval(profile):
    few = profiles.from_tokens(profile.tokens[profile.tokens["prompt"] < 40], 4)
    views = profiles.summarise(few, np.random.default_rng(0))["views"]
    assert all(row["alpha_interval"] == [None, None] for row in views["entropy_decile"])


def test_rounds_by_accepted_are_the_rounds(figures):
    """They sum to one, and tokens per round are one more than their mean, but for the tokens that end an output."""
    for k in range(1, 5):
        shares = figures["rounds_by_accepted"][str(k)]
        assert len(shares) == k + 1
        assert sum(shares) == pytest.approx(1.0)
        mean = 1.0 + sum(n * share for n, share in enumerate(shares))
        assert figures["tokens_per_round"][str(k)] <= mean + 1e-12
        assert figures["tokens_per_round"][str(k)] == pytest.approx(mean, rel=0.1)
    survival = figures["survival_by_depth"]
    assert survival == sorted(survival, reverse=True)
    assert 1.0 - figures["rounds_by_accepted"]["4"][0] == pytest.approx(survival[0])
