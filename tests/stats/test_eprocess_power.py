import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.core.errors import InputError
from specaudit.stats import (
    detectable_contamination,
    excess_law,
    log_contamination_eprocess,
    required_tokens_contamination,
)

EXACT = settings(derandomize=True, database=None, deadline=None, max_examples=30)
ALARM = 1e-9  # chance that a correct program fails one of the simulated checks, were the seed drawn anew
PAIRS = {
    "flat": ([0.2, 0.2, 0.2, 0.2, 0.2], [0.4, 0.3, 0.1, 0.1, 0.1]),
    "peaked": ([0.9, 0.05, 0.03, 0.01, 0.01], [0.5, 0.1, 0.1, 0.2, 0.1]),
    "rare token": ([0.5, 0.3, 0.199, 0.001 - 1e-6, 1e-6], [0.5, 0.3, 0.188, 0.001, 0.011]),
    "truncated": ([0.6, 0.4, 0.0, 0.0, 0.0], [0.1, 0.5, 0.2, 0.1, 0.1]),
}
RATES = st.floats(1e-9, 0.1)


def rows(name):
    target, draft = (np.array(p) / np.sum(p) for p in PAIRS[name])
    return target, draft


def law_of(name):
    target, draft = rows(name)
    return excess_law(target[None], draft[None])


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(("tokens", "alarm", "miss"), [(400, 1e-2, 0.1), (3000, 1e-6, 0.05)])
def test_power_at_the_detectable_contamination(name, tokens, alarm, miss):
    """200 runs; a power of ``1 - miss`` fails by chance less often than 1e-9."""
    target, draft = rows(name)
    contamination = detectable_contamination(law_of(name), tokens, alarm, miss)
    if contamination == math.inf:
        assert name in ("truncated", "rare token")
        return
    ratio = np.divide(draft, target, out=np.zeros(5), where=target > 0)
    on_support, largest = draft[target > 0].sum(), ratio.max()
    law = target * (1.0 + contamination * (ratio - on_support))
    rng, runs, found = np.random.default_rng(1), 200, 0
    for _ in range(runs):
        x = rng.choice(5, size=tokens, p=law / law.sum())
        result = log_contamination_eprocess(ratio[x], np.full(tokens, on_support), np.full(tokens, largest))
        found += result.rejects(alarm)
    assert found >= scipy.stats.binom.ppf(ALARM, runs, 1 - miss)


def test_the_bound_is_not_vacuous():
    """Within half again of the Gaussian approximation ``x^2 / 2 - z x = log(2 levels / alarm)``, x = e sqrt(n I)."""
    law, tokens, alarm, miss = law_of("flat"), 10_000, 1e-6, 0.1
    z, threshold = scipy.stats.norm.isf(miss), math.log(12 / alarm)
    gaussian = (z + math.sqrt(z**2 + 2 * threshold)) / math.sqrt(tokens * law.mean_information)
    assert gaussian < detectable_contamination(law, tokens, alarm, miss) < 1.5 * gaussian


@EXACT
@given(name=st.sampled_from(list(PAIRS)), tokens=st.integers(1, 10**7), alarm=RATES, miss=RATES)
def test_monotone_in_tokens_and_rates(name, tokens, alarm, miss):
    law = law_of(name)
    base = detectable_contamination(law, tokens, alarm, miss)
    assert base > 0.0
    more = detectable_contamination(law, 2 * tokens, alarm, miss)
    assert more < base or (more == base == math.inf)
    assert detectable_contamination(law, tokens, alarm / 2, miss) >= base
    assert detectable_contamination(law, tokens, alarm, miss / 2) >= base


@EXACT
@given(name=st.sampled_from(list(PAIRS)), tokens=st.integers(1, 10**7), alarm=RATES, miss=RATES)
def test_required_inverts_detectable(name, tokens, alarm, miss):
    law = law_of(name)
    contamination = detectable_contamination(law, tokens, alarm, miss)
    if math.isfinite(contamination):
        required = required_tokens_contamination(law, contamination, alarm, miss)
        assert required == pytest.approx(tokens, rel=1e-6, abs=1.0)
        assert detectable_contamination(law, int(required) + 1, alarm, miss) <= contamination


