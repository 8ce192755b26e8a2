import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.core.errors import InputError
from specaudit.stats import (
    MINIMUM_PER_BIN,
    chi_square_uniform,
    cramer_von_mises_uniform,
    detectable_chi_square,
    detectable_cramer_von_mises,
    detectable_lag,
    lag_test,
    required_pairs_lag,
    required_tokens_chi_square,
    required_tokens_cramer_von_mises,
)

EXACT = settings(derandomize=True, database=None, deadline=None, max_examples=100)
ALARM = 1e-9  # chance that a correct program fails one of the simulated checks, were the seed drawn anew
RATES = st.floats(1e-9, 0.1)
TRIADS = {
    "chi_square": (
        lambda n, a, b: detectable_chi_square(n, 10, a, b),
        lambda x, a, b: required_tokens_chi_square(x, 10, a, b),
    ),
    "lag": (detectable_lag, required_pairs_lag),
    "cramer_von_mises": (detectable_cramer_von_mises, required_tokens_cramer_von_mises),
}
triads = pytest.mark.parametrize(("detectable", "required"), TRIADS.values(), ids=TRIADS)


def least_hits(trials, rate):
    return scipy.stats.binom.ppf(ALARM, trials, rate)


@triads
@EXACT
@given(tokens=st.integers(1, 10**6), more=st.integers(1, 10**6), alarm=RATES, miss=RATES)
def test_more_tokens_find_smaller_effects(detectable, required, tokens, more, alarm, miss):
    fewer, most = detectable(tokens, alarm, miss), detectable(tokens + more, alarm, miss)
    assert most < fewer or (most == fewer == math.inf)


@triads
@EXACT
@given(tokens=st.integers(1, 10**6), alarm=RATES, miss=RATES)
def test_stricter_rates_need_larger_effects(detectable, required, tokens, alarm, miss):
    base = detectable(tokens, alarm, miss)
    assert detectable(tokens, alarm / 2, miss) >= base
    assert detectable(tokens, alarm, miss / 2) >= base


@triads
@EXACT
@given(tokens=st.integers(100, 10**6), alarm=RATES, miss=RATES)
def test_required_inverts_detectable(detectable, required, tokens, alarm, miss):
    effect = detectable(tokens, alarm, miss)
    if math.isfinite(effect):
        assert required(effect, alarm, miss) <= tokens + 1
        assert required(effect, alarm, miss) >= (tokens - 1 if tokens > 200 else 1)
        assert detectable(required(effect / 2, alarm, miss), alarm, miss) <= effect / 2 * (1 + 1e-9)


def test_too_few_tokens_find_nothing():
    assert detectable_chi_square(MINIMUM_PER_BIN * 10 - 1, 10, 0.01, 0.1) == math.inf
    assert detectable_chi_square(100, 10, 1e-300, 0.1) == math.inf
    assert detectable_lag(99, 0.01, 0.1) == math.inf
    assert detectable_cramer_von_mises(49, 0.01, 0.1) == math.inf


def test_chi_square_agrees_with_noncentral_chi_square_for_small_effects():
    tokens, bins = 10**10, 20
    effect = detectable_chi_square(tokens, bins, 0.01, 0.1)
    critical = scipy.stats.chi2.isf(0.01, bins - 1)
    assert scipy.stats.ncx2.cdf(critical, bins - 1, tokens * effect**2) == pytest.approx(0.1, rel=0.01)


@pytest.mark.parametrize(("bins", "tokens"), [(10, 300), (10, 5000), (20, 2000)])
def test_chi_square_power_at_a_spike_in_one_bin(bins, tokens):
    """The most variable shape of its size."""
    rng, trials, miss = np.random.default_rng(1), 300, 0.1
    effect = detectable_chi_square(tokens, bins, 1e-3, miss)
    share, found = effect / math.sqrt(bins - 1), 0
    for _ in range(trials):
        u = rng.random(tokens)
        u = np.where(rng.random(tokens) < share, u / bins, u)
        found += chi_square_uniform(u, bins).p_value <= 1e-3
    assert found >= least_hits(trials, 1 - miss)


@pytest.mark.parametrize("pairs", [100, 1000])
def test_lag_power_under_an_autoregression(pairs):
    rng, trials, miss = np.random.default_rng(2), 500, 0.1
    correlation = detectable_lag(pairs, 1e-2, miss)
    gaussian = 2.0 * math.sin(math.pi * correlation / 6.0)  # gives the uniforms that correlation
    z = rng.standard_normal((trials, pairs + 1))
    for t in range(1, pairs + 1):
        z[:, t] = gaussian * z[:, t - 1] + math.sqrt(1.0 - gaussian**2) * z[:, t]
    found = sum(lag_test(u, np.zeros(u.size)).p_value <= 1e-2 for u in scipy.stats.norm.cdf(z))
    assert found >= least_hits(trials, 1 - miss)


def test_cramer_von_mises_power_at_an_atom():
    """An atom of mass m at zero is at distance m / sqrt(3) from uniform."""
    rng, trials, miss, tokens = np.random.default_rng(3), 200, 0.1, 400
    mass, found = detectable_cramer_von_mises(tokens, 1e-3, miss) * math.sqrt(3.0), 0
    for _ in range(trials):
        u = np.where(rng.random(tokens) < mass, 0.0, rng.random(tokens))
        found += cramer_von_mises_uniform(u).p_value <= 1e-3
    assert found >= least_hits(trials, 1 - miss)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: detectable_chi_square(100, 10, 0.0, 0.1), "false_alarm_rate"),
        (lambda: detectable_chi_square(100, 10, 0.1, 0.6), "missed_rate"),
        (lambda: detectable_chi_square(0, 10, 0.1, 0.1), "tokens"),
        (lambda: detectable_chi_square(10, 1, 0.1, 0.1), "bins"),
        (lambda: required_tokens_chi_square(3.1, 10, 0.1, 0.1), "effect"),
        (lambda: detectable_lag(2.5, 0.1, 0.1), "pairs"),
        (lambda: required_pairs_lag(0.0, 0.1, 0.1), "correlation"),
        (lambda: required_tokens_cramer_von_mises(0.6, 0.1, 0.1), "distance"),
    ],
)
def test_unusable_input_is_named(call, argument):
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.argument == argument
