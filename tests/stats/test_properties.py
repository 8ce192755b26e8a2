"""What every statistic must be for every law: expectations by exact enumeration, invariances, and monotone power."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.stats import (
    MINIMUM_PER_GROUP,
    RunningMixture,
    contamination_upper_bound,
    cramer_von_mises_uniform,
    detectable_contamination,
    excess_law,
    group_test,
    lag_test,
    log_contamination_eprocess,
    log_contamination_increments,
    log_law_increments,
    log_mean_exp,
    pit_values,
    ratio_bootstrap,
    required_tokens_contamination,
    split,
)
from specaudit.stats.certificate import _stakes

EXACT = settings(derandomize=True, database=None, deadline=None, max_examples=40)
VOCABULARY, TOKENS = 3, 4
WEIGHT = st.one_of(st.just(0.0), st.floats(1e-6, 1e-3), st.floats(0.1, 1.0))
LAW = st.lists(WEIGHT, min_size=VOCABULARY, max_size=VOCABULARY).filter(sum).map(lambda w: np.array(w) / np.sum(w))
CHAIN = st.lists(LAW, min_size=VOCABULARY, max_size=VOCABULARY).map(np.stack)  # the next token's law after each token
OUTPUTS = list(itertools.product(range(VOCABULARY), repeat=TOKENS))


def along(target, other, output):
    """An output's chance under the target's chain, and ratio, mass on the support and largest ratio at each token."""
    at = np.array([0, *output[:-1]])
    ratios = np.divide(other, target, out=np.zeros_like(target), where=target > 0)
    support = np.where(target > 0, other, 0.0).sum(axis=1)
    return np.prod(target[at, output]), ratios[at, output], support[at], ratios.max(axis=1)[at]


def expectation(target, value):
    """Over all outputs that the target's chain gives any chance."""
    chances = {output: along(target, target, output)[0] for output in OUTPUTS}
    return sum(chance * value(output) for output, chance in chances.items() if chance > 0)


def stopped(increments, threshold=1.5):
    """A mixture's value where it first reaches the threshold, or else at its end."""
    mixture = RunningMixture(np.ones(len(increments)))
    for token in range(increments.shape[1]):
        mixture.read(increments[:, token : token + 1])
        if mixture.eprocess.log_e >= math.log(threshold):
            break
    return math.exp(mixture.eprocess.log_e)


INCREMENTS = {
    "contamination": lambda ratio, support, largest: log_contamination_increments(ratio, support, largest, levels=2),
    "law": lambda ratio, support, largest: log_law_increments(ratio, support, [63 / 64, 0.25]),
}
increments = pytest.mark.parametrize("increments", INCREMENTS.values(), ids=INCREMENTS)


@increments
@EXACT
@given(target=CHAIN, other=CHAIN)
def test_an_e_process_expects_one_at_its_end_and_wherever_it_is_stopped(increments, target, other):
    for value in (lambda x: math.exp(_mixed(x).log_e), stopped):
        mean = expectation(target, lambda output, value=value: value(increments(*along(target, other, output)[1:])))
        assert mean == pytest.approx(1.0, abs=1e-9)


def _mixed(increments):
    mixture = RunningMixture(np.ones(len(increments)))
    mixture.read(increments)
    return mixture.eprocess


@increments
@EXACT
@given(target=CHAIN, other=CHAIN, rate=st.floats(0.05, 0.5))
def test_it_reaches_a_threshold_as_rarely_as_it_says(increments, target, other, rate):
    alarms = expectation(target, lambda x: float(_mixed(increments(*along(target, other, x)[1:])).rejects(rate)))
    assert alarms <= rate + 1e-9


