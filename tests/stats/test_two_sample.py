import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.core.errors import InputError
from specaudit.stats import (
    detectable_exchange,
    exchange_tests,
    required_pairs_exchange,
    smallest_exchange_p_value,
    token_counts,
)
from specaudit.stats.two_sample import EXCEEDANCES

EXACT = settings(derandomize=True, database=None, deadline=None, max_examples=100)
ALARM = 1e-9  # chance that a correct program fails one of the simulated checks, were the seed drawn anew
RATES = st.floats(1e-9, 0.1)


def one_test(tokens, engine, prompts, permutations=2000, seed=0):
    """Of one token an output."""
    counts = {"test": token_counts([[token] for token in tokens])}
    (result,) = exchange_tests(counts, engine, prompts, permutations, np.random.default_rng(seed))
    return result


def by_hand(tokens, engine, prompts):
    """The statistic from its definition."""
    difference, pairs = np.zeros(1 + max(tokens)), 0
    for prompt in set(prompts):
        sides = [[], []]
        for token, own, label in zip(tokens, engine, prompts, strict=True):
            if label == prompt:
                sides[int(own)].append(np.eye(1 + max(tokens))[token])
        pairs += min(map(len, sides))
        difference += min(map(len, sides)) * (np.mean(sides[1], axis=0) - np.mean(sides[0], axis=0))
    return np.linalg.norm(difference) / pairs


def all_assignments(engine, prompts):
    """Every labelling that keeps how many outputs each side has of each prompt."""
    engine, prompts = np.array(engine), np.array(prompts)
    rows = [np.flatnonzero(prompts == prompt) for prompt in np.unique(prompts)]
    for chosen in itertools.product(*(itertools.combinations(r, engine[r].sum()) for r in rows)):
        labels = np.zeros(len(engine), dtype=bool)
        labels[[row for part in chosen for row in part]] = True
        yield labels


@st.composite
def samples(draw):
    sizes = draw(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 2)), min_size=1, max_size=4))
    engine = [side for own, other in sizes for side in [True] * own + [False] * other]
    prompts = [prompt for prompt, size in enumerate(sizes) for _ in range(sum(size))]
    return draw(st.lists(st.integers(0, 2), min_size=len(engine), max_size=len(engine))), engine, prompts


@EXACT
@given(sample=samples(), seed=st.integers(0, 1000))
def test_p_values_are_those_of_a_full_enumeration(sample, seed):
    tokens, engine, prompts = sample
    observed = by_hand(tokens, engine, prompts)
    exact = np.mean([by_hand(tokens, e, prompts) >= observed - 1e-9 for e in all_assignments(engine, prompts)])
    result = one_test(tokens, engine, prompts, permutations=10**6, seed=seed)
    assert result.statistic == pytest.approx(observed, abs=1e-12)
    assert smallest_exchange_p_value(engine, prompts) <= exact + 1e-12
    # The draws that the EXCEEDANCES-th large statistic takes are negative binomial.
    draws = EXCEEDANCES / result.p_value
    assert scipy.stats.nbinom.ppf(ALARM, EXCEEDANCES, exact) <= draws - EXCEEDANCES + 1e-6
    assert draws - EXCEEDANCES - 1e-6 <= scipy.stats.nbinom.isf(ALARM, EXCEEDANCES, exact)


@EXACT
@given(sample=samples())
def test_exactly_as_many_assignments_as_counted(sample):
    _, engine, prompts = sample
    assignments = [tuple(labels) for labels in all_assignments(engine, prompts)]
    mirrored = all(tuple(~np.array(labels)) in assignments for labels in assignments)
    expected = min(1.0, (2 if mirrored else 1) / len(set(assignments)))
    assert smallest_exchange_p_value(engine, prompts) == pytest.approx(expected)


def test_agrees_with_scipy_on_pairs():
    """All 2^10 swaps in scipy against as many draws here as bring the error under a tenth."""
    rng = np.random.default_rng(0)
    engine_tokens, baseline_tokens = rng.integers(0, 3, 10), rng.integers(0, 4, 10)

    def statistic(one, other, axis):
        return np.linalg.norm([(one == t).sum(axis) - (other == t).sum(axis) for t in range(4)], axis=0)

    exact = scipy.stats.permutation_test(
        (engine_tokens, baseline_tokens), statistic, permutation_type="samples", vectorized=True, alternative="greater"
    ).pvalue
    tokens, sides = [*engine_tokens, *baseline_tokens], [True] * 10 + [False] * 10
    runs = [one_test(tokens, sides, [*range(10)] * 2, seed=seed).p_value for seed in range(50)]
    # The mean of k / draws is about k / (k - 1) times the exact one; its spread over 50 runs of 20 is about 3 %.
    assert np.mean(runs) == pytest.approx(exact * EXCEEDANCES / (EXCEEDANCES - 1), rel=0.15)


def test_without_as_large_a_statistic_the_p_value_is_one_over_all_draws():
    result = one_test([1] * 40 + [0] * 40, [True] * 40 + [False] * 40, [*range(40)] * 2, permutations=499)
    assert (result.statistic, result.p_value, result.tokens) == (pytest.approx(math.sqrt(2.0)), 1 / 500, 80)


