"""Copies among outputs: the chance of one by exact enumeration, and what is found."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.core.errors import InputError
from specaudit.stats import (
    REPEAT_NATS,
    detectable_repeat,
    most_outputs_repeat,
    repeat_keys,
    repeated_output_test,
    repeats,
)

EXACT = settings(derandomize=True, database=None, deadline=None, max_examples=60)
RATES = st.floats(1e-9, 0.5)
HALF = [0.5] * 100  # 29 tokens to the first level, 44 to the second, 58 to the third


def keys_of(*outputs, prompt=(1,), mass=0.5):
    return np.stack([repeat_keys(prompt, output, [mass] * len(output)) for output in outputs], axis=1)


def test_the_beginning_is_the_shortest_of_so_many_nats():
    output = list(range(100))
    whole = repeat_keys([1], output, HALF)
    for level, tokens in enumerate((29, 44, 58)):
        assert tokens == math.ceil(REPEAT_NATS[level] / math.log(2))
        cut = repeat_keys([1], output[: tokens - 1], HALF[: tokens - 1])
        assert cut[level] == 0
        later = repeat_keys([1], [*output[:tokens], *[7] * (100 - tokens)], HALF)
        assert later[level] == whole[level] != 0
        earlier = repeat_keys([1], [*output[: tokens - 1], 200, *output[tokens:]], HALF)
        assert earlier[level] != whole[level]
    assert all(repeat_keys([2], output, HALF) != whole)
    assert all(repeat_keys([1, 0], output[1:], HALF[1:]) != repeat_keys([1], output, HALF))


def test_an_excluded_token_ends_what_is_looked_at():
    mass = [0.5] * 40 + [0.0] + [0.5] * 60
    assert (repeat_keys([1], range(101), mass) > 0).tolist() == [True, False, False]
    assert not repeat_keys([1], [5], [0.0]).any()
    assert not repeat_keys([1], [], []).any()


def test_copies_are_counted_at_the_highest_level_that_two_share():
    one, other = list(range(100)), [*range(50), *range(200, 250)]  # alike for 50 tokens: two levels
    alike = repeated_output_test(keys_of(one, other, list(range(300, 400))))
    assert (alike.name, alike.statistic, alike.tokens) == ("repeated_output", 1.0, 3)
    assert alike.p_value == pytest.approx(3 * math.exp(-30), rel=1e-3)
    same = repeated_output_test(keys_of(one, one, one, other))
    assert (same.statistic, same.p_value) == (2.0, pytest.approx(6 * (math.exp(-40) + 2**-64)))


def test_other_prompts_and_unsurprising_outputs_are_no_copies():
    output = list(range(100))
    apart = np.concatenate([keys_of(output), keys_of(output, prompt=(2,))], axis=1)
    assert (repeated_output_test(apart).statistic, repeated_output_test(apart).p_value) == (0.0, 1.0)
    assert repeated_output_test(keys_of(output, output, mass=0.9)).p_value == 1.0  # 10.5 nats
    assert repeated_output_test(np.zeros((3, 0), dtype=np.uint64)).p_value == 1.0


def test_the_chance_of_a_copy_is_at_most_what_is_said(monkeypatch):
    """All pairs of outputs of four tokens of a chain, at levels low enough to be reached."""
    monkeypatch.setattr(repeats, "REPEAT_NATS", (0.5, 1.5, 3.0))
    law = np.array([[0.6, 0.3, 0.1], [0.05, 0.05, 0.9], [0.3, 0.3, 0.4]])
    outputs = {}
    for output in itertools.product(range(3), repeat=4):
        mass = law[[0, *output[:-1]], output]
        outputs[output] = float(np.prod(mass)), repeat_keys([1], output, mass)
    reached = {}
    for (chance, one), (other_chance, other) in itertools.product(outputs.values(), repeat=2):
        p_value = repeated_output_test(np.stack([one, other], axis=1)).p_value
        reached[p_value] = reached.get(p_value, 0.0) + chance * other_chance
    assert sum(reached.values()) == pytest.approx(1.0)
    assert len(reached) == 4
    for level in reached:
        assert sum(chance for p_value, chance in reached.items() if p_value <= level) <= level + 1e-12


@EXACT
@given(seed=st.integers(0, 10**6), copies=st.integers(0, 5))
def test_the_order_of_outputs_does_not_matter(seed, copies):
    rng = np.random.default_rng(seed)
    outputs = [rng.integers(9, size=60).tolist() for _ in range(6)]
    keys = keys_of(*outputs, *outputs[:copies])
    shuffled = keys[:, rng.permutation(keys.shape[1])]
    assert repeated_output_test(shuffled) == repeated_output_test(keys)
    assert repeated_output_test(keys).statistic == copies


@EXACT
@given(outputs=st.integers(1, 10**6), more=st.integers(1, 10**6), rate=RATES)
def test_more_outputs_need_more_surprise(outputs, more, rate):
    base = detectable_repeat(outputs, rate)
    assert detectable_repeat(outputs + more, rate) >= base
    assert detectable_repeat(outputs, rate / 2) >= base
    if outputs > 1 and math.isfinite(base):
        alike = np.ones((3, outputs), dtype=np.uint64) * (np.array(REPEAT_NATS) <= base)[:, None].astype(np.uint64)
        assert repeated_output_test(alike).p_value <= rate


@EXACT
@given(nats=st.floats(0, 60), rate=RATES)
def test_most_outputs_inverts_detectable(nats, rate):
    most = most_outputs_repeat(nats, rate)
    if most:
        assert detectable_repeat(most, rate) <= nats < math.inf
        reached = max(level for level in REPEAT_NATS if level <= nats)
        assert detectable_repeat(most + 1, rate) > reached
    else:
        assert nats < REPEAT_NATS[0]


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: repeat_keys([1], [1, 2], [0.5]), "output, mass"),
        (lambda: repeat_keys([1], [1], [1.5]), "mass"),
        (lambda: repeat_keys([1], [1], [np.nan]), "mass"),
        (lambda: repeated_output_test(np.zeros((2, 5), dtype=np.uint64)), "keys"),
        (lambda: detectable_repeat(0, 0.1), "outputs"),
        (lambda: detectable_repeat(5, 0.6), "false_alarm_rate"),
        (lambda: most_outputs_repeat(-1.0, 0.1), "nats"),
    ],
)
def test_unusable_input_is_named(call, argument):
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.argument == argument
