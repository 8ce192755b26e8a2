import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.core.errors import InputError
from specaudit.stats import (
    contamination_bets,
    contamination_epsilons,
    contamination_increments,
    log_contamination_eprocess,
    log_mean_exp,
)

EXACT = settings(derandomize=True, database=None, deadline=None, max_examples=200)
ALARM = 1e-9  # chance that a correct program fails one of the simulated checks, were the seed drawn anew
WEIGHT = st.one_of(st.just(0.0), st.floats(1e-9, 1e-3), st.floats(0.1, 1.0))


@st.composite
def laws(draw):
    """Two laws on one vocabulary, with zeros, tiny masses and possibly disjoint supports."""
    size = draw(st.integers(2, 7))
    pair = []
    for _ in range(2):
        weights = np.array(draw(st.lists(WEIGHT, min_size=size, max_size=size)))
        weights[draw(st.integers(0, size - 1))] += 0.0 if weights.sum() > 0 else 1.0
        pair.append(weights / weights.sum())
    return pair


def context(target, draft):
    """Ratios on the target's support, the drafter's mass on it, and the largest ratio."""
    on = target > 0
    ratio = draft[on] / target[on]
    return target[on], ratio, np.full(ratio.size, draft[on].sum()), np.full(ratio.size, ratio.max())


@EXACT
@given(pair=laws(), levels=st.integers(1, 10))
def test_every_increment_has_expectation_exactly_one_and_stays_positive(pair, levels):
    mass, ratio, support, largest = context(*pair)
    for epsilon in contamination_epsilons(levels):
        increments = contamination_increments(ratio, support, largest, float(epsilon))
        assert np.sum(mass * increments) == pytest.approx(1.0, abs=1e-12)
        assert increments.min() >= 0.5 - 1e-9


@EXACT
@given(pair=laws())
def test_the_law_that_is_bet_on_is_the_contamination_on_the_support(pair):
    mass, ratio, support, largest = context(*pair)
    law = mass * contamination_increments(ratio, support, largest, 0.25)
    assert law == pytest.approx((1.0 - 0.25 * support) * mass + 0.25 * ratio * mass, abs=1e-15)


@EXACT
@given(pair=laws(), epsilon=st.floats(-0.5, 0.5))
def test_bets_move_towards_zero_only(pair, epsilon):
    _, _, support, largest = context(*pair)
    bets = contamination_bets(epsilon, support, largest)
    assert np.all(np.abs(bets) <= abs(epsilon))
    assert np.all(bets * epsilon >= 0.0)


def test_no_growth_where_the_drafter_is_off_the_support():
    """The trap: 1 + e (ratio - 1) grows by itself for negative e where truncation cut the drafter's tokens off."""
    tokens = 12_000
    ratio, support = np.zeros(tokens), np.zeros(tokens)
    result = log_contamination_eprocess(ratio, support, ratio)
    assert result.log_e == pytest.approx(0.0, abs=1e-12)
    assert result.running_max_log_e == pytest.approx(0.0, abs=1e-12)
    assert np.all(result.log_e_by_epsilon == 0.0)
    assert np.sum(np.log1p(-0.5 * (ratio - 1.0))) > 4000.0


def test_matches_the_naive_mixture():
    rng = np.random.default_rng(1)
    target, draft = np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.1, 0.2, 0.3, 0.4])
    x = rng.choice(4, size=500, p=[0.3, 0.3, 0.4, 0.0])
    ratio, support, largest = (draft / np.where(target > 0, target, 1.0))[x], np.full(500, 0.6), np.full(500, 1.5)
    result = log_contamination_eprocess(ratio, support, largest, levels=3)
    epsilons = [0.5, 0.25, 0.125, -0.5, -0.25, -0.125]
    paths = np.array([np.cumprod(contamination_increments(ratio, support, largest, e)) for e in epsilons])
    assert result.epsilons.tolist() == epsilons
    assert result.log_e_by_epsilon == pytest.approx(np.log(paths[:, -1]))
    assert result.log_e == pytest.approx(math.log(paths.mean(axis=0)[-1]))
    assert result.running_max_log_e == pytest.approx(math.log(paths.mean(axis=0).max()))
    assert result.log10_e == pytest.approx(math.log10(paths.mean(axis=0)[-1]))
    assert result.p_value == pytest.approx(1.0 / paths.mean(axis=0).max())
    assert result.tokens == 500


