"""Single rounds by hand: what is accepted, what is drawn after it, and what never may be."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.core.types import Proposal, SamplingParams
from specaudit.verify import GreedyVerifier, RejectionVerifier, lossless_verifier

BELOW_ONE = float(np.nextafter(1.0, 0.0))


def laws(*rows, dtype=torch.float64):
    return torch.tensor([rows], dtype=dtype)


def uniforms(*row):
    return torch.tensor([row], dtype=torch.float64)


TARGET = laws([0.5, 0.3, 0.2], [0.1, 0.9, 0.0], [0.0, 0.0, 1.0])
DRAFT = laws([0.2, 0.3, 0.5], [0.5, 0.4, 0.1])


def round_of(tokens, *u, draft_probs=DRAFT, length=2):
    found = RejectionVerifier()(TARGET, Proposal(torch.tensor([tokens]), (length,), draft_probs), uniforms(*u))
    return found.accepted.item(), found.extra_token.item(), found.extra_kind(0)


@pytest.mark.parametrize(
    ("tokens", "u", "expected"),
    [
        ([0, 1], (0.99, 0.99, 0.5), (2, 2, "bonus")),  # p >= q at both: certain, and the bonus is from the third law
        ([2, 1], (0.39, 0.99, 0.5), (2, 2, "bonus")),  # 0.39 < 0.2 / 0.5
        ([2, 1], (0.41, 0.0, 0.5), (0, 0, "residual")),  # the residual of (0.5, 0.3, 0.2) over (0.2, 0.3, 0.5)
        ([0, 0], (0.0, 0.19, 0.5), (2, 2, "bonus")),  # 0.19 < 0.1 / 0.5
        ([0, 0], (0.0, 0.21, 0.5), (1, 1, "residual")),
        ([0, 2], (0.0, 0.0, 0.5), (1, 1, "residual")),  # a uniform of zero accepts no impossible token
    ],
)
def test_rounds_of_a_dense_draft(tokens, u, expected):
    assert round_of(tokens, *u) == expected


@pytest.mark.parametrize(
    ("tokens", "u", "expected"),
    [
        ([1, 1], (0.29, 0.89, 0.0), (2, 2, "bonus")),
        ([1, 1], (0.31, 0.0, 0.71), (0, 0, "residual")),  # p without token 1: 5/7, 0, 2/7
        ([1, 1], (0.31, 0.0, 0.72), (0, 2, "residual")),
        ([0, 2], (0.0, 0.0, 0.95), (1, 1, "residual")),
        ([1, 1], (0.0, 0.95, BELOW_ONE), (1, 0, "residual")),
    ],
)
def test_rounds_of_a_point_mass(tokens, u, expected):
    assert round_of(tokens, *u, draft_probs="point_mass") == expected


@pytest.mark.parametrize("draft_probs", [DRAFT, "point_mass"], ids=["dense", "point mass"])
def test_what_lies_beyond_a_rows_length_is_never_accepted(draft_probs):
    assert round_of([0, 1], 0.0, 0.0, 0.5, draft_probs=draft_probs, length=1) == (1, 1, "bonus")
    assert round_of([0, 1], 0.0, 0.0, 0.4, draft_probs=draft_probs, length=0) == (0, 0, "bonus")


def test_nothing_proposed_draws_from_the_target():
    empty = Proposal(torch.zeros(1, 0, dtype=torch.long), (0,), "point_mass")
    for proposal in (None, empty):
        found = RejectionVerifier()(TARGET, proposal, uniforms(0.9, 0.6))
        assert (found.accepted.item(), found.extra_token.item(), found.extra_kind(0)) == (0, 1, "bonus")


def test_equal_laws_accept_every_token_however_the_uniform_falls():
    law = torch.softmax(torch.randn(1, 2, 50, generator=torch.Generator().manual_seed(0)), -1)
    proposal = Proposal(torch.tensor([[17]]), (1,), law[:, :1])
    assert RejectionVerifier()(law, proposal, uniforms(BELOW_ONE, 0.5)).accepted.item() == 1


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.booleans())
def test_a_rows_round_does_not_depend_on_its_batch(seed, batch, point_mass):
    draws = np.random.default_rng(seed)
    target = torch.from_numpy(draws.dirichlet(np.full(5, 0.4), size=(batch, 4)))
    draft = torch.from_numpy(draws.dirichlet(np.full(5, 0.4), size=(batch, 3)))
    tokens, lengths = torch.from_numpy(draws.integers(0, 5, size=(batch, 3))), draws.integers(0, 4, size=batch).tolist()
    u = torch.from_numpy(draws.random((batch, 4)))
    whole = RejectionVerifier()(target, Proposal(tokens, tuple(lengths), "point_mass" if point_mass else draft), u)
    for row in range(batch):
        one, n = slice(row, row + 1), lengths[row]
        own = Proposal(tokens[one, :n], (n,), "point_mass" if point_mass else draft[one, :n])
        alone = RejectionVerifier()(target[one, : n + 1], own, torch.cat([u[one, :n], u[one, -1:]], dim=1))
        assert alone.accepted.item() == whole.accepted[row].item()
        assert alone.extra_token.item() == whole.extra_token[row].item()
        assert alone.extra_kind(0) == whole.extra_kind(row)


@pytest.mark.parametrize(
    ("tokens", "length", "expected"),
    [
        ([0, 1], 2, (2, 2, "bonus")),
        ([0, 0], 2, (1, 1, "residual")),
        ([1, 1], 2, (0, 0, "residual")),
        ([0, 1], 1, (1, 1, "bonus")),
        ([0, 1], 0, (0, 0, "bonus")),
    ],
)
def test_greedy_accepts_while_the_argmax_agrees(tokens, length, expected):
    found = GreedyVerifier()(TARGET, Proposal(torch.tensor([tokens]), (length,), "point_mass"), uniforms(0, 0, 0))
    assert (found.accepted.item(), found.extra_token.item(), found.extra_kind(0)) == expected


def test_greedy_takes_the_first_of_equal_tokens():
    tied = laws([0.4, 0.4, 0.2])
    assert GreedyVerifier()(tied, None, uniforms(0.5)).extra_token.item() == 0


def test_greedy_reads_logits_as_well():
    assert GreedyVerifier()(TARGET.log(), None, uniforms(0.5)).extra_token.item() == 0


def test_the_lossless_rule_follows_the_temperature():
    assert lossless_verifier(SamplingParams(temperature=0)).name == "greedy"
    assert lossless_verifier(SamplingParams(temperature=0.1)).name == "rejection"
    assert all(lossless_verifier(SamplingParams(temperature=t)).preserves_target for t in (0, 1))