@EXACT
@given(target=LAW, other=LAW, delta=st.floats(1e-4, 0.3), strength=st.sampled_from([0.5, 0.25, 63 / 64]))
def test_a_robust_increment_expects_at_most_one_under_any_law_as_near_as_the_noise(target, other, delta, strength):
    """The worst law moves mass delta from the smallest increments to the largest, wherever they are."""
    largest = 4.0
    ratio = np.minimum(np.divide(other, target, out=np.zeros(3), where=target > 0), largest)
    support, noise = np.full(3, np.sum(ratio * target)), delta * largest
    rows = [*np.exp(log_contamination_increments(ratio, support, np.full(3, ratio.max()), 3, noise))]
    rows += [*np.exp(log_law_increments(ratio, support, [strength], noise))]
    for row in rows:
        order, moved, left = np.argsort(row), target.copy(), delta
        for token in order:
            taken = min(left, moved[token])
            moved[token], left = moved[token] - taken, left - taken
        moved[order[-1]] += delta - left
        assert row @ moved <= 1.0 + 1e-12


@EXACT
@given(
    levels=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=2),
    contamination=st.sampled_from([0.0, 0.3, 1.0]),
    delta=st.floats(1e-6, 0.4),
)
def test_the_certificates_process_expects_one_under_its_contamination(levels, contamination, delta):
    """Hits of six tokens whose context is the hit before. Its stakes follow what was seen so far."""
    target, draft = (np.array(side) for side in zip(*((min(pair), max(pair)) for pair in levels), strict=True))
    rates, mean = target + contamination * (draft - target), 0.0
    for outcome in itertools.product([0, 1], repeat=6):
        hits, at = np.array(outcome, dtype=float), np.array((0, *outcome[:-1]))
        shrink = -np.expm1(-_stakes(hits, target[at], -math.log(delta), 6))
        increments = (1.0 - shrink * hits) / (1.0 - shrink * rates[at])
        mean += np.prod(np.where(hits == 1, rates[at], 1.0 - rates[at])) * np.prod(increments)
    assert mean == pytest.approx(1.0, abs=1e-9)


@EXACT
@given(seed=st.integers(0, 10**6))
def test_the_bound_shrinks_with_copies_of_the_same_tokens(seed):
    rng = np.random.default_rng(seed)
    target = rng.random(40)
    draft = target + (1 - target) * rng.random(40)
    hits = rng.random(40) < target
    few, many = (
        contamination_upper_bound(np.tile(hits, n), np.tile(target, n), np.tile(draft, n), 0.05) for n in (1, 50)
    )
    assert many <= few + 1e-9


@EXACT
@given(target=CHAIN, order=st.permutations(range(VOCABULARY)), level=st.floats(0, 1))
def test_pit_values_are_uniform_at_every_token_whatever_the_order_and_the_past(target, order, level):
    """P(u_t <= level) = level after each token, so given all tokens before."""
    place = np.argsort(order)
    for row in target:
        below = np.array([row[place < place[token]].sum() for token in range(VOCABULARY)])
        on = row > 0
        start, end = (pit_values(below[on], row[on], np.full(on.sum(), v)) for v in (0.0, 1.0))
        share = np.clip((level - start) / (end - start), 0.0, 1.0)
        assert np.sum(row[on] * share) == pytest.approx(level, abs=1e-9)


def test_the_statistic_by_group_expects_one_a_group():
    """Over all outcomes of a law on two points of the uniform's mean and variance."""
    points = 0.5 + np.array([-1.0, 1.0]) / math.sqrt(12.0)
    outcomes = itertools.product(points, repeat=MINIMUM_PER_GROUP)
    found = [group_test(np.array(u), np.zeros(len(u))).statistic for u in outcomes]
    assert np.mean(found) == pytest.approx(1.0, abs=1e-12)


