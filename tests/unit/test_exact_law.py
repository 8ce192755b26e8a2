"""The emission law of the shipped verifiers, integrated exactly, and the faults that the integration must show."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.audit.exact_law import ChainCase, emission_laws, largest_error, random_case, target_law
from specaudit.core.sampling import sample
from specaudit.core.types import Verification
from specaudit.verify import GreedyVerifier, RejectionVerifier

EXACT = 1e-12
VOCABULARIES_AND_KS = [(2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (5, 1), (5, 2), (6, 1), (6, 2)]
WEIGHTS = [0.0, 0.0, 1.0, 1.0, 2.0, 0.37, 1e-3, 1e-12, 1e-17]
PAIRS = ["independent", "equal", "equal to rounding", "disjoint", "point mass"]


def normalised(weights):
    weights = np.array(weights, dtype=np.float64)
    return weights / weights.sum(-1, keepdims=True)


def table(pool, depth, choices):
    """A law after every prefix of ``depth`` tokens, each taken from ``pool``."""
    vocabulary = pool.shape[-1]
    return pool[choices.integers(len(pool), size=(vocabulary,) * depth)]


@st.composite
def pools(draw, vocabulary):
    row = st.lists(st.sampled_from(WEIGHTS), min_size=vocabulary, max_size=vocabulary).filter(any)
    laws = draw(st.lists(row, min_size=1, max_size=4))
    one_hot = np.eye(vocabulary)[draw(st.integers(0, vocabulary - 1))]
    return np.vstack([normalised(laws), one_hot])


@st.composite
def cases(draw, pairs=PAIRS):
    """Target and draft laws with ties, zeros and one-hot rows, related in the ways that make a rule go wrong."""
    vocabulary, k = draw(st.sampled_from(VOCABULARIES_AND_KS))
    pair = draw(st.sampled_from(pairs))
    choices = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    target = [table(draw(pools(vocabulary)), depth, choices) for depth in range(k + 1)]
    if pair == "independent":
        draft = [table(draw(pools(vocabulary)), depth, choices) for depth in range(k)]
    elif pair == "equal":
        draft = [law.copy() for law in target[:-1]]
    elif pair == "equal to rounding":
        draft = [normalised(law * (1.0 + choices.choice([-2e-16, 0.0, 2e-16], size=law.shape))) for law in target[:-1]]
    elif pair == "disjoint":
        half = np.arange(vocabulary) < draw(st.integers(1, vocabulary - 1))
        target = [normalised(law * half + 1e-9 * half) for law in target]
        draft = [normalised(table(draw(pools(vocabulary)), d, choices) * ~half + 1e-9 * ~half) for d in range(k)]
    else:
        draft = None
    return ChainCase(target, draft)


@settings(max_examples=60)
@given(cases())
def test_rejection_emits_the_targets_law(case):
    assert largest_error(RejectionVerifier(), case) < EXACT


@settings(max_examples=40)
@given(cases(), st.integers(0, 2**32 - 1))
def test_greedy_emits_the_targets_law_where_the_target_is_sure(case, seed):
    sure = np.random.default_rng(seed)
    one_hot = [np.eye(case.vocabulary)[sure.integers(case.vocabulary, size=law.shape[:-1])] for law in case.target]
    assert largest_error(GreedyVerifier(), ChainCase(one_hot, case.draft)) < EXACT


@pytest.mark.parametrize("point_mass", [False, True])
def test_rejection_at_vocabulary_six_and_three_drafted(point_mass):
    case = random_case(np.random.default_rng(5), 6, 3, point_mass=point_mass)
    assert largest_error(RejectionVerifier(), case) < EXACT


@settings(max_examples=25)
@given(cases())
def test_a_law_is_given_for_the_draft_or_for_every_chain_and_sums_to_one(case):
    laws = emission_laws(RejectionVerifier(), case)
    chains = 1 if case.draft is not None else case.vocabulary**case.k
    assert laws.shape == (chains,) + (case.vocabulary,) * (case.k + 1)
    assert laws.min() >= 0
    assert laws.reshape(chains, -1).sum(1) == pytest.approx(np.ones(chains), abs=EXACT)


def test_target_law_is_the_product_of_its_conditionals():
    case = random_case(np.random.default_rng(0), 3, 2)
    law = target_law(case)
    for tokens in np.ndindex(3, 3, 3):
        first, second, third = tokens
        expected = case.target[0][first] * case.target[1][first, second] * case.target[2][first, second, third]
        assert law[tokens] == pytest.approx(expected, abs=1e-16)


class Lenient:
    """Accepts with p / (0.8 q)."""

    def __call__(self, target_probs, proposal, uniforms):
        easier = torch.cat([0.8 * uniforms[:, :-1], uniforms[:, -1:]], dim=1)
        return RejectionVerifier()(target_probs, proposal, easier)


class ResidualFromTarget:
    """Draws the token after a rejection from p."""

    def __call__(self, target_probs, proposal, uniforms):
        right = RejectionVerifier()(target_probs, proposal, uniforms)
        anew = sample(target_probs[torch.arange(len(right.accepted)), right.accepted], uniforms[:, -1])
        return Verification(right.accepted, torch.where(right.bonus, right.extra_token, anew), right.bonus)


class BonusFromDraft:
    """Draws the bonus from the draft's law at the last node."""

    def __call__(self, target_probs, proposal, uniforms):
        right = RejectionVerifier()(target_probs, proposal, uniforms)
        bonus = sample(proposal.draft_probs[:, -1], uniforms[:, -1])
        return Verification(right.accepted, torch.where(right.bonus, bonus, right.extra_token), right.bonus)


class AcceptsTheArgmax:
    """Accepts a token if and only if it is the target's most probable one."""

    def __call__(self, target_probs, proposal, uniforms):
        greedy = GreedyVerifier()(target_probs, proposal, uniforms)
        rows = torch.arange(len(greedy.accepted))
        return Verification(greedy.accepted, sample(target_probs[rows, greedy.accepted], uniforms[:, -1]), greedy.bonus)


def plain_case(k):
    """The same two laws after every prefix."""
    target, draft = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    return ChainCase(
        [np.broadcast_to(target, (3,) * (depth + 1)) for depth in range(k + 1)],
        [np.broadcast_to(draft, (3,) * (depth + 1)) for depth in range(k)],
    )


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("fault", [Lenient(), ResidualFromTarget(), BonusFromDraft(), AcceptsTheArgmax()])
def test_a_fault_is_found(fault, k):
    assert largest_error(RejectionVerifier(), plain_case(k)) < EXACT
    assert largest_error(fault, plain_case(k)) > 1e-3


@pytest.mark.parametrize("fault", [ResidualFromTarget(), AcceptsTheArgmax()])
def test_a_fault_is_found_in_point_masses(fault):
    assert largest_error(fault, ChainCase(plain_case(2).target, None)) > 1e-3


def test_the_faulty_law_is_the_one_that_the_fault_implies():
    case = plain_case(1)
    target, draft = case.target[0], case.draft[0]
    both = np.minimum(target, draft)
    first_token = emission_laws(ResidualFromTarget(), case)[0].sum(1)
    assert first_token == pytest.approx(both + (1 - both.sum()) * target, abs=EXACT)
    lenient = np.minimum(target / 0.8, draft)
    excess = np.maximum(target - draft, 0)
    expected = lenient + (1 - lenient.sum()) * excess / excess.sum()
    assert emission_laws(Lenient(), case)[0].sum(1) == pytest.approx(expected, abs=EXACT)
