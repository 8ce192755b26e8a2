"""Typical acceptance: what it accepts, and that it never passes for lossless."""

import numpy as np
import pytest
import torch

from specaudit.audit.exact_law import ChainCase, TreeCase, largest_error, largest_tree_error, random_case
from specaudit.audit.lossless import audit
from specaudit.core.errors import InputError
from specaudit.core.tree import Tree
from specaudit.core.types import Limits, Proposal, SamplingParams
from specaudit.decode import decode
from specaudit.drafters.prompt_lookup import PromptLookup
from specaudit.models.tabular import TabularModel
from specaudit.models.target import ModelTarget
from specaudit.verify import TypicalVerifier, verifier_of

LAWS = torch.tensor([[[0.7, 0.2, 0.1], [0.4, 0.3, 0.3], [0.01, 0.98, 0.01], [1 / 3, 1 / 3, 1 / 3]]])


def accepted(tokens, tree=None, **parameters):
    proposal = Proposal(torch.tensor([tokens]), (len(tokens),), "point_mass", tree=tree)
    found = TypicalVerifier(**parameters)(LAWS, proposal, torch.full((1, 4), 0.5))
    return found.nodes[0], found.extra_token.item(), bool(found.bonus[0])


def test_a_token_above_the_threshold_is_accepted_whatever_the_uniform():
    assert accepted([0, 1, 1]) == ([0, 1, 2], 1, True)
    assert accepted([0, 1, 0], epsilon=0.3, delta=0.09) == ([0, 1], 1, False)  # 0.01 of a law that is nearly certain
    assert accepted([2, 1, 1], epsilon=0.3, delta=1.0) == ([], 0, False)  # 0.1 < min(0.3, exp(-H)) = 0.3


def test_the_longest_branch_wins():
    assert accepted([1, 0, 1], Tree([-1, -1, 1])) == ([1, 2], 1, True)


@pytest.mark.parametrize("parameters", [{"epsilon": 0.0}, {"delta": 1.5}])
def test_thresholds_outside_their_range_are_refused(parameters):
    with pytest.raises(InputError, match=next(iter(parameters))):
        TypicalVerifier(**parameters)


def test_its_law_is_not_the_targets():
    case = random_case(np.random.default_rng(1), 4, 1, point_mass=True)
    case = ChainCase([0.8 * law + 0.05 for law in case.target], None)
    assert largest_error(TypicalVerifier(), case) > 1e-3
    assert largest_tree_error(TypicalVerifier(), TreeCase(case, Tree([-1, -1]))) > 1e-3


def test_it_needs_a_temperature_and_a_name():
    assert not verifier_of("typical", SamplingParams()).preserves_target
    for name, params in (("typical", SamplingParams(temperature=0)), ("lenient", SamplingParams())):
        with pytest.raises(InputError, match="--verifier"):
            verifier_of(name, params)


def test_no_audit_of_it_finds_no_violation():
    """Too few tokens to see anything, and yet it is not lossless by its own word."""
    target = TabularModel(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).double(), "table")
    params = SamplingParams(seed=1)
    decoded = decode(
        ModelTarget(target), PromptLookup(), TypicalVerifier(), [[1, 2, 1, 2, 1]] * 4, params, Limits(12), k=3
    )
    result = audit(target, None, decoded.transcripts)
    assert (result["verdict"], result["cause"]["name"], result["preserves_target"]) == (
        "violated",
        "declared_lossy",
        False,
    )