@EXACT
@given(seed=st.integers(0, 10**6))
def test_the_order_of_tokens_changes_no_final_value(seed):
    """Of an e-process, though its largest value on the way may be another."""
    rng = np.random.default_rng(seed)
    ratio, order = rng.exponential(size=50), rng.permutation(50)
    support, largest = np.ones(50), np.full(50, ratio.max())
    once = log_contamination_eprocess(ratio, support, largest)
    again = log_contamination_eprocess(ratio[order], support, largest)
    assert again.log_e == pytest.approx(once.log_e, abs=1e-9)
    assert again.log_e_by_epsilon == pytest.approx(once.log_e_by_epsilon, abs=1e-9)
    laws = [_mixed(log_law_increments(r, support, [0.5, 0.25])).log_e for r in (ratio, ratio[order])]
    assert laws[0] == pytest.approx(laws[1], abs=1e-9)
    values = rng.normal(size=50)
    assert log_mean_exp(values) == pytest.approx(log_mean_exp(values[order]), abs=1e-12)


@EXACT
@given(seed=st.integers(0, 10**6))
def test_the_order_of_values_or_outputs_changes_no_uniformity_test(seed):
    rng = np.random.default_rng(seed)
    u = rng.random((30, 8))
    assert cramer_von_mises_uniform(rng.permutation(u.ravel())).statistic == pytest.approx(
        cramer_von_mises_uniform(u.ravel()).statistic, rel=1e-9
    )
    groups, base = np.repeat(np.arange(30), 8), lag_test(u.ravel(), np.repeat(np.arange(30), 8))
    for moved in (rng.permutation(u), u[:, ::-1], 1.0 - u):  # outputs in another order, backwards, mirrored
        assert lag_test(moved.ravel(), groups).statistic == pytest.approx(base.statistic, abs=1e-9)


@EXACT
@given(seed=st.integers(0, 10**6))
def test_the_order_of_contexts_and_of_the_vocabulary_changes_no_excess(seed):
    rng = np.random.default_rng(seed)
    target, draft = rng.dirichlet(np.ones(7), 5), rng.dirichlet(np.ones(7), 5)
    rows, columns = rng.permutation(5), rng.permutation(7)
    once, again = excess_law(target, draft), excess_law(target[rows][:, columns], draft[rows][:, columns])
    assert again.mass == pytest.approx(once.mass, abs=1e-12)
    assert again.moment == pytest.approx(once.moment, abs=1e-12)
    assert again.mean_information == pytest.approx(once.mean_information, rel=1e-9)


@EXACT
@given(seed=st.integers(0, 10**6), tokens=st.integers(10, 10**5), noise=st.floats(0, 0.05), more=st.floats(0, 0.05))
def test_noise_costs_power(seed, tokens, noise, more):
    rng = np.random.default_rng(seed)
    law = excess_law(rng.dirichlet(np.ones(7), 5), rng.dirichlet(np.ones(7), 5))
    less, worse = (detectable_contamination(law, tokens, 1e-3, 0.05, noise=x) for x in (noise, noise + more))
    assert worse >= less
    if math.isfinite(worse):
        needed = [
            required_tokens_contamination(law, min(1.0, worse), 1e-3, 0.05, noise=x) for x in (noise, noise + more)
        ]
        assert needed[0] <= needed[1] <= tokens * (1 + 1e-6) + 1


@EXACT
@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 100))
def test_bootstrapped_ratios_lie_between_the_prompts_own(seed, scale):
    rng = np.random.default_rng(seed)
    denominators = rng.uniform(1, 9, 12)
    numerators = denominators * rng.random(12)
    ratios = ratio_bootstrap(numerators, denominators, 50, np.random.default_rng(seed))
    own = numerators / denominators
    assert np.all((ratios >= own.min() - 1e-12) & (ratios <= own.max() + 1e-12))
    scaled = ratio_bootstrap(scale * numerators, denominators, 50, np.random.default_rng(seed))
    assert scaled == pytest.approx(scale * ratios, rel=1e-9)


@EXACT
@given(rate=st.floats(1e-9, 0.5), order=st.permutations(["a", "b", "c"]))
def test_a_tests_share_does_not_depend_on_the_order_of_names(rate, order):
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}
    base, moved = (split(rate, names, [weights[n] for n in names]) for names in (["a", "b", "c"], order))
    assert moved == pytest.approx(base)
