"""The walk against enumeration of every round structure of tiny outputs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.acceptance.scoring import acceptance
from specaudit.acceptance.walk import geometric, uniform_starts, walk

K_MAX = 4


def structures(accept, drafted, length, budget, k, start=0):
    """Every (probability, rounds) of one output from ``start`` on; a round is (start, width, accepted within it)."""
    if start >= length:
        yield 1.0, []
        return
    width = max(0, min(k, drafted[start], budget - 1 - start))
    probability = 1.0
    for taken in range(width + 1):
        if start + taken >= length:  # the output ends inside the accepted chain
            yield probability, [(start, width, taken)]
            return
        ends_here = 1.0 if taken == width else 1.0 - accept[start + taken, min(taken, accept.shape[1] - 1)]
        for rest, rounds in structures(accept, drafted, length, budget, k, start + taken + 1):
            yield probability * ends_here * rest, [(start, width, taken), *rounds]
        if taken < width:
            probability *= accept[start + taken, min(taken, accept.shape[1] - 1)]


@st.composite
def outputs(draw):
    """Outputs of at most seven tokens, padded: acceptance by token alone or by depth, limited drafts, budgets."""
    count, columns = draw(st.integers(1, 3)), draw(st.sampled_from([1, K_MAX]))
    lengths = draw(st.lists(st.integers(1, 7), min_size=count, max_size=count))
    tokens = max(lengths)
    chance = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))
    accept = [draw(chance) for _ in range(count * tokens * columns)]
    drafted = [draw(st.integers(0, K_MAX + 1)) for _ in range(count * tokens)]
    budgets = [length + draw(st.integers(0, 6)) for length in lengths]
    return (
        np.array(accept).reshape(count, tokens, columns), np.array(drafted).reshape(count, tokens),
        np.array(lengths), np.array(budgets),
    )  # fmt: skip


@settings(max_examples=80)
@given(outputs())
def test_walk_is_the_expectation_over_every_round_structure(case):
    accept, drafted, lengths, budgets = case
    result = walk(accept, drafted, lengths, budgets, K_MAX)
    for row, length in enumerate(lengths):
        for k in range(1, K_MAX + 1):
            rounds, by_width = 0.0, np.zeros(K_MAX + 1)
            reached, accepted, total = np.zeros(K_MAX), np.zeros(K_MAX), 0.0
            for chance, structure in structures(accept[row], drafted[row], length, budgets[row], k):
                total += chance
                rounds += chance * len(structure)
                for start, width, taken in structure:
                    by_width[width] += chance
                    accepted[:taken] += chance
                    reached[: min(width, taken + 1, length - start)] += chance
            assert total == pytest.approx(1.0)
            assert result.rounds[row, k - 1] == pytest.approx(rounds, abs=1e-12)
            assert result.rounds_by_width[row, k - 1] == pytest.approx(by_width, abs=1e-12)
            assert result.reached[row, k - 1] == pytest.approx(reached, abs=1e-12)
            assert result.accepted[row, k - 1] == pytest.approx(accepted, abs=1e-12)


@settings(max_examples=50)
@given(outputs())
def test_tokens_add_up(case):
    accept, drafted, lengths, budgets = case
    result = walk(accept, drafted, lengths, budgets, K_MAX)
    assert result.rounds_by_width.sum(-1) == pytest.approx(result.rounds)
    # A round emits what it accepts and one more, but for a last one that the output's end cuts short.
    emitted = result.accepted.sum(-1) + result.rounds
    assert np.all(emitted >= lengths[:, None] - 1e-9)
    assert np.all(emitted <= lengths[:, None] + 1 + 1e-9)


@settings(max_examples=50)
@given(outputs(), st.integers(1, 3))
def test_an_outputs_walk_does_not_depend_on_padding_or_neighbours(case, padding):
    accept, drafted, lengths, budgets = case
    together = walk(accept, drafted, lengths, budgets, K_MAX)
    wider = np.pad(accept, ((0, 0), (0, padding), (0, 0)), constant_values=0.5)
    deeper = np.pad(drafted, ((0, 0), (0, padding)), constant_values=3)
    for row, length in enumerate(lengths):
        one = slice(row, row + 1)
        alone = walk(accept[one, :length], drafted[one, :length], lengths[one], budgets[one], K_MAX)
        padded = walk(wider[one], deeper[one], lengths[one], budgets[one], K_MAX)
        for name in ("rounds", "rounds_by_width", "reached", "accepted"):
            assert getattr(alone, name)[0] == pytest.approx(getattr(together, name)[row], abs=1e-12)
            assert getattr(padded, name)[0] == pytest.approx(getattr(together, name)[row], abs=1e-12)


@settings(max_examples=50)
@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_greedy_output_has_one_round_structure(agreed):
    accept = np.array(agreed, dtype=float).reshape(1, -1, 1)
    length = len(agreed)
    result = walk(accept, np.full((1, length), K_MAX), np.array([length]), np.array([100]), K_MAX)
    for k in range(1, K_MAX + 1):
        rounds, at = 0, 0
        while at < length:
            taken = 0
            while taken < k and at + taken < length and agreed[at + taken]:
                taken += 1
            rounds, at = rounds + 1, at + taken + 1
        assert result.rounds[0, k - 1] == rounds


def test_nothing_accepted_and_everything_accepted():
    tokens, drafted = 12, np.full((1, 12), 9)
    never = walk(np.zeros((1, tokens, 1)), drafted, np.array([tokens]), np.array([50]), 3)
    assert never.rounds.tolist() == [[12, 12, 12]]
    always = walk(np.ones((1, tokens, 1)), drafted, np.array([tokens]), np.array([50]), 3)
    assert always.rounds.tolist() == [[6, 4, 3]]
    budgeted = walk(np.ones((1, tokens, 1)), drafted, np.array([tokens]), np.array([tokens]), 3)
    assert budgeted.rounds_by_width[0, 2].tolist() == [0, 0, 0, 3]
    undrafted = walk(np.ones((1, tokens, 1)), np.zeros((1, tokens), dtype=int), np.array([tokens]), np.array([50]), 3)
    assert undrafted.rounds.tolist() == [[12, 12, 12]]


@settings(max_examples=60)
@given(outputs())
def test_uniform_starts_is_one_plus_the_mean_product_of_acceptances(case):
    accept, _, lengths, _ = case
    columns = accept.shape[2]
    for k, found in enumerate(uniform_starts(accept, lengths, K_MAX), start=1):
        total = 0.0
        for row, length in enumerate(lengths):
            for start in range(length):
                product = 1.0
                for depth in range(min(k, length - start)):
                    product *= accept[row, start + depth, min(depth, columns - 1)]
                    total += product
        assert found == pytest.approx(1 + total / lengths.sum(), abs=1e-12)


def test_uniform_starts_is_biased_upward_where_rounds_restart_at_hard_tokens():
    hard, easy = [0.05], [0.95]
    accept = np.array([([hard] * 6 + [easy] * 6) * 20])
    lengths = np.array([accept.shape[1]])
    true = lengths[0] / walk(accept, np.full(accept.shape[:2], 4), lengths, lengths + 5, 4).rounds[0, 3]
    assert uniform_starts(accept, lengths, 4)[3] > 1.1 * true


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 0.999])
def test_geometric_is_leviathans_closed_form(alpha):
    expected = [(1 - alpha ** (k + 1)) / (1 - alpha) for k in range(1, 9)]
    assert geometric(alpha, 8) == pytest.approx(expected)


def test_geometric_at_certain_acceptance():
    assert geometric(1.0, 4).tolist() == [2, 3, 4, 5]


def test_independent_acceptance_walks_to_the_geometric_formula():
    accept = np.full((1, 4000, 1), 0.7)
    result = walk(accept, np.full((1, 4000), 99), np.array([4000]), np.array([9999]), 6)
    assert 4000 / result.rounds[0] == pytest.approx(geometric(0.7, 6), rel=2e-3)


def test_acceptance_of_an_emitted_token_is_q_over_p_at_most_one():
    target = np.log([0.5, 0.2, 0.4])
    with np.errstate(divide="ignore"):
        draft = np.log([[0.25, 0.5], [0.4, 0.1], [0.0, 0.4]])
    assert acceptance(target, draft) == pytest.approx(np.array([[0.5, 1.0], [1.0, 0.5], [0.0, 1.0]]))
