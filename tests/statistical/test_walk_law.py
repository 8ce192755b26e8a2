"""The walk's expected rounds against the rounds that decoders took, and the mass it credits to a tree's siblings."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch

from specaudit.acceptance.profile import from_tokens, token_table
from specaudit.acceptance.scoring import score_outputs
from specaudit.core.sampling import processed_probs
from specaudit.core.types import Limits, SamplingParams
from specaudit.decode import decode
from specaudit.drafters import create_drafter
from specaudit.drafters.siblings import accepted_mass, draw_siblings
from specaudit.models.target import ModelTarget
from specaudit.verify import RejectionVerifier

PARAMS = SamplingParams(temperature=0.8, seed=51)
DRAFTS = {"draft": "draft", "eagle": "eagle:{heads}/eagle", "eagle tree": "eagle:{heads}/eagle --tree 3,2"}
ROWS, TOKENS, K = 1000, 16, 2


def rounds_of(models, draft, walked=None):
    """Rounds of many rows: those the decoder took, and those the walk expects of the drafter ``walked``."""
    target, small = models
    made, replayed = (
        create_drafter(name, target, lambda _: small, tree or None)
        for name, _, tree in (text.partition(" --tree ") for text in (draft, walked or draft))
    )
    prompts = np.random.default_rng(8).integers(0, target.vocabulary, size=(ROWS, 4)).tolist()
    decoded = decode(ModelTarget(target), made, RejectionVerifier(), prompts, PARAMS, Limits(TOKENS), k=K)
    scored = list(score_outputs(target, replayed, decoded.transcripts, PARAMS, K))
    expected = from_tokens(token_table(scored, decoded.transcripts, TOKENS), K).walk.rounds[:, K - 1]
    return np.array([len(transcript.rounds) for transcript in decoded.transcripts]), expected


def p_value_of_mean_zero(values):
    """Two-sided, by the central limit: there are a thousand bounded values or more."""
    return 2 * scipy.stats.norm.sf(abs(values.mean()) / (values.std(ddof=1) / np.sqrt(len(values))))


@pytest.mark.parametrize("draft", DRAFTS)
def test_the_walk_expects_the_rounds_that_a_decoder_takes(tabular_models, head_folder, share, draft):
    taken, expected = rounds_of(tabular_models, DRAFTS[draft].format(heads=head_folder))
    assert p_value_of_mean_zero(taken - expected) > share(f"walk: {draft}")


def test_the_same_test_sees_a_tree_walked_as_a_chain(tabular_models, head_folder, smallest_share):
    tree, chain = (DRAFTS[name].format(heads=head_folder) for name in ("eagle tree", "eagle"))
    taken, expected = rounds_of(tabular_models, tree, chain)
    assert p_value_of_mean_zero(taken - expected) < smallest_share


def exact_mass(left, law, children, token):
    """The chance that ``token`` comes out of an accepted child, summed over all rejected siblings before it."""
    if children == 0:
        return 0.0
    law = law / law.sum()
    mass, refused = min(left[token], law[token]), np.clip(law - left, 0, None)
    residual = np.clip(left - law, 0, None)
    if residual.sum() <= 0:
        return float(mass)
    for sibling in np.flatnonzero(refused):
        rest = law.copy()
        rest[sibling] = 0.0
        mass += refused[sibling] * exact_mass(residual / residual.sum(), rest, children - 1, token)
    return float(mass)


@pytest.mark.parametrize("children", [1, 2, 3])
def test_the_mass_credited_to_siblings_is_unbiased(share, children):
    draws = np.random.default_rng(children)
    target, logits = draws.dirichlet(np.full(5, 0.7)), torch.from_numpy(draws.normal(size=5))
    law = processed_probs(logits, PARAMS).double().numpy()
    copies, generator = 4000, torch.Generator().manual_seed(children)
    found = np.array(
        [
            accepted_mass(
                torch.from_numpy(target).repeat(copies, 1), logits.repeat(copies, 1), PARAMS, children,
                torch.full((copies,), token), generator,
            ).numpy()
            for token in range(5)
        ]
    )  # fmt: skip
    assert (found <= target[:, None] + 1e-12).all()
    exact = np.array([exact_mass(target, law, children, token) for token in range(5)])
    errors = found - exact[:, None]
    varied = errors.std(1) > 1e-12
    assert np.abs(errors[~varied]).max(initial=0.0) < 1e-6  # the first child's mass is no estimate
    rate = share(f"siblings: {children}")
    assert all(p_value_of_mean_zero(values) > rate / 5 for values in errors[varied])


def test_siblings_come_in_the_order_of_their_laws(share):
    """Pairs drawn without replacement: x then y with q(x) q(y) / (1 - q(x))."""
    logits = torch.tensor([0.3, -1.0, 0.8, 0.0], dtype=torch.float64)
    law, rows = processed_probs(logits, PARAMS).numpy(), 20000
    uniforms = torch.from_numpy(np.random.default_rng(5).random((rows, 1, 2)))
    tokens, laws = draw_siblings(logits.repeat(rows, 1, 1), PARAMS, uniforms)
    pairs = list(itertools.permutations(range(4), 2))
    expected = np.array([law[x] * law[y] / (1 - law[x]) for x, y in pairs]) * rows
    seen = [tuple(pair) for pair in tokens[:, 0].tolist()]
    observed = np.array([seen.count(pair) for pair in pairs])
    assert observed.sum() == rows  # never the same token twice
    assert scipy.stats.chisquare(observed, expected).pvalue > share("siblings: pairs")
    first, second = laws[:, 0, 0], laws[:, 0, 1]
    taken = torch.zeros_like(first).scatter_(1, tokens[:, 0, :1], 1.0).bool()
    rest = torch.where(taken, 0.0, first)
    torch.testing.assert_close(second, rest / rest.sum(-1, keepdim=True))
