"""The decode loop's output against the exact law of a target that is a table.

Seeds and sample sizes are fixed. What the tests can see is shown by the same tests on decoders with a planted fault.
"""

import dataclasses

import numpy as np
import pytest
import scipy.stats
import torch

from specaudit.core.sampling import processed_probs, sample
from specaudit.core.types import Limits, SamplingParams, Verification
from specaudit.decode import decode
from specaudit.drafters import create_drafter
from specaudit.models.target import ModelTarget
from specaudit.verify import RejectionVerifier

SETTINGS = {
    "temperature 1": SamplingParams(seed=41),
    "temperature 0.8, top_k 4": SamplingParams(temperature=0.8, top_k=4, seed=42),
}
DECODERS = {
    "draft, k = 1": ("draft", 1),
    "draft, k = 4": ("draft", 4),
    "prompt lookup": ("prompt-lookup", 4),
    "lookahead": ("lookahead:4,3,4", 4),
    "medusa tree": ("medusa:{heads}/medusa --tree 3,2", 4),
    "eagle": ("eagle:{heads}/eagle", 3),
    "eagle tree": ("eagle:{heads}/eagle --tree 2,2", 3),
    "eagle dynamic": ("eagle:{heads}/eagle --tree auto:2,5", 3),
}
ROWS, TOKENS = 2000, 12


def decoded(models, draft, k, params, verifier=None, first=None):
    """Outputs of many short rows, each after a prompt of eight tokens that lookups can look back to."""
    target, small = models
    prompts = np.random.default_rng(7).integers(0, target.vocabulary, size=(ROWS, 8))
    if first is not None:
        prompts[:, -1] = first
    name, _, tree = draft.partition(" --tree ")
    drafter = create_drafter(name, target, lambda _: small, tree or None)
    batch = decode(
        ModelTarget(target), drafter, verifier or RejectionVerifier(), prompts.tolist(), params, Limits(TOKENS), k=k
    )
    assert any(any(transcript.rounds) for transcript in batch.transcripts)
    return prompts[:, -1], np.array([transcript.output_ids for transcript in batch.transcripts])


def pooled(observed, expected):
    """Cells of fewer than five expected counts merged into one, which joins the smallest other if itself so small."""
    order = np.argsort(-expected, kind="stable")
    observed, expected = observed[order], expected[order]
    large = int((expected >= 5).sum())
    if expected[large:].sum() < 5:
        large -= 1
    return (np.append(a[:large], a[large:].sum()) for a in (observed, expected))


def chi_square(observed, expected):
    """Pearson's statistic and its degrees of freedom, infinite where an impossible cell was hit."""
    if observed[expected == 0].any():
        return np.inf, 1
    observed, expected = pooled(observed[expected > 0], expected[expected > 0])
    used = expected > 0
    return float(((observed - expected) ** 2 / np.where(used, expected, 1))[used].sum()), int(used.sum()) - 1


def transition_p_value(models, params, first, outputs):
    """Each token's successors against the target's row for it, over all positions.

    The counts of a Markov chain given its visits: Billingsley (1961), "Statistical methods in Markov chains", Annals of
    Mathematical Statistics 32, theorem 3.1; the rows' statistics add up.
    """
    law = processed_probs(models[0].logits, params).numpy()
    whole = np.column_stack([first, outputs])
    counts = np.zeros_like(law)
    np.add.at(counts, (whole[:, :-1].ravel(), whole[:, 1:].ravel()), 1)
    parts = [chi_square(row, row.sum() * probs) for row, probs in zip(counts, law, strict=True)]
    return float(scipy.stats.chi2.sf(sum(s for s, _ in parts), sum(d for _, d in parts)))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("decoder", DECODERS)
def test_every_transition_follows_the_targets_law(tabular_models, head_folder, share, decoder, setting):
    draft, k = DECODERS[decoder]
    first, outputs = decoded(tabular_models, draft.format(heads=head_folder), k, SETTINGS[setting])
    p_value = transition_p_value(tabular_models, SETTINGS[setting], first, outputs)
    assert p_value > share(f"transitions: {decoder}, {setting}")


def test_pairs_of_tokens_at_later_places_follow_the_joint_law(tabular_models, share):
    """Tokens six and seven after one fixed token, past the first round: joint law (token, next token), a row a draw."""
    target = tabular_models[0]
    _, outputs = decoded(tabular_models, "draft", 4, SETTINGS["temperature 1"], first=2)
    law = processed_probs(target.logits, SETTINGS["temperature 1"]).numpy()
    sixth = np.linalg.matrix_power(law, 6)[2]
    joint = sixth[:, None] * law
    observed = np.zeros_like(joint)
    np.add.at(observed, (outputs[:, 5], outputs[:, 6]), 1)
    statistic, freedom = chi_square(observed.ravel(), ROWS * joint.ravel())
    assert freedom > 20
    assert scipy.stats.chi2.sf(statistic, freedom) > share("pairs of tokens: draft, k = 4, temperature 1")


class Lenient:
    """Accepts with p / (0.8 q)."""

    name, preserves_target = "lenient", False

    def __call__(self, target_probs, proposal, uniforms):
        return RejectionVerifier()(target_probs, proposal, torch.cat([0.8 * uniforms[:, :-1], uniforms[:, -1:]], dim=1))


class ResidualFromTarget:
    """Draws the token after a rejection from p."""

    name, preserves_target = "residual from target", False

    def __call__(self, target_probs, proposal, uniforms):
        right = RejectionVerifier()(target_probs, proposal, uniforms)
        places = right.accepted  # of the last accepted token: in a tree one after its node
        if right.nodes is not None:
            places = torch.tensor([path[-1] + 1 if path else 0 for path in right.nodes])
        anew = sample(target_probs[torch.arange(len(places)), places], uniforms[:, -1])
        return dataclasses.replace(right, extra_token=torch.where(right.bonus, right.extra_token, anew))


class BonusFromWrongRow:
    """Draws the bonus from the law one node too early."""

    name, preserves_target = "wrong row", False

    def __call__(self, target_probs, proposal, uniforms):
        right = RejectionVerifier()(target_probs, proposal, uniforms)
        early = target_probs[torch.arange(len(right.accepted)), (right.accepted - 1).clamp(min=0)]
        bonus = sample(early, uniforms[:, -1])
        return Verification(right.accepted, torch.where(right.bonus, bonus, right.extra_token), right.bonus)


# A chain of four that prompt lookup proposes is too rarely accepted whole for its bonus to matter at these sizes; the
# fault in the bonus is one of chains, where the place before an accepted token is the one before it in the proposal.
CHAINS, TREES = ("draft, k = 1", "draft, k = 4"), ("prompt lookup", "lookahead", "medusa tree")
FAULTS = [
    (decoder, fault)
    for decoder in DECODERS
    for fault in (Lenient(), ResidualFromTarget(), BonusFromWrongRow())
    if decoder in CHAINS or (decoder in TREES and fault.name != "wrong row")
]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("decoder", "fault"), FAULTS, ids=[f"{decoder}, {fault.name}" for decoder, fault in FAULTS])
def test_the_same_test_rejects_a_planted_fault(tabular_models, head_folder, smallest_share, decoder, setting, fault):
    draft, k = DECODERS[decoder]
    name = draft.format(heads=head_folder)
    first, outputs = decoded(tabular_models, name, k, SETTINGS[setting], verifier=fault)
    assert transition_p_value(tabular_models, SETTINGS[setting], first, outputs) < smallest_share
