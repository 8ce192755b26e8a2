"""Token trees: their shapes, their verification integrated exactly, and their passes through a model's cache."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.audit.exact_law import (
    ChainCase,
    TreeCase,
    emission_laws,
    largest_tree_error,
    random_case,
    tree_emission_laws,
)
from specaudit.core.errors import InputError
from specaudit.core.sampling import TokenCounts
from specaudit.core.tree import Tree
from specaudit.core.types import Proposal, Verification
from specaudit.verify import GreedyVerifier, RejectionVerifier, tree

EXACT = 1e-12
CHAINS = {1: [-1], 2: [-1, 0]}
# Vocabulary and the parents of at most two levels; assignments are few enough to enumerate.
SHAPES = [
    (2, [-1, -1]), (3, [-1, -1]), (4, [-1, -1]), (5, [-1, -1]), (3, [-1, -1, -1]), (2, [-1, -1, 0]), (2, [-1, -1, 1]),
    (3, [-1, -1, 0]), (3, [-1, 0, 0]), (2, [-1, -1, 0, 0]), (2, [-1, -1, 0, 1]), (5, [-1]), (4, [-1, 0]),
]  # fmt: skip


def depth_of(parents):
    return int(Tree(parents).depths.max())


def full_support(case):
    """Draft laws from which any number of siblings can be drawn without replacement."""
    mixed = [0.9 * law + 0.1 / law.shape[-1] for law in case.draft]
    return ChainCase(case.target, [law / law.sum(-1, keepdims=True) for law in mixed])


@st.composite
def tree_cases(draw, point_mass):
    vocabulary, parents = draw(st.sampled_from(SHAPES))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    case = random_case(generator, vocabulary, depth_of(parents), point_mass=point_mass)
    if not point_mass:
        case = full_support(case)
        if draw(st.booleans()):  # equal laws: nothing is left after the first sibling but rounding
            case = ChainCase([*case.draft, case.target[-1]], case.draft)
    return TreeCase(case, Tree(parents))


@settings(max_examples=25)
@given(tree_cases(point_mass=True))
def test_a_fixed_tree_emits_the_targets_law(case):
    assert largest_tree_error(RejectionVerifier(), case) < EXACT


@settings(max_examples=25)
@given(tree_cases(point_mass=False))
def test_siblings_drawn_without_replacement_emit_the_targets_law(case):
    assert tree_emission_laws(RejectionVerifier(), case).sum() == pytest.approx(1.0, abs=EXACT)
    assert largest_tree_error(RejectionVerifier(), case) < EXACT


@pytest.mark.parametrize("point_mass", [True, False], ids=["fixed", "sampled"])
def test_a_wide_tree_at_vocabulary_five(point_mass):
    case = random_case(np.random.default_rng(2), 5, 2, point_mass=point_mass)
    case = case if point_mass else full_support(case)
    assert largest_tree_error(RejectionVerifier(), TreeCase(case, Tree([-1, -1, 0]))) < EXACT


class SiblingsAsWithReplacement:
    """Scores every sibling against its parent's whole law, though it was drawn without the siblings before it."""

    name, preserves_target = "siblings as with replacement", False

    def __call__(self, target_probs, proposal, uniforms):
        laws = proposal.draft_probs.clone()
        parents = proposal.tree.parents[0].tolist()
        for node, parent in enumerate(parents):
            laws[:, node] = laws[:, parents.index(parent)]
        same = Proposal(proposal.tokens, proposal.lengths, laws, tree=proposal.tree)
        return tree.verify(target_probs, same, uniforms)


def test_scoring_siblings_as_if_drawn_with_replacement_is_found():
    case = TreeCase(full_support(random_case(np.random.default_rng(4), 4, 1)), Tree([-1, -1]))
    assert largest_tree_error(SiblingsAsWithReplacement(), case) > 1e-3


