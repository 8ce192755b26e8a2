"""E-processes against laws of a defect: martingales by enumeration, and what they refuse."""

import itertools
import math

import numpy as np
import pytest

from specaudit.core.errors import InputError
from specaudit.stats import RunningMixture, log_law_increments

TARGET = np.array([[0.6, 0.3, 0.1, 0.0], [0.05, 0.05, 0.1, 0.8], [0.999, 0.0, 0.001, 0.0]])
LAWS = np.array(
    [
        [[0.1, 0.3, 0.3, 0.3], [0.4, 0.4, 0.1, 0.1], [0.5, 0.2, 0.3, 0.0]],
        [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]],
    ]
)
STRENGTHS = [63 / 64, 0.5]


def eprocess(increments, weights=None):
    mixture = RunningMixture(np.ones(len(increments)) if weights is None else weights)
    mixture.read(increments)
    return mixture.eprocess


def increments_along(output):
    """Of each law along tokens whose contexts depend on the tokens before."""
    at = np.array([sum(output[:t]) % 3 for t in range(len(output))])
    support = np.where(TARGET > 0, LAWS, 0.0).sum(axis=-1)
    ratios = np.divide(LAWS, TARGET, out=np.zeros_like(LAWS), where=TARGET > 0)
    chance = np.prod(TARGET[at, output])
    return chance, [log_law_increments(ratios[law, at, output], support[law, at], STRENGTHS) for law in range(2)]


def test_each_law_and_their_average_have_expectation_one_over_all_outcomes():
    means = np.zeros(3)
    for output in itertools.product(range(4), repeat=4):
        chance, found = increments_along(output)
        if chance > 0:
            both = eprocess(np.concatenate(found), [3.0, 1.0, 2.0, 2.0])
            means += chance * np.exp([*(eprocess(one).log_e for one in found), both.log_e])
    assert means == pytest.approx(1.0, abs=1e-12)


def test_matches_the_naive_products():
    ratio, support = np.array([2.0, 0.5, 0.0]), np.array([1.0, 0.8, 1.0])
    naive = [np.cumprod(1 + w * (ratio - support)) for w in STRENGTHS]
    process = eprocess(log_law_increments(ratio, support, STRENGTHS))
    path = np.log(np.mean(naive, axis=0))
    assert (process.log_e, process.tokens) == (pytest.approx(path[-1]), 3)
    assert process.running_max_log_e == pytest.approx(path.max())


def test_noise_divides_each_increment_by_its_worst_expectation():
    """Any law within a total variation of 0.05 of the target, with ratios of at most 4."""
    target, law, noise = np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.1, 0.8]), 0.05 * 4.0
    increments = np.exp(log_law_increments(law / target, np.ones(3), [0.5, 0.25], noise))
    for away, towards in itertools.permutations(range(3), 2):
        moved = target.copy()
        moved[away], moved[towards] = moved[away] - 0.05, moved[towards] + 0.05
        assert (increments @ moved <= 1.0).all()
    assert (np.exp(log_law_increments(law / target, np.ones(3), [0.5])) @ [0.45, 0.3, 0.25] > 1.0).all()


def test_a_law_that_is_the_truth_is_found_and_outgrows_another():
    target, law, other = (np.array(x) for x in ([0.4, 0.3, 0.3], [0.5, 0.3, 0.2], [0.3, 0.3, 0.4]))
    x = np.random.default_rng(4).choice(3, size=3000, p=law)
    right, wrong = (eprocess(log_law_increments((r / target)[x], np.ones(3000), STRENGTHS[:1])) for r in (law, other))
    assert right.rejects(1e-9)
    assert right.log_e > 0 > wrong.log_e


def test_pieces_make_the_whole():
    increments = np.log(np.random.default_rng(2).uniform(0.5, 1.6, size=(4, 90)))
    pieces = RunningMixture([1.0, 2.0, 3.0, 4.0])
    for first, last in ((0, 0), (0, 1), (1, 50), (50, 90)):
        pieces.read(increments[:, first:last])
    whole = eprocess(increments, [0.1, 0.2, 0.3, 0.4])
    assert pieces.eprocess.log_e == pytest.approx(whole.log_e, abs=1e-12)
    assert pieces.eprocess.running_max_log_e == pytest.approx(whole.running_max_log_e, abs=1e-12)
    assert pieces.eprocess.tokens == 90


def test_no_tokens_are_no_evidence():
    assert eprocess(log_law_increments([], [], [0.5])).p_value == 1.0
    assert eprocess(log_law_increments([], [], [0.5])).log_e == 0.0


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: log_law_increments([np.inf], [1.0], [0.5]), "ratio"),
        (lambda: log_law_increments([-1.0], [1.0], [0.5]), "ratio"),
        (lambda: log_law_increments([1.0], [1.1], [0.5]), "alternative_on_support"),
        (lambda: log_law_increments([1.0, 1.0], [1.0], [0.5]), "ratio, alternative_on_support"),
        (lambda: log_law_increments([1.0], [1.0], []), "strengths"),
        (lambda: log_law_increments([1.0], [1.0], [1.0]), "strengths"),
        (lambda: log_law_increments([1.0], [1.0], [-0.5]), "strengths"),
        (lambda: log_law_increments([1.0], [1.0], [0.5], -0.1), "noise"),
        (lambda: log_law_increments([1.0], [1.0], [0.5], math.nan), "noise"),
        (lambda: RunningMixture([]), "weights"),
        (lambda: RunningMixture([1.0, 0.0]), "weights"),
        (lambda: RunningMixture([1.0]).read(np.zeros((2, 3))), "log_increments"),
    ],
)
def test_unusable_input_is_named(call, argument):
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.argument == argument
