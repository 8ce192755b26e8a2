import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.core.errors import InputError
from specaudit.stats import holm, split

EXACT = settings(derandomize=True, database=None, deadline=None, max_examples=200)
P_VALUES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12)


@EXACT
@given(rate=st.floats(1e-12, 0.5), weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20))
def test_shares_sum_to_the_budget(rate, weights):
    names = [f"test {i}" for i in range(len(weights))]
    shares = split(rate, names, weights)
    assert list(shares) == names
    assert math.fsum(shares.values()) == pytest.approx(rate, rel=1e-12)
    assert [s / rate for s in shares.values()] == pytest.approx([w / sum(weights) for w in weights])


def test_equal_shares_by_default():
    assert split(0.1, ["a", "b", "c", "d"]) == pytest.approx({"a": 0.025, "b": 0.025, "c": 0.025, "d": 0.025})


@EXACT
@given(p_values=P_VALUES, rate=st.floats(0.0, 1.0))
def test_holm_rejects_what_the_step_down_procedure_rejects(p_values, rate):
    adjusted, order = holm(p_values), np.argsort(p_values, kind="stable")
    rejected = np.zeros(len(p_values), dtype=bool)
    for step, i in enumerate(order):
        if min(1.0, (len(p_values) - step) * p_values[i]) > rate:
            break
        rejected[i] = True
    assert (adjusted <= rate).tolist() == rejected.tolist()


@EXACT
@given(p_values=P_VALUES, seed=st.integers(0, 1000))
def test_holm_follows_its_inputs_order_and_lies_between_raw_and_bonferroni(p_values, seed):
    adjusted = holm(p_values)
    order = np.random.default_rng(seed).permutation(len(p_values))
    assert holm(np.array(p_values)[order]).tolist() == adjusted[order].tolist()
    assert np.all(adjusted >= np.array(p_values))
    assert np.all(adjusted <= np.minimum(1.0, len(p_values) * np.array(p_values)))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]).size == 0


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: split(0.0, ["a"]), "false_alarm_rate"),
        (lambda: split(0.1, []), "names"),
        (lambda: split(0.1, "ab"), "names"),
        (lambda: split(0.1, ["a", "a"]), "names"),
        (lambda: split(0.1, ["a"], [1.0, 2.0]), "weights"),
        (lambda: split(0.1, ["a"], [0.0]), "weights"),
        (lambda: holm([0.5, 1.5]), "p_values"),
    ],
)
def test_unusable_input_is_named(call, argument):
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.argument == argument