@EXACT
@given(sample=samples(), seed=st.integers(0, 1000), other=st.permutations([0, 1, 2]))
def test_the_order_of_rows_and_the_names_of_tokens_and_prompts_do_not_matter(sample, seed, other):
    tokens, engine, prompts = (np.array(part) for part in sample)
    order = np.random.default_rng(seed).permutation(len(tokens))
    base = one_test(tokens, engine, prompts)
    renamed = np.array(other)[tokens]
    moved = one_test(renamed[order], engine[order], [f"prompt {p}" for p in prompts[order]])
    assert moved.statistic == pytest.approx(base.statistic, abs=1e-12)
    # Both sides exchanged: the same norm, and so the same assignments at least as large.
    assert one_test(tokens, ~engine, prompts).statistic == pytest.approx(base.statistic, abs=1e-12)


def test_tests_share_assignments_and_end_apart():
    """One that ends early leaves the other's p-value as it is alone."""
    rng = np.random.default_rng(1)
    engine, prompts = [True] * 30 + [False] * 30, [*range(30)] * 2
    quiet, loud = token_counts(rng.integers(0, 3, (60, 1)).tolist()), token_counts([[i < 30] for i in range(60)])
    both = exchange_tests({"quiet": quiet, "loud": loud}, engine, prompts, 3000, np.random.default_rng(2))
    alone = exchange_tests({"loud": loud}, engine, prompts, 3000, np.random.default_rng(2))
    assert both[0].p_value > 0.01
    assert both[1] == alone[0]
    assert both[1].p_value == 1 / 3001


@pytest.mark.parametrize("sizes", [(1, 1), (3, 3), (2, 5)], ids=str)
def test_level_by_simulation(sizes):
    """Prompts of very different laws; the chance of a p-value of at most 0.05."""
    rng, trials, hits = np.random.default_rng(3), 400, 0
    engine = np.tile(np.repeat([True, False], sizes), 12)
    prompts = np.repeat(np.arange(12), sum(sizes))
    for trial in range(trials):
        laws = rng.dirichlet(np.full(5, 0.5), 12)
        tokens = [rng.choice(5, p=laws[prompt]) for prompt in prompts]
        hits += one_test(tokens, engine, prompts, permutations=199, seed=trial).p_value <= 0.05
    assert hits <= scipy.stats.binom.isf(ALARM, trials, 0.05)


def test_power_at_the_detectable_difference():
    """Most spread: every prompt has tokens of its own; a share of outputs gets one other token."""
    rng, trials, pairs, permutations = np.random.default_rng(4), 60, 120, 79
    share, found = detectable_exchange(pairs, permutations, 0.05, 0.2), 0
    assert share < 1.0
    for trial in range(trials):
        own = rng.integers(1, 10**6, pairs)
        tokens = [*np.where(rng.random(pairs) < share, 0, rng.integers(1, 10**6, pairs)), *own]
        sides = [True] * pairs + [False] * pairs
        found += one_test(tokens, sides, [*range(pairs)] * 2, permutations, seed=trial).p_value <= 0.05
    assert found >= scipy.stats.binom.ppf(ALARM, trials, 0.8)


@EXACT
@given(pairs=st.integers(1, 10**6), more=st.integers(1, 10**6), alarm=RATES, miss=RATES)
def test_more_pairs_find_smaller_differences(pairs, more, alarm, miss):
    permutations = math.ceil(4 / alarm)
    fewer, most = (detectable_exchange(n, permutations, alarm, miss) for n in (pairs, pairs + more))
    assert most < fewer or (most == fewer == math.inf)
    base = detectable_exchange(pairs + more, permutations, alarm, miss)
    assert detectable_exchange(pairs + more, permutations, alarm, miss / 2) >= base
    assert detectable_exchange(pairs + more, 2 * permutations, alarm / 2, miss) >= base
    assert detectable_exchange(pairs + more, 8 * permutations, alarm, miss) <= base


@EXACT
@given(pairs=st.integers(1, 10**6), alarm=RATES, miss=RATES)
def test_required_inverts_detectable(pairs, alarm, miss):
    permutations = math.ceil(4 / alarm)
    difference = detectable_exchange(pairs, permutations, alarm, miss)
    if math.isfinite(difference):
        assert pairs - 1 <= required_pairs_exchange(difference, permutations, alarm, miss) <= pairs + 1
        needed = required_pairs_exchange(difference / 2, permutations, alarm, miss)
        assert detectable_exchange(needed, permutations, alarm, miss) <= difference / 2 * (1 + 1e-9)


def test_token_counts():
    table = token_counts([["a", "b", "a"], [], ["b"]])
    assert table.toarray().tolist() == [[2, 1], [0, 0], [0, 1]]
    assert token_counts([[], []]).toarray().tolist() == [[0], [0]]


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: one_test([0, 1], [True, True], [0, 0]), "prompts"),
        (lambda: one_test([0, 1], [True, False], [0, 1]), "prompts"),
        (lambda: one_test([], [], []), "prompts"),
        (lambda: one_test([0, 1], [True, False], [0, 0], permutations=0), "permutations"),
        (lambda: one_test([0, 1, 1], [True, False], [0, 0]), "engine, prompts, test"),
        (lambda: smallest_exchange_p_value([True, True], [0, 0]), "prompts"),
        (lambda: detectable_exchange(0, 100, 0.1, 0.1), "pairs"),
        (lambda: detectable_exchange(10, 8, 0.1, 0.1), "permutations"),
        (lambda: detectable_exchange(10, 100, 0.0, 0.1), "false_alarm_rate"),
        (lambda: detectable_exchange(10, 100, 0.1, 0.7), "missed_rate"),
        (lambda: required_pairs_exchange(1.5, 100, 0.1, 0.1), "difference"),
    ],
)
def test_unusable_input_is_named(call, argument):
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.argument == argument
