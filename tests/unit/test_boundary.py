"""Which excluded tokens the machine's noise may have let in: all that it can, and none that it cannot."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.audit.boundary import SUMMED, boundary_tokens
from specaudit.core.sampling import processed_probs
from specaudit.core.types import SamplingParams

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 7, 50]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.05]),
    min_p=st.sampled_from([0.0, 0.05, 0.4]),
)
VOCABULARY = 12


def marked(logits, params, margin):
    """Which tokens of the vocabulary are at the boundary of one context."""
    every = torch.arange(VOCABULARY)
    return boundary_tokens(logits.expand(VOCABULARY, -1), every, params, margin)


def logits_of(seed, spread):
    return spread * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=300)
@given(params=PARAMS, seed=st.integers(0, 10**6), margin=st.floats(1e-6, 2.0), spread=st.sampled_from([0.2, 1.0, 3.0]))
def test_whatever_noise_can_let_in_is_marked(params, seed, margin, spread):
    """Each logit moved by up to half the margin, so that no gap moves by more."""
    logits = logits_of(seed, spread)
    noise = torch.rand(200, VOCABULARY, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64) - 0.5
    noise[::2] = noise[::2].sign() / 2  # the corners, where it moves most
    inside = processed_probs(logits[None], params)[0] > 0
    let_in = (processed_probs(logits + 0.999 * margin * noise, params) > 0).any(0) & ~inside
    found = marked(logits, params, margin)
    assert not bool((let_in & ~found).any())
    assert not bool((found & inside).any())


@settings(max_examples=100)
@given(params=PARAMS, seed=st.integers(0, 10**6), margin=st.floats(0, 1.0))
def test_more_noise_marks_more(params, seed, margin):
    less, more = (marked(logits_of(seed, 1.0), params, m) for m in (margin, 1.5 * margin))
    assert not bool((less & ~more).any())


@settings(max_examples=100)
@given(params=PARAMS, seed=st.integers(0, 10**6))
def test_without_noise_there_is_no_boundary(params, seed):
    assert not bool(marked(logits_of(seed, 1.0), params, 0.0).any())


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize(
    ("cut", "gap"),  # by how much token 2 is short of the cut, in scaled nats
    [({"top_k": 2}, 0.3), ({"min_p": 0.5}, 0.8 - math.log(2))],
)
def test_the_band_is_as_wide_as_the_noise(cut, gap, temperature):
    logits = torch.tensor([[0.0, -0.5, -0.8, -4.0]], dtype=torch.float64) * temperature
    for token, short in ((2, gap), (3, gap + 3.2)):
        for margin, expected in ((0.999 * short, False), (1.001 * short, True)):
            params = SamplingParams(temperature=temperature, **cut)
            found = boundary_tokens(logits, torch.tensor([token]), params, margin * temperature)
            assert found.tolist() == [expected], (token, margin)


def test_the_band_of_a_nucleus():
    """0.6, 0.3 and 0.1: the third is kept where the first two fall below top_p."""
    logits, token = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64).log(), torch.tensor([2])
    for top_p, short in ((0.9 - 0.01, 0.01), (0.8, 0.1)):
        margin = math.log(0.9 / 0.1) - math.log((0.9 - short) / (short + 0.1))
        for factor, expected in ((0.99, False), (1.01, True)):
            found = boundary_tokens(logits, token, SamplingParams(top_p=top_p), factor * margin)
            assert found.tolist() == [expected]
    rounding = SamplingParams(top_p=0.9 - SUMMED / 2)
    assert boundary_tokens(logits, token, rounding, 0.0).tolist() == [True]


def test_what_the_model_itself_excludes_is_at_no_boundary():
    logits = torch.tensor([[0.0, -torch.inf, -3.0]])
    assert boundary_tokens(logits, torch.tensor([1]), SamplingParams(), 1e6).tolist() == [False]
    assert boundary_tokens(logits, torch.tensor([1]), SamplingParams(top_k=1), 1e6).tolist() == [False]


def test_every_token_is_judged_at_its_own_context():
    logits = torch.tensor([[0.0, -0.1, -5.0], [0.0, -5.0, -0.1], [-0.1, 0.0, -5.0]])
    found = boundary_tokens(logits, torch.tensor([1, 1, 1]), SamplingParams(top_k=1), 0.2)
    assert found.tolist() == [True, False, False]
