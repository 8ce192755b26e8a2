"""Random numbers that are used twice, from PIT values in the vocabulary's own order; and where tokens stand."""

import dataclasses

import numpy as np
import pytest

from specaudit.audit.cause import EXPLANATIONS
from specaudit.audit.independence import ACROSS, shared_numbers_tests
from specaudit.audit.positions import ROUND, places
from specaudit.core.types import SamplingParams, Transcript


def transcript(tokens, rounds=None):
    return Transcript((1,), tuple(range(tokens)), SamplingParams(), rounds)


def test_a_place_is_a_round_and_a_depth():
    known = places(transcript(6, (2, 0, 4)))
    assert (known // ROUND).tolist() == [0, 0, 0, 1, 2, 2]
    assert (known % ROUND).tolist() == [0, 1, 2, 0, 0, 1]
    assert places(transcript(0, (0,))).size == places(transcript(0)).size == 0


@pytest.mark.parametrize("rounds", [None, (0,) * 5, (9, 3)])
def test_without_rounds_every_token_is_one(rounds):
    """Not known, none drafted, and of a transcript that contradicts itself."""
    assert places(transcript(5, rounds)).tolist() == [t * ROUND for t in range(5)]


def values(shared, outputs=20, tokens=30, seed=0):
    """PIT values of outputs, of which a share of the tokens has the uniform of its place, or of its output."""
    rng = np.random.default_rng(seed)
    u, rows = rng.random((outputs, tokens)), np.repeat(np.arange(outputs), tokens)
    common = {"cross_row": rng.random((1, tokens)), "within_row": rng.random((outputs, 1)), "none": u}[shared]
    u = np.where(rng.random(u.shape) < 0.5, common, u)
    return u.ravel(), rows, np.tile(np.arange(tokens) * ROUND, outputs)


@pytest.mark.parametrize("shared", ["cross_row", "within_row", "none"])
def test_shared_uniforms_are_found_where_they_are_shared(shared):
    found = {test.name: test.p_value for test in shared_numbers_tests(*values(shared))}
    assert found.keys() == {"cross_row", "within_row"}
    assert {name for name, p_value in found.items() if p_value < 1e-6} == {shared} - {"none"}
    assert min(p_value for name, p_value in found.items() if name != shared) > 0.01


def test_the_order_of_tokens_does_not_matter():
    u, rows, place = values("none")
    order = np.random.default_rng(1).permutation(u.size)
    once, again = shared_numbers_tests(u, rows, place), shared_numbers_tests(u[order], rows[order], place[order])
    for one, other in zip(once, again, strict=True):
        assert dataclasses.replace(other, statistic=one.statistic, p_value=one.p_value) == one
        assert other.statistic == pytest.approx(one.statistic, abs=1e-9)


def test_too_few_tokens_are_not_tested():
    u, rows, place = values("none", outputs=7, tokens=30)
    assert [test.name for test in shared_numbers_tests(u, rows, place)] == ["within_row"]
    u, rows, place = values("none", outputs=7, tokens=7)
    assert shared_numbers_tests(u, rows, place) == []


def test_every_finding_has_words():
    assert {"within_row", *ACROSS} <= EXPLANATIONS.keys()