def test_nothing_is_found_where_target_and_drafter_agree():
    rng = np.random.default_rng(2)
    target = rng.dirichlet(np.ones(50), size=20)
    law = excess_law(target, target)
    assert detectable_contamination(law, 10**9, 0.5, 0.5) == math.inf
    assert required_tokens_contamination(law, 1.0, 0.5, 0.5) == math.inf


def test_a_token_that_only_the_drafter_makes_takes_few_tokens():
    law = excess_law([[1.0 - 1e-300, 1e-300]], [[0.0, 1.0]])
    assert required_tokens_contamination(law, 1.0, 1e-6, 0.01) <= 3


@pytest.mark.parametrize("name", PAIRS)
def test_information_is_the_chi_square_divergence_on_the_support(name):
    target, draft = rows(name)
    on = target > 0
    exact = np.sum((draft[on] - draft[on].sum() * target[on]) ** 2 / target[on])
    assert law_of(name).mean_information == pytest.approx(exact, rel=1e-9)


def test_binning_hardly_changes_power():
    """Against the Chernoff bound of the very rows, at the same bets and exponents."""
    rng = np.random.default_rng(3)
    target, draft = rng.dirichlet(np.full(400, 0.2), size=30), rng.dirichlet(np.full(400, 0.2), size=30)
    tokens, alarm, miss = 500, 1e-3, 0.1
    excess, best = (draft / target - 1.0)[:, :, None], math.inf
    weight = target[:, :, None]
    exponents = np.geomspace(1e-3, 10.0, 60)
    for bet in 0.5 ** np.arange(1, 7):
        power = np.expm1(-exponents * np.log1p(bet * excess))
        surplus = (weight * power).sum(axis=(0, 1)) / 30
        slope = -(weight * excess * power).sum(axis=(0, 1)) / 30
        cost = exponents * math.log(12 / alarm) - math.log(miss)
        best = min(best, np.min((surplus - np.expm1(-cost / tokens)) / slope))
    assert detectable_contamination(excess_law(target, draft), tokens, alarm, miss) == pytest.approx(best, rel=1e-3)


def test_laws_of_chunks_add_up():
    rng = np.random.default_rng(4)
    target, draft = rng.dirichlet(np.ones(30), size=10), rng.dirichlet(np.ones(30), size=10)
    whole, parts = excess_law(target, draft), excess_law(target[:3], draft[:3]) + excess_law(target[3:], draft[3:])
    assert parts.contexts == whole.contexts == 10
    assert parts.mass == pytest.approx(whole.mass)
    assert parts.moment == pytest.approx(whole.moment)
    assert whole.mass.sum() == pytest.approx(10.0)
    assert whole.moment.sum() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: excess_law([[0.5, 0.6]], [[0.5, 0.5]]), "target_probs"),
        (lambda: excess_law([[0.5, 0.5]], [[0.5, 0.5], [1.0, 0.0]]), "draft_probs"),
        (lambda: excess_law([0.5, 0.5], [0.5, 0.5]), "target_probs"),
        (lambda: excess_law(np.zeros((0, 2)), np.zeros((0, 2))), "target_probs"),
        (lambda: excess_law([[0.5, 0.5]], [[np.nan, 0.5]]), "draft_probs"),
        (lambda: detectable_contamination(law_of("flat"), 0, 0.1, 0.1), "tokens"),
        (lambda: detectable_contamination(law_of("flat"), 10, 0.0, 0.1), "false_alarm_rate"),
        (lambda: required_tokens_contamination(law_of("flat"), 1.5, 0.1, 0.1), "contamination"),
    ],
)
def test_unusable_input_is_named(call, argument):
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.argument == argument
