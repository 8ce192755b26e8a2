"""Siblings drawn without replacement where the processed distribution runs out of tokens."""

import numpy as np
import pytest
import torch

from specaudit.core.sampling import processed_probs
from specaudit.core.types import SamplingParams
from specaudit.drafters.siblings import accepted_mass, draw_siblings

NARROW = SamplingParams(temperature=0.7, top_k=2)
LOGITS = torch.tensor([0.1, 2.0, 1.0, -0.5, 0.4])


def test_what_a_cut_leaves_out_follows_in_order_of_its_logits_as_point_masses():
    uniforms = torch.from_numpy(np.random.default_rng(0).random((50, 1, 5)))
    tokens, laws = draw_siblings(LOGITS.repeat(50, 1, 1), NARROW, uniforms)
    assert {frozenset(row[:2]) for row in tokens[:, 0].tolist()} == {frozenset({1, 2})}
    assert tokens[:, 0, 2:].unique(dim=0).tolist() == [[4, 0, 3]]
    own = laws[:, 0].gather(-1, tokens[:, 0].unsqueeze(-1)).squeeze(-1)
    assert (own[:, 1:] == 1.0).all()
    assert (own[:, 0] < 1.0).all()
    torch.testing.assert_close(laws.sum(-1), torch.ones(50, 1, 5))


@pytest.mark.parametrize("children", [1, 2, 3, 4, 5])
def test_the_mass_accepted_is_all_of_it_once_every_token_is_a_child(children):
    target = processed_probs(torch.tensor([0.0, 1.0, 0.3, 0.2, -1.0]).double(), SamplingParams()).repeat(5, 1)
    found = accepted_mass(target, LOGITS.repeat(5, 1), NARROW, children, torch.arange(5), torch.Generator())
    assert (found >= 0).all()
    assert (found <= target[0] + 1e-12).all()
    if children == 5:
        torch.testing.assert_close(found, target[0])


def test_equal_laws_accept_the_first_child():
    target = processed_probs(LOGITS.double(), SamplingParams()).repeat(5, 1)
    found = accepted_mass(target, LOGITS.double().repeat(5, 1), SamplingParams(), 3, torch.arange(5), torch.Generator())
    torch.testing.assert_close(found, target[0], atol=1e-7, rtol=0)
