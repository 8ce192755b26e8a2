import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.core.errors import InputError
from specaudit.stats import pit_values

EXACT = settings(derandomize=True, database=None, deadline=None, max_examples=100)
WEIGHTS = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), min_size=1, max_size=8).filter(lambda w: sum(w) > 0)


@EXACT
@given(weights=WEIGHTS, level=st.floats(0.0, 1.0))
def test_exactly_uniform_for_a_discrete_law(weights, level):
    """P(u <= t) = sum over x of p(x) P(v <= (t - F(x-)) / p(x)) = t, with u linear in v between its two ends."""
    law = np.array(weights) / np.sum(weights)
    law = law[law > 0]
    below = np.concatenate([[0.0], np.cumsum(law)[:-1]])
    start = pit_values(below, law, np.zeros(law.size))
    end = pit_values(below, law, np.ones(law.size))
    chance = np.sum(law * np.clip((level - start) / (end - start), 0.0, 1.0))
    assert chance == pytest.approx(level, abs=1e-12)


@EXACT
@given(weights=WEIGHTS, data=st.data())
def test_within_the_unit_interval_and_the_token(weights, data):
    law = np.array(weights) / np.sum(weights)
    below = np.concatenate([[0.0], np.cumsum(law)[:-1]])
    draws = np.array(data.draw(st.lists(st.floats(0.0, 1.0), min_size=law.size, max_size=law.size)))
    u = pit_values(below, law, draws)
    assert u.dtype == np.float64
    assert np.all((u >= 0.0) & (u < 1.0))
    assert np.all((u >= np.minimum(below, np.nextafter(1.0, 0.0))) & (u <= below + law))


def test_known_values():
    assert pit_values([0.0, 0.25, 0.75], [0.25, 0.5, 0.25], [0.5, 0.5, 0.0]).tolist() == [0.125, 0.5, 0.75]


def test_rounding_above_one_is_clipped_below_one():
    u = pit_values([1.0 + 1e-12, 1.0], [0.0, 1e-9], [0.0, 0.9])
    assert np.all(u < 1.0)
    assert np.all(u > 1.0 - 1e-9)


@pytest.mark.parametrize(
    ("below", "mass", "uniforms", "argument"),
    [
        ([0.7], [0.4], [0.5], "below + mass"),
        ([-0.1], [0.4], [0.5], "below"),
        ([0.1], [np.nan], [0.5], "mass"),
        ([0.1], [0.4], [1.5], "uniforms"),
        ([0.1, 0.2], [0.4], [0.5], "below, mass, uniforms"),
        ([[0.1]], [0.4], [0.5], "below"),
    ],
)
def test_unusable_input_is_named(below, mass, uniforms, argument):
    with pytest.raises(InputError) as caught:
        pit_values(below, mass, uniforms)
    assert caught.value.argument == argument