def test_the_mixture_has_expectation_one_over_all_outcomes():
    """All 4^4 outputs of four tokens whose contexts depend on the tokens before."""
    target = np.array([[0.6, 0.3, 0.1, 0.0], [0.05, 0.05, 0.1, 0.8], [0.999, 0.0, 0.001, 0.0]])
    draft = np.array([[0.1, 0.3, 0.3, 0.3], [0.4, 0.4, 0.1, 0.1], [0.5, 0.2, 0.3, 0.0]])
    ratios = np.divide(draft, target, out=np.zeros_like(draft), where=target > 0)
    support, largest = np.where(target > 0, draft, 0.0).sum(axis=1), ratios.max(axis=1)
    mean = 0.0
    for output in itertools.product(range(4), repeat=4):
        at = np.array([sum(output[:t]) % 3 for t in range(4)])
        chance = np.prod(target[at, output])
        if chance > 0:
            mean += chance * math.exp(log_contamination_eprocess(ratios[at, output], support[at], largest[at]).log_e)
    assert mean == pytest.approx(1.0, abs=1e-12)


def test_ville_under_contexts_that_depend_on_the_past():
    """Rate 0.05 at any time; 1500 runs fail by chance less often than 1e-9."""
    rng, runs, rate = np.random.default_rng(2), 1500, 0.05
    target = np.array([[0.6, 0.3, 0.1, 0.0], [0.05, 0.05, 0.1, 0.8], [0.999, 0.0, 0.001, 0.0]])
    draft = np.array([[0.1, 0.3, 0.3, 0.3], [0.4, 0.4, 0.1, 0.1], [0.5, 0.2, 0.3, 0.0]])
    ratios = np.divide(draft, target, out=np.zeros_like(draft), where=target > 0)
    support, largest = np.where(target > 0, draft, 0.0).sum(axis=1), ratios.max(axis=1)
    steps = np.cumsum(target, axis=1)
    alarms = 0
    for _ in range(runs):
        contexts, tokens, row = [], [], 0
        for v in rng.random(120):
            x = int(np.searchsorted(steps[row], v, side="right"))
            contexts.append(row)
            tokens.append(x)
            row = (row + x) % 3
        at = np.array(contexts)
        alarms += log_contamination_eprocess(ratios[at, tokens], support[at], largest[at]).rejects(rate)
    assert alarms <= scipy.stats.binom.isf(ALARM, runs, rate)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_finds_contamination_of_either_sign(sign):
    target, draft = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])
    law = target + sign * 0.2 * (draft - target)
    x = np.random.default_rng(3).choice(4, size=4000, p=law)
    result = log_contamination_eprocess((draft / target)[x], np.ones(4000), np.full(4000, 4.0))
    assert result.rejects(1e-6)
    assert math.copysign(1.0, result.epsilons[np.argmax(result.log_e_by_epsilon)]) == sign


def test_no_tokens_is_no_evidence():
    result = log_contamination_eprocess([], [], [])
    assert (result.log_e, result.running_max_log_e, result.p_value, result.tokens) == (0.0, 0.0, 1.0, 0)
    assert not result.rejects(0.5)


def test_an_infinite_largest_ratio_only_stops_the_negative_bets():
    result = log_contamination_eprocess([2.0, 0.5], [1.0, 1.0], [np.inf, np.inf], levels=1)
    assert result.log_e_by_epsilon == pytest.approx([math.log(1.5) + math.log(0.75), 0.0])


def test_log_mean_exp():
    assert log_mean_exp([1000.0, 1000.0]) == pytest.approx(1000.0)
    assert log_mean_exp([-np.inf, -np.inf]) == -np.inf
    table = np.log([[1.0, 3.0], [5.0, 7.0]])
    assert log_mean_exp(table, axis=0) == pytest.approx(np.log([3.0, 5.0]))
    assert log_mean_exp(table, axis=1) == pytest.approx(np.log([2.0, 6.0]))
    assert log_mean_exp(table) == pytest.approx(math.log(4.0))


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: log_contamination_eprocess([np.inf], [1.0], [np.inf]), "ratio"),
        (lambda: log_contamination_eprocess([-1.0], [1.0], [1.0]), "ratio"),
        (lambda: log_contamination_eprocess([1.0], [1.1], [1.0]), "alternative_on_support"),
        (lambda: log_contamination_eprocess([2.0], [1.0], [1.0]), "max_ratio"),
        (lambda: log_contamination_eprocess([2.0], [1.0], [np.nan]), "max_ratio"),
        (lambda: log_contamination_eprocess([1.0, 1.0], [1.0], [1.0]), "ratio, alternative_on_support, max_ratio"),
        (lambda: log_contamination_eprocess([1.0], [1.0], [1.0], levels=0), "levels"),
        (lambda: contamination_increments([1.0], [1.0], [1.0], 0.6), "epsilon"),
        (lambda: log_mean_exp([]), "log_values"),
    ],
)
def test_unusable_input_is_named(call, argument):
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.argument == argument
