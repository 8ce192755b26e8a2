import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.core.errors import InputError
from specaudit.stats import contamination_upper_bound

EXACT = settings(derandomize=True, database=None, deadline=None, max_examples=100)
ALARM = 1e-9  # chance that a correct program fails one of the simulated checks, were the seed drawn anew


def hoeffding(hit, target_mass, draft_mass, delta):
    width = math.sqrt(math.log(1.0 / delta) / (2 * hit.size))
    bound = (np.mean(hit - target_mass) + width) / np.mean(draft_mass - target_mass)
    return min(1.0, max(0.0, bound))


@pytest.mark.parametrize("contamination", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("masses", [(0.4, 0.7), (0.02, 0.1), (0.0, 0.5)])
def test_covers_the_true_contamination(masses, contamination):
    """Contexts alternate with one of another mass, chosen by the last hit; delta 0.1, 800 runs."""
    rng, runs, tokens, delta = np.random.default_rng(1), 800, 150, 0.1
    target, draft = np.array([masses[0], 0.3]), np.array([masses[1], 0.8])
    rates = target + contamination * (draft - target)
    state, missed = np.zeros(runs, dtype=int), 0
    hits, states = np.zeros((runs, tokens)), np.zeros((runs, tokens), dtype=int)
    for t in range(tokens):
        states[:, t] = state
        hits[:, t] = rng.random(runs) < rates[state]
        state = hits[:, t].astype(int)
    for hit, at in zip(hits, states, strict=True):
        missed += contamination_upper_bound(hit, target[at], draft[at], delta) < contamination
    assert missed <= scipy.stats.binom.isf(ALARM, runs, delta)


@pytest.mark.parametrize("mass", [0.3, 0.05, 0.005])
def test_at_least_about_as_tight_as_hoeffding(mass):
    rng, tokens = np.random.default_rng(2), 2000
    target, draft = np.full(tokens, mass), np.full(tokens, mass + 0.2)
    hit = rng.random(tokens) < mass
    bound, reference = contamination_upper_bound(hit, target, draft, 0.01), hoeffding(hit, target, draft, 0.01)
    assert bound < 1.02 * reference
    assert mass > 0.1 or bound < 0.6 * reference


@EXACT
@given(seed=st.integers(0, 10_000), tokens=st.integers(1, 200), delta=st.floats(1e-9, 0.4))
def test_between_zero_and_one_and_wider_for_smaller_delta(seed, tokens, delta):
    rng = np.random.default_rng(seed)
    target = rng.random(tokens)
    draft = target + (1.0 - target) * rng.random(tokens)
    hit = rng.random(tokens) < target
    bound = contamination_upper_bound(hit, target, draft, delta, planned_tokens=200)
    assert 0.0 <= bound <= 1.0
    assert contamination_upper_bound(hit, target, draft, delta / 10, planned_tokens=200) >= bound


@pytest.mark.parametrize("contamination", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("delta", [0.3, 0.01])
def test_covers_over_all_outcomes(contamination, delta):
    """All 2^9 outcomes of nine tokens, the context chosen by the hit before: P(bound < e) is at most delta."""
    target, draft = np.array([0.02, 0.5]), np.array([0.7, 0.9])
    rates, missed = target + contamination * (draft - target), 0.0
    for outcome in itertools.product([0, 1], repeat=9):
        hit, at = np.array(outcome), np.array((0, *outcome[:-1]))
        chance = np.prod(np.where(hit == 1, rates[at], 1.0 - rates[at]))
        missed += chance * (contamination_upper_bound(hit, target[at], draft[at], delta) < contamination)
    assert missed <= delta


def test_one_token_excludes_what_it_contradicts():
    assert contamination_upper_bound([0], [0.4], [0.9], 0.05) == 1.0
    assert 0.9 < contamination_upper_bound([0], [0.0], [1.0], 0.05) < 1.0


def test_no_gap_or_no_tokens_excludes_nothing():
    assert contamination_upper_bound(np.zeros(1000), np.zeros(1000), np.zeros(1000), 0.05) == 1.0
    assert contamination_upper_bound([], [], [], 0.05, planned_tokens=10) == 1.0


def test_far_too_few_hits_leave_no_contamination():
    assert contamination_upper_bound(np.zeros(1000), np.full(1000, 0.5), np.full(1000, 0.9), 0.05) == 0.0


def test_shrinks_with_tokens():
    rng = np.random.default_rng(3)
    hit = rng.random(100_000) < 0.2
    bounds = [
        contamination_upper_bound(hit[:n], np.full(n, 0.2), np.full(n, 0.6), 0.05) for n in (100, 1000, 10_000, 100_000)
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 0.02


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_plan_off_by_two_costs_little(factor):
    rng = np.random.default_rng(4)
    hit, target, draft = rng.random(5000) < 0.2, np.full(5000, 0.2), np.full(5000, 0.6)
    width = contamination_upper_bound(hit, target, draft, 0.01) - np.mean(hit - target) / 0.4
    other = contamination_upper_bound(hit, target, draft, 0.01, planned_tokens=int(5000 * factor))
    assert other - np.mean(hit - target) / 0.4 < 1.1 * width


def test_stakes_far_beyond_the_plan_stay_finite():
    bound = contamination_upper_bound(np.zeros(5000), np.zeros(5000), np.full(5000, 0.5), 1e-9, planned_tokens=1)
    assert 0.0 < bound < 0.1


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: contamination_upper_bound([2.0], [0.1], [0.5], 0.05), "hit"),
        (lambda: contamination_upper_bound([1.0], [0.6], [0.5], 0.05), "draft_mass"),
        (lambda: contamination_upper_bound([1.0], [-0.1], [0.5], 0.05), "target_mass"),
        (lambda: contamination_upper_bound([1.0], [0.1], [0.5, 0.5], 0.05), "hit, target_mass, draft_mass"),
        (lambda: contamination_upper_bound([1.0], [0.1], [0.5], 0.0), "delta"),
        (lambda: contamination_upper_bound([], [], [], 0.05), "planned_tokens"),
    ],
)
def test_unusable_input_is_named(call, argument):
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.argument == argument
