"""E-processes against laws of a defect: martingales by enumeration, and what they refuse."""

import itertools
import math

import numpy as np
import pytest

from specaudit.core.errors import InputError
from specaudit.stats import EProcess, log_law_path, mixed_log_path

TARGET = np.array([[0.6, 0.3, 0.1, 0.0], [0.05, 0.05, 0.1, 0.8], [0.999, 0.0, 0.001, 0.0]])
LAWS = np.array(
    [
        [[0.1, 0.3, 0.3, 0.3], [0.4, 0.4, 0.1, 0.1], [0.5, 0.2, 0.3, 0.0]],
        [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]],
    ]
)
STRENGTHS = [63 / 64, 0.5]


def paths_along(output):
    """The path of each law along tokens whose contexts depend on the tokens before."""
    at = np.array([sum(output[:t]) % 3 for t in range(len(output))])
    support = np.where(TARGET > 0, LAWS, 0.0).sum(axis=-1)
    ratios = np.divide(LAWS, TARGET, out=np.zeros_like(LAWS), where=TARGET > 0)
    chance = np.prod(TARGET[at, output])
    return chance, [log_law_path(ratios[law, at, output], support[law, at], STRENGTHS) for law in range(2)]


def test_each_law_and_their_average_have_expectation_one_over_all_outcomes():
    means = np.zeros(3)
    for output in itertools.product(range(4), repeat=4):
        chance, paths = paths_along(output)
        if chance > 0:
            means += chance * np.exp([*(path[-1] for path in paths), mixed_log_path(paths)[-1]])
    assert means == pytest.approx(1.0, abs=1e-12)


def test_matches_the_naive_products():
    ratio, support = np.array([2.0, 0.5, 0.0]), np.array([1.0, 0.8, 1.0])
    naive = [np.cumprod(1 + w * (ratio - support)) for w in STRENGTHS]
    path = log_law_path(ratio, support, STRENGTHS)
    assert np.exp(path) == pytest.approx(np.mean(naive, axis=0))
    process = EProcess.of_path(path)
    assert (process.log_e, process.tokens) == (path[-1], 3)
    assert process.running_max_log_e == pytest.approx(math.log(np.mean(naive, axis=0).max()))


def test_a_law_that_is_the_truth_is_found_and_outgrows_another():
    target, law, other = (np.array(x) for x in ([0.4, 0.3, 0.3], [0.5, 0.3, 0.2], [0.3, 0.3, 0.4]))
    x = np.random.default_rng(4).choice(3, size=3000, p=law)
    right, wrong = (log_law_path((r / target)[x], np.ones(3000), STRENGTHS[:1]) for r in (law, other))
    assert EProcess.of_path(right).rejects(1e-9)
    assert right[-1] > 0 > wrong[-1]


def test_no_tokens_are_no_evidence():
    assert EProcess.of_path(log_law_path([], [], [0.5])).p_value == 1.0


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: log_law_path([np.inf], [1.0], [0.5]), "ratio"),
        (lambda: log_law_path([-1.0], [1.0], [0.5]), "ratio"),
        (lambda: log_law_path([1.0], [1.1], [0.5]), "alternative_on_support"),
        (lambda: log_law_path([1.0, 1.0], [1.0], [0.5]), "ratio, alternative_on_support"),
        (lambda: log_law_path([1.0], [1.0], []), "strengths"),
        (lambda: log_law_path([1.0], [1.0], [1.0]), "strengths"),
        (lambda: log_law_path([1.0], [1.0], [-0.5]), "strengths"),
        (lambda: mixed_log_path([]), "log_paths"),
    ],
)
def test_unusable_input_is_named(call, argument):
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.argument == argument
