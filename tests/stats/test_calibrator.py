"""What a p-value is worth as an e-value."""

import math

import numpy as np
import pytest
import scipy.integrate
from hypothesis import given
from hypothesis import strategies as st

from specaudit.core.errors import InputError
from specaudit.stats import calibrated_log_e


def test_mean_one_under_a_uniform_p_value():
    # In x = -log p the integrand is smooth; beyond x = 600 the e-value's tail holds 1/600 of the mean.
    mean, _ = scipy.integrate.quad(lambda x: math.exp(calibrated_log_e(math.exp(-x)) - x), 0.0, 600.0, limit=500)
    assert mean == pytest.approx(1.0 - 1.0 / 600.0, abs=2e-5)


@given(st.floats(1e-9, 0.999), st.floats(1.001, 100.0))
def test_a_smaller_p_value_is_worth_more(p, factor):
    assert calibrated_log_e(p / factor) > calibrated_log_e(p)


@given(st.floats(1e-6, 0.9))
def test_is_the_mixture_of_powers(p):
    kappa = np.linspace(0.0, 1.0, 20_001)
    mixture = np.trapezoid(kappa * p ** (kappa - 1.0), kappa)
    assert calibrated_log_e(p) == pytest.approx(math.log(mixture), abs=1e-6)


def test_the_ends():
    assert calibrated_log_e(1.0) == pytest.approx(math.log(0.5))
    assert calibrated_log_e(1.0 - 1.0001e-4) == pytest.approx(calibrated_log_e(1.0 - 0.9999e-4), abs=1e-6)
    assert 600 < calibrated_log_e(0.0) < 700


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_unusable_input_is_named(p):
    with pytest.raises(InputError, match="p_value"):
        calibrated_log_e(p)
