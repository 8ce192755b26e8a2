import itertools

import numpy as np
import pytest

from specaudit.acceptance.profile import from_tokens, summarise, token_table
from specaudit.acceptance.scoring import ScoredOutput
from specaudit.core.errors import InputError
from specaudit.core.types import SamplingParams, Transcript
from specaudit.cost.predict import RoundCosts, article_formula, leviathan_formula, predict, widest_of


def test_the_articles_formula():
    assert article_formula(0.6, 0.1, 4) == pytest.approx((1 + 4 * 0.6) / (1 + 4 * 0.1))
    assert article_formula(0.0, 0.25, 4) == pytest.approx(0.5)


@pytest.mark.parametrize("alpha", [0.0, 0.4, 0.9])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_leviathans_formula(alpha, k):
    assert leviathan_formula(alpha, 0.2, k) == pytest.approx((1 - alpha ** (k + 1)) / ((1 - alpha) * (k * 0.2 + 1)))


def test_leviathans_formula_at_certain_acceptance():
    assert leviathan_formula(1.0, 0.0, 4) == 5
    assert leviathan_formula(1.0, 0.5, 2) == pytest.approx(1.5)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_the_widest_of_a_batch_by_enumeration(batch):
    shares = np.array([0.1, 0.0, 0.6, 0.3])
    expected = np.zeros(4)
    for widths in itertools.product(range(4), repeat=batch):
        expected[max(widths)] += np.prod(shares[list(widths)])
    assert widest_of(shares, batch) == pytest.approx(expected)


def row(k, batch, context, cost, spread=1.0):
    return {
        "k": k, "width": k + 1, "batch": batch, "context": context, "round_cost": cost,
        "interval": [cost / spread, cost * spread], "seconds": cost,
    }  # fmt: skip


def costs(rows):
    return {"target": "T", "draft": "D", "draft_cost_ratio": 0.1, "rows": rows}


def test_costs_are_interpolated_between_what_was_measured_and_held_beyond():
    table = costs([row(k, 1, c, 1 + k / 10 + c / 1000) for k in (0, 2, 4) for c in (100, 300)])
    assert RoundCosts(table, 1, 200).of([0, 1, 4]) == pytest.approx([1.2, 1.3, 1.6])
    assert RoundCosts(table, 1, 10).of(0) == pytest.approx(1.1)
    assert RoundCosts(table, 1, 999).of(4) == pytest.approx(1.7)
    assert RoundCosts(table, 1, 200).k_max == 4


def test_a_batch_that_was_not_measured_is_refused():
    with pytest.raises(InputError, match=r"--batch-size = 3: the cost table has batches \[1, 2\]"):
        RoundCosts(costs([row(0, 1, 8, 1.0), row(0, 2, 8, 1.0)]), 3, 8)


@pytest.fixture
def profile():
    """Four outputs of ten tokens of which each is accepted with 0.5, none at the budget."""
    scored, transcripts = [], []
    for index in range(4):
        transcripts.append(Transcript((1, 2), tuple(range(10)), SamplingParams()))
        scored.append(
            ScoredOutput(
                index=index, tokens=np.arange(10), target_logprob=np.zeros(10),
                draft_logprob=np.full((10, 1), np.log(0.5)), drafted=np.full(10, 16),
                entropy=np.zeros(10), overlap=np.full(10, 0.5),
            )
        )  # fmt: skip
    return from_tokens(token_table(scored, transcripts, budget=50), k_max=3)


@pytest.fixture
def figures(profile):
    return {**summarise(profile, np.random.default_rng(0)), "target": "T", "draft": "D"}


def test_the_prediction_is_tokens_per_round_over_the_rounds_cost(profile, figures):
    table = costs([row(k, 1, c, 1 + 0.2 * k) for k in range(3) for c in (2, 500)])
    found = predict(profile, figures, table, np.random.default_rng(0))
    assert [r["k"] for r in found["rows"]] == [1, 2]
    for r in found["rows"]:
        per_round = figures["tokens_per_round"][str(r["k"])]
        assert r["tokens_per_round"] == pytest.approx(per_round)
        assert r["round_cost"] == pytest.approx(1 + 0.2 * r["k"])
        assert r["predicted"] == pytest.approx(per_round / (1 + 0.2 * r["k"]))
        assert r["interval"] == pytest.approx([r["predicted"]] * 2)  # equal prompts and exact costs: no spread
        assert r["article_formula"] == pytest.approx(article_formula(0.5, 0.1, r["k"]))
        assert r["leviathan_formula"] == pytest.approx(leviathan_formula(0.5, 0.1, r["k"]))
        assert r["probability_slower"] == float(r["predicted"] < 1)
    best = max(found["rows"], key=lambda r: r["predicted"])
    assert found["best"] == {name: best[name] for name in ("k", "batch", "predicted")}


def test_rounds_that_draft_less_are_charged_for_less(profile, figures):
    narrow = from_tokens(profile.tokens.assign(drafted=[1, 0] * 20), k_max=3)
    table = costs([row(k, 1, 8, 1 + 0.2 * k) for k in range(4)])
    found = predict(narrow, figures, table, np.random.default_rng(0))["rows"][2]
    by_width = narrow.walk.rounds_by_width[:, 2].sum(0)
    assert found["round_cost"] == pytest.approx(float(by_width @ [1.0, 1.2, 1.4, 1.6] / by_width.sum()))
    assert 1.0 < found["round_cost"] < 1.2


def test_an_uncertain_cost_widens_the_interval(profile, figures):
    table = costs([row(k, 1, 8, 1.0, spread=1.3) for k in range(2)])
    (found,) = predict(profile, figures, table, np.random.default_rng(0))["rows"]
    low, high = found["interval"]
    assert low / found["predicted"] == pytest.approx(1 / 1.3, rel=0.03)
    assert high / found["predicted"] == pytest.approx(1.3, rel=0.03)


def test_another_pairs_costs_are_refused(profile, figures):
    table = {**costs([row(0, 1, 8, 1.0), row(1, 1, 8, 1.0)]), "draft": "another"}
    with pytest.raises(InputError, match="--costs = 'another'"):
        predict(profile, figures, table, np.random.default_rng(0))