def test_taking_siblings_at_the_targets_first_law_is_found():
    """Accepting the second child with p(x) instead of p(x) / (1 - p(first))."""

    def unscaled(target_probs, proposal, uniforms):
        scaled = uniforms.clone()
        first = target_probs[torch.arange(len(uniforms)), 0, proposal.tokens[:, 0]]
        scaled[:, 1] = uniforms[:, 1] / (1 - first).clamp(min=1e-9)
        return tree.verify(target_probs, proposal, scaled)

    case = TreeCase(random_case(np.random.default_rng(4), 4, 1, point_mass=True), Tree([-1, -1]))
    assert largest_tree_error(unscaled, case) > 1e-3


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.booleans(), st.sampled_from([torch.float32, torch.float64]))
def test_a_tree_of_width_one_is_the_chain_to_the_last_bit(seed, k, point_mass, dtype):
    draws = np.random.default_rng(seed)
    laws = torch.from_numpy(draws.dirichlet(np.full(6, 0.3), size=(4, k + 1))).to(dtype)
    drawn = "point_mass" if point_mass else torch.from_numpy(draws.dirichlet(np.full(6, 0.3), size=(4, k))).to(dtype)
    tokens = torch.from_numpy(draws.integers(0, 6, size=(4, k)))
    lengths = tuple(draws.integers(0, k + 1, size=4).tolist())
    uniforms = torch.from_numpy(draws.random((4, k + 1)))
    shape = Tree(np.arange(-1, k - 1))
    for verifier in (RejectionVerifier(), GreedyVerifier()):
        chain = verifier(laws, Proposal(tokens, lengths, drawn), uniforms)
        found = verifier(laws, Proposal(tokens, lengths, drawn, tree=shape), uniforms)
        assert found.accepted.tolist() == chain.accepted.tolist()
        assert found.extra_token.tolist() == chain.extra_token.tolist()
        assert found.bonus.tolist() == chain.bonus.tolist()
        assert found.nodes == [list(range(count)) for count in chain.accepted.tolist()]


@pytest.mark.parametrize("k", CHAINS)
def test_the_integration_of_a_chain_and_of_a_tree_of_width_one_agree(k):
    case = full_support(random_case(np.random.default_rng(k), 3, k))
    as_tree = tree_emission_laws(RejectionVerifier(), TreeCase(case, Tree(CHAINS[k])))
    assert np.abs(as_tree - emission_laws(RejectionVerifier(), case)).max() < EXACT


def test_greedy_follows_the_argmax_through_siblings():
    laws = torch.eye(4)[torch.tensor([[2, 0, 3, 1, 0]])]  # after the root 2; after node 1 (token 2) 3
    proposal = Proposal(torch.tensor([[0, 2, 1, 3]]), (4,), "point_mass", tree=Tree([-1, -1, 0, 1]))
    found = GreedyVerifier()(laws, proposal, torch.zeros(1, 5))
    assert (found.nodes, found.extra_token.tolist(), found.bonus.tolist()) == ([[1, 3]], [0], [True])


def test_extra_tokens_and_padding_are_never_accepted():
    laws = torch.eye(3)[torch.tensor([[1, 1, 1, 1, 1]])]
    proposal = Proposal(
        torch.tensor([[1, 1]]), (1,), "point_mass", tree=Tree([-1, 0, 0, 2]), extra_tokens=torch.tensor([[1, 1]])
    )
    for verifier in (GreedyVerifier(), RejectionVerifier()):
        found = verifier(laws, proposal, torch.zeros(1, 3))
        assert (found.nodes, found.bonus.tolist()) == ([[0]], [True])


def test_shapes_of_a_batch():
    shape = Tree([[-1, -1, 0, 2], [-1, 0, 1, -1]])
    assert shape.depths.tolist() == [[0, 1, 1, 2, 3], [0, 1, 2, 3, 1]]
    assert shape.children[0] == [[0, 1], [2], [], [3], []]
    assert shape.children[1] == [[0, 3], [1], [2], [], []]
    assert [np.flatnonzero(row).tolist() for row in shape.ancestors[0]] == [
        [0],
        [0, 1],
        [0, 2],
        [0, 1, 3],
        [0, 1, 3, 4],
    ]
    with pytest.raises(InputError, match="must come before"):
        Tree([0, -1])


def test_penalties_count_along_each_branch():
    counts = TokenCounts.of([[3], [3]], 4, "cpu")
    counts.add(0, [2])
    along = counts.along(torch.tensor([[0, 1, 1], [0, 0, 2]]), Tree([[-1, -1, 0], [-1, 0, 1]]))
    assert along[0].tolist() == [[0, 0, 1, 0], [1, 0, 1, 0], [0, 1, 1, 0], [1, 1, 1, 0]]
    assert along[1].tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [2, 0, 1, 0]]
    chain = torch.tensor([[0, 1, 1], [0, 0, 2]])
    assert torch.equal(counts.along(chain), counts.along(chain, Tree([-1, 0, 1])))


def test_a_verification_names_its_path():
    none = torch.zeros(1, dtype=torch.long)
    assert Verification(none, none, none.bool()).path(0, 2) == [0, 1]
    assert Verification(none, none, none.bool(), [[1, 3]]).path(0, 2) == [1, 3]
