import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.core.errors import InputError
from specaudit.stats import (
    MINIMUM_PAIRS,
    MINIMUM_PER_BIN,
    MINIMUM_TOKENS_CRAMER_VON_MISES,
    TestResult,
    chi_square_uniform,
    cramer_von_mises_uniform,
    lag_test,
)

EXACT = settings(derandomize=True, database=None, deadline=None, max_examples=50)
ALARM = 1e-9  # chance that a correct program fails one of the simulated checks, were the seed drawn anew


def sample(seed, size=300):
    return np.random.default_rng(seed).random(size)


def most_hits(trials, rate):
    return scipy.stats.binom.isf(ALARM, trials, rate)


@EXACT
@given(seed=st.integers(0, 10_000), bins=st.integers(2, 30))
def test_chi_square_is_invariant_under_permutation(seed, bins):
    u = sample(seed)
    shuffled = np.random.default_rng(seed + 1).permutation(u)
    assert chi_square_uniform(u, bins) == chi_square_uniform(shuffled, bins)


def test_chi_square_by_hand():
    u = np.repeat([0.1, 0.9], [30, 10])
    result = chi_square_uniform(u, 2)
    assert result == TestResult("pit_chi_square", 10.0, pytest.approx(scipy.stats.chi2.sf(10.0, 1)), 40)


def test_both_ends_have_a_bin():
    u = np.repeat([0.0, 1.0], 20)
    assert chi_square_uniform(u, 2).statistic == 0.0


def test_cramer_von_mises_by_hand():
    u = np.sort(sample(1, 200))
    ranks = (2.0 * np.arange(1, 201) - 1.0) / 400.0
    result = cramer_von_mises_uniform(u[::-1])
    assert result.statistic == pytest.approx(1.0 / 2400.0 + np.sum((ranks - u) ** 2))
    assert 0.0 < result.p_value <= 1.0


def test_cramer_von_mises_tail_is_massarts_bound():
    results = [cramer_von_mises_uniform(np.concatenate([np.zeros(k), sample(2, 1000)])) for k in range(0, 3000, 100)]
    p_values = [r.p_value for r in results]
    assert p_values == sorted(p_values, reverse=True)
    assert p_values[-1] == pytest.approx(2.0 * math.exp(-2.0 * results[-1].statistic))
    assert cramer_von_mises_uniform(np.zeros(500)).p_value < 1e-100


def test_lag_by_hand_counts_pairs_within_a_group_only():
    rng = np.random.default_rng(3)
    u, groups = rng.random(400), np.repeat(np.arange(100), 4)
    z = sum(12 * (u[i] - 0.5) * (u[i + 1] - 0.5) for i in range(399) if groups[i] == groups[i + 1]) / math.sqrt(300)
    result = lag_test(u, groups)
    assert result.statistic == pytest.approx(z)
    assert result.p_value == pytest.approx(2 * scipy.stats.norm.sf(abs(z)))
    assert result.tokens == 400


@pytest.mark.parametrize("sign", [1, -1])
def test_lag_finds_dependence_that_leaves_the_margin_uniform(sign):
    u = np.repeat(sample(4, 1000), 2)
    u[1::2] = u[1::2] if sign > 0 else 1.0 - u[1::2]
    result = lag_test(u, np.repeat(np.arange(1000), 2))
    assert result.p_value < 1e-9
    assert math.copysign(1, result.statistic) == sign


@pytest.mark.parametrize(
    "test",
    [lambda u: chi_square_uniform(u, 10), cramer_von_mises_uniform, lambda u: lag_test(u, np.zeros(u.size))],
    ids=["chi_square", "cramer_von_mises", "lag"],
)
def test_level_by_simulation(test):
    """Rate 0.05 with a fifth allowed for the approximations; fails by chance less often than 1e-9."""
    rng, trials = np.random.default_rng(5), 2000
    alarms = sum(test(rng.random(200)).p_value <= 0.05 for _ in range(trials))
    assert alarms <= most_hits(trials, 0.06)
    assert alarms >= scipy.stats.binom.ppf(ALARM, trials, 0.04)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: chi_square_uniform(sample(0, MINIMUM_PER_BIN * 5 - 1), 5), "bins"),
        (lambda: chi_square_uniform(sample(0), 1), "bins"),
        (lambda: chi_square_uniform([1.1] * 100, 2), "u"),
        (lambda: cramer_von_mises_uniform(sample(0, MINIMUM_TOKENS_CRAMER_VON_MISES - 1)), "u"),
        (lambda: cramer_von_mises_uniform([np.nan] * 100), "u"),
        (lambda: lag_test(sample(0, MINIMUM_PAIRS), np.zeros(MINIMUM_PAIRS)), "groups"),
        (lambda: lag_test(sample(0), np.arange(300)), "groups"),
        (lambda: lag_test(sample(0), 1), "u, groups"),
    ],
)
def test_unusable_input_is_named(call, argument):
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.argument == argument
