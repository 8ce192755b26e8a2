"""The test of PIT values by group, and what it finds."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.core.errors import InputError
from specaudit.stats import detectable_group_shift, group_test, required_tokens_group_shift

RATES = st.floats(1e-9, 0.1)
EXACT = settings(derandomize=True, database=None, deadline=None, max_examples=30)


def test_by_hand():
    u = np.array([0.9] * 8 + [0.25] * 10 + [0.0] * 7)
    result = group_test(u, [5] * 8 + [1] * 10 + [2] * 7, "pit_depth")
    statistic = 12 * (8 * 0.4) ** 2 / 8 + 12 * (10 * 0.25) ** 2 / 10
    assert (result.name, result.tokens) == ("pit_depth", 18)
    assert result.statistic == pytest.approx(statistic)
    assert result.p_value == pytest.approx(scipy.stats.chi2.sf(statistic, 2))


def test_p_values_err_upwards_under_uniformity():
    """Of 2000 tests of 20 groups of 8 each; a right test fails with probability below 1e-6, had the seed been drawn."""
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(20), 8)
    p = np.array([group_test(rng.random(160), groups).p_value for _ in range(2000)])
    for level in (0.001, 0.01, 0.1):
        assert (p <= level).sum() <= scipy.stats.binom.isf(1e-6, 2000, level)
    assert scipy.stats.kstest(p, "uniform").statistic < 0.06


@EXACT
@given(seed=st.integers(0, 10**6))
def test_the_order_of_values_and_the_names_of_groups_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    u, groups = rng.random(200), rng.integers(5, size=200)
    order = rng.permutation(200)
    once, again = group_test(u, groups), group_test(u[order], 10 - groups[order])
    assert again.statistic == pytest.approx(once.statistic)


def test_opposite_shifts_are_found_where_their_mean_is_right():
    rng = np.random.default_rng(5)
    miss, groups = 0.1, np.tile(np.arange(4), 500)
    shift = detectable_group_shift(2000, 4, 1e-3, miss)
    signs = np.array([1, -1, 1, -1])[groups]
    found = sum(
        group_test(np.clip(rng.random(2000) * (1 - 2 * shift) + shift * (1 + signs), 0, 1), groups).p_value <= 1e-3
        for _ in range(200)
    )
    assert found >= scipy.stats.binom.ppf(1e-9, 200, 1 - miss)


@EXACT
@given(tokens=st.integers(100, 10**6), groups=st.integers(1, 10), alarm=RATES, miss=RATES)
def test_more_tokens_find_smaller_shifts_and_the_inverse_is_one(tokens, groups, alarm, miss):
    shift = detectable_group_shift(tokens, groups, alarm, miss)
    assert detectable_group_shift(2 * tokens, groups, alarm, miss) <= shift
    if shift < math.inf:
        needed = required_tokens_group_shift(shift, groups, alarm, miss)
        assert needed <= max(tokens * (1 + 1e-9) + 1, 8 * groups)
        assert detectable_group_shift(needed, groups, alarm, miss) <= shift * (1 + 1e-9)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: group_test([0.5] * 9, [1] * 8), "u, groups"),
        (lambda: group_test([1.5] * 9, [1] * 9), "u"),
        (lambda: group_test([0.5] * 9, range(9)), "groups"),
        (lambda: group_test([], []), "groups"),
        (lambda: detectable_group_shift(0, 2, 0.1, 0.1), "tokens"),
        (lambda: detectable_group_shift(100, 0, 0.1, 0.1), "groups"),
        (lambda: detectable_group_shift(100, 2, 0.6, 0.1), "false_alarm_rate"),
        (lambda: required_tokens_group_shift(0.6, 2, 0.1, 0.1), "shift"),
    ],
)
def test_unusable_input_is_named(call, argument):
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.argument == argument
