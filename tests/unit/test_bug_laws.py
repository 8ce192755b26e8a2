"""Every bug law against its faulty rule, enumerated over proposal, decision and replacement; and that bets are fair."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.audit.bug_laws import LENIENCES, Contexts, bug_laws
from specaudit.audit.cause import EXPLANATIONS, named, named_with_strays
from specaudit.audit.evidence import gather
from specaudit.audit.exact_law import ChainCase, emission_laws
from specaudit.audit.positions import bonus_positions
from specaudit.audit.tally import IN_PART, Tally
from specaudit.core.errors import InputError
from specaudit.core.sampling import processed_along
from specaudit.core.types import Limits, SamplingParams, Transcript
from specaudit.decode import decode
from specaudit.drafters import create_drafter
from specaudit.models.tabular import TabularModel
from specaudit.models.target import ModelTarget
from specaudit.stats import log_law_increments
from specaudit.verify import RejectionVerifier, TypicalVerifier

PLAIN = SamplingParams()
BUSY = SamplingParams(0.6, top_k=4, top_p=0.8, min_p=0.1, repetition_penalty=1.4)
SIZES = (2, 3, 4, 5)


def random_law(draws, size):
    """Rows with zeros and one-hot rows among them, as truncation leaves."""
    weights = draws.random(size) ** 3 * (draws.random(size) < 0.7)
    weights[draws.integers(size)] += 0.1
    return weights / weights.sum()


def contexts_of(target_probs, draft_probs, params=PLAIN, target_under=None, draft_under=None):
    p, q = torch.tensor(np.atleast_2d(target_probs)), torch.tensor(np.atleast_2d(draft_probs))
    whole = torch.ones(len(p), dtype=torch.float64)
    return Contexts(p, q, whole, whole, params, target_under, draft_under)


def law_named(name, variant="", params=PLAIN, draft="dense"):
    (law,) = (law for law in bug_laws(params, draft, draft_logits=True) if (law.name, law.variant) == (name, variant))
    return law


# The rules, one token at a time


def norm(weights):
    return weights / weights.sum()


def standard_residual(p, q):
    left = np.array([max(0.0, a - b) for a, b in zip(p, q, strict=True)])
    return norm(left) if left.sum() > 0 else p


def softmax_residual(p, q):
    return norm(np.exp([max(0.0, a - b) for a, b in zip(p, q, strict=True)]))


def enumerated(proposed, accept, replacement):
    """Over the proposed token, whether it is accepted, and the token that replaces it."""
    law = np.zeros(len(proposed))
    for x, chance in enumerate(proposed):
        if chance > 0:
            law[x] += chance * accept(x)
            for y in range(len(law)):
                law[y] += chance * (1 - accept(x)) * replacement[y]
    return law


def ratio(p, q, factor=1.0):
    return lambda x: 1.0 if p[x] >= factor * q[x] and p[x] > 0 else p[x] / (factor * q[x]) if q[x] > 0 else 0.0


def typical_rule(p):
    threshold = min(0.3, 0.09 * np.exp(sum(a * np.log(a) for a in p if a > 0)))
    return lambda x: float(p[x] > threshold)


def siblings(p, q):
    """Two children without replacement, of which the second is scored by the whole q."""
    law = np.zeros(len(p))
    left, after = standard_residual(p, q), None
    for x, chance in enumerate(q):
        if chance == 0:
            continue
        law[x] += chance * ratio(p, q)(x)
        refused = chance * (1 - ratio(p, q)(x))
        if refused == 0:
            continue
        if q[x] == 1.0:
            law += refused * left
            continue
        after = standard_residual(left, q)
        second = norm(np.where(np.arange(len(q)) == x, 0.0, q))
        law += refused * enumerated(second, ratio(left, q), after)
    return law


def raced(p, q):
    """The residual, of which each token is late by what its clock was set back."""
    rest = standard_residual(p, q)
    late = np.array([r / (1 + b / r) if r > 0 else 0.0 for r, b in zip(rest, q, strict=True)])
    return norm(late) if late.sum() > 0 else rest


RULES = {
    ("residual_from_target", ""): lambda p, q: enumerated(q, ratio(p, q), p),
    ("residual_exponentiated", ""): lambda p, q: enumerated(q, ratio(p, q), softmax_residual(p, q)),
    ("argmax_draft", ""): lambda p, q: enumerated(np.eye(len(q))[q.argmax()], ratio(p, q), standard_residual(p, q)),
    ("typical_acceptance", ""): lambda p, q: enumerated(q, typical_rule(p), p),
    ("siblings_with_replacement", ""): siblings,
    ("draft_unverified", ""): lambda p, q: enumerated(q, lambda x: 1.0, p),
    ("bonus_from_draft", ""): lambda p, q: q,
    ("bonus_argmax", ""): lambda p, q: np.eye(len(p))[p.argmax()],
    ("shared_noise", "-0.5"): lambda p, q: norm(p / np.sqrt(np.maximum(q, 1e-12))),
    ("shared_noise", "gumbel"): lambda p, q: enumerated(q, ratio(p, q), raced(p, q)),
    ("shared_noise", "+0.5"): lambda p, q: norm(p * np.sqrt(np.maximum(q, 1e-12))),
    **{
        ("lenience", f"{size:g}"): lambda p, q, size=size: enumerated(q, ratio(p, q, size), standard_residual(p, q))
        for size in LENIENCES
    },
}


@pytest.mark.parametrize("name", RULES, ids=" ".join)
def test_a_law_is_that_of_its_rule(name):
    law = law_named(*name)
    for seed, size in itertools.product(range(60), SIZES):
        draws = np.random.default_rng((seed, size))
        p, q = random_law(draws, size), random_law(draws, size)
        found = law.placed(contexts_of(p, q)).numpy()[0]
        assert found == pytest.approx(RULES[name](p, q), abs=1e-12)
        assert found.sum() == pytest.approx(1.0, abs=1e-12)


def test_every_law_of_plain_sampling_is_compared_with_a_rule():
    assert {(law.name, law.variant) for law in bug_laws(PLAIN, "dense", draft_logits=True)} == set(RULES)


def test_gumbel_noise_used_twice_is_nearer_its_law_than_the_targets():
    draws = np.random.default_rng(8)
    for _ in range(5):
        p, q = random_law(draws, 6), random_law(draws, 6)
        with np.errstate(divide="ignore"):
            noise = draws.gumbel(size=(200_000, 6))
            drafted = (np.log(q) + noise).argmax(-1)
            again = (np.log(standard_residual(p, q)) + noise).argmax(-1)
        kept = draws.random(len(drafted)) * q[drafted] < p[drafted]
        seen = np.bincount(np.where(kept, drafted, again), minlength=6) / len(drafted)
        law = law_named("shared_noise", "gumbel").placed(contexts_of(p, q)).numpy()[0]
        assert np.abs(seen - law).sum() < 0.4 * np.abs(seen - p).sum() + 0.004


@pytest.mark.parametrize("seed", range(5))
def test_typical_acceptance_is_the_shipped_rules_law(seed):
    draws = np.random.default_rng(seed)
    p, q = random_law(draws, 4), random_law(draws, 4)
    after = np.stack([random_law(draws, 4) for _ in range(4)])
    (joint,) = emission_laws(TypicalVerifier(), ChainCase([p, after], [q]))
    found = law_named("typical_acceptance").placed(contexts_of(p, q)).numpy()[0]
    assert found == pytest.approx(joint.sum(-1), abs=1e-12)


# Parameters that are left out


def processed(logits, temperature, order, seen=None, penalty=1.0):
    """By hand: penalty, temperature, then the cuts in the order given."""
    logits = np.array([l / penalty if l > 0 else l * penalty for l in logits]) if seen is None else logits  # noqa: E741
    law = norm(np.exp(logits / temperature))
    for kind, value in order:
        ranked = np.argsort(-law, kind="stable")
        if kind == "top_k":
            kept = ranked[:value]
        elif kind == "top_p":
            before = np.cumsum(law[ranked]) - law[ranked]
            kept = ranked[before < value]
        else:
            kept = np.flatnonzero(law >= value * law.max())
        law = norm(np.where(np.isin(np.arange(len(law)), kept), law, 0.0))
    return law


CUTS = (("top_k", 4), ("top_p", 0.8), ("min_p", 0.1))


def left_out(*names):
    """The arguments of ``processed`` for BUSY without these parameters."""
    return (1.0 if "temperature" in names else 0.6), [cut for cut in CUTS if cut[0] not in names]


def busy_contexts(seed):
    draws = np.random.default_rng(seed)
    logits = [torch.tensor(2 * draws.normal(size=(1, 5))) for _ in range(2)]
    params = dataclasses.replace(BUSY, repetition_penalty=1.0)
    under = [lambda other, raw=raw: processed_along(raw, [0], [1], other) for raw in logits]
    return (*(raw[0].numpy() for raw in logits), contexts_of(under[0](params), under[1](params), params, *under))


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p"])
def test_a_parameter_left_out_is_left_out_where_it_says(name):
    for seed in range(40):
        logits, draft_logits, contexts = busy_contexts(seed)
        p, q = processed(logits, *left_out()), processed(draft_logits, *left_out())
        other = processed(draft_logits, *left_out(name))
        expected = {
            f"{name}_ignored": processed(logits, *left_out(name)),
            f"{name}_ignored_on_verified_rows": processed(logits, *left_out(name)),
            f"{name}_missing_from_ratio": enumerated(q, ratio(p, other), standard_residual(p, other)),
            f"{name}_missing_from_draft": enumerated(other, ratio(p, q), standard_residual(p, q)),
        }
        for key, law in expected.items():
            found = law_named(key, params=contexts.params).placed(contexts).numpy()[0]
            assert found == pytest.approx(law, abs=1e-12), key


def test_the_whole_processing_left_out_of_the_ratio():
    for seed in range(40):
        logits, draft_logits, contexts = busy_contexts(seed)
        p, q, plain = processed(logits, *left_out()), processed(draft_logits, *left_out()), norm(np.exp(draft_logits))
        found = law_named("processing_missing_from_ratio", params=contexts.params).placed(contexts).numpy()[0]
        assert found == pytest.approx(enumerated(q, ratio(p, plain), standard_residual(p, plain)), abs=1e-12)


def test_top_p_before_top_k():
    differed = 0
    for seed in range(40):
        logits, _, contexts = busy_contexts(seed)
        found = law_named("top_p_before_top_k", params=contexts.params).placed(contexts).numpy()[0]
        order = [CUTS[1], CUTS[0], CUTS[2]]
        assert found == pytest.approx(processed(logits, 0.6, order), abs=1e-12)
        differed += not np.allclose(found, processed(logits, *left_out()))
    assert differed


def test_penalties_left_out():
    logits = torch.tensor([[0.5, -1.0, 2.0, 0.1]], dtype=torch.float64)
    under = lambda other: processed_along(logits, [0], [2], other)  # noqa: E731
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=0.3)
    contexts = contexts_of(under(params), under(params), params, under, under)
    found = law_named("penalties_ignored", params=params).placed(contexts)
    torch.testing.assert_close(found, logits.softmax(-1))
    assert not torch.allclose(found, contexts.target_probs)


# Where a law applies


def test_a_law_holds_at_its_own_positions():
    p, q = np.array([[0.5, 0.5, 0.0]] * 3), np.array([[0.1, 0.2, 0.7]] * 3)
    contexts = dataclasses.replace(
        contexts_of(p, q),
        drafted=torch.tensor([1.0, 0.0, 0.75]).double(),
        bonus=torch.tensor([0.0, 1.0, 0.25]).double(),
    )
    drafted, bonus = law_named("lenience", "0.5"), law_named("bonus_from_draft")
    full = drafted.law(contexts)[0].numpy()
    assert drafted.placed(contexts).numpy() == pytest.approx(np.array([full, p[0], 0.75 * full + 0.25 * p[0]]))
    assert bonus.placed(contexts).numpy() == pytest.approx(np.array([p[0], q[0], 0.25 * q[0] + 0.75 * p[0]]))


def test_a_bonus_stands_where_the_round_was_as_deep_as_it_could_be():
    def transcript(rounds, tokens, **engine):
        return Transcript((1,), (2,) * tokens, PLAIN, rounds, engine)

    assert bonus_positions(transcript((2, 0, 1), 6, k=2)).tolist() == [False, False, True, False, False, False]
    # The last round could draft but one token, and the one before it two.
    room = transcript((2, 2, 1), 8, k=2, max_new_tokens=8)
    assert np.flatnonzero(bonus_positions(room)).tolist() == [2, 5, 7]
    assert not bonus_positions(transcript((2,), 2, k=2)).any()  # ended within the draft
    for unknown in (transcript(None, 3, k=2), transcript((2,), 3), transcript((0,), 1, k=0), transcript((2,), 9, k=2)):
        assert bonus_positions(unknown) is None


def small_models(seed, size=5):
    draws = torch.Generator().manual_seed(seed)
    logits = [1.5 * torch.randn(size, size, generator=draws, dtype=torch.float64) for _ in range(2)]
    return TabularModel(logits[0]), TabularModel(logits[0] + 0.5 * logits[1])


def test_the_bonus_positions_of_the_own_decoder_are_its_bonuses():
    target, small = small_models(3)
    drafter = create_drafter("draft", target, lambda _: small)
    for seed in range(5):
        params = SamplingParams(seed=seed)
        made = decode(ModelTarget(target), drafter, RejectionVerifier(), [[1]], params, Limits(17), k=3)
        ends = np.cumsum([round_.emitted[0] for round_ in made.rounds]) - 1
        whole = [round_.emitted[0] == round_.proposed[0] + 1 for round_ in made.rounds]
        assert np.flatnonzero(bonus_positions(made.transcripts[0])).tolist() == ends[whole].tolist()


# Bets are fair on the target's own support


@st.composite
def settings_of(draw):
    return SamplingParams(
        draw(st.sampled_from([0.3, 1.0, 1.7])), top_k=draw(st.sampled_from([0, 1, 2, 3])),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.4])), min_p=draw(st.sampled_from([0.0, 0.2])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.6])),
    )  # fmt: skip


PLACES = {
    "drafted": ((0,), {"k": 1, "max_new_tokens": 2}), "bonus": ((0,), {"k": 1, "max_new_tokens": 1}),
    "unknown": (None, {}),
}  # fmt: skip


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6), params=settings_of(), place=st.sampled_from(sorted(PLACES)),
    draft=st.sampled_from(["draft", "prompt-lookup", None]),
)  # fmt: skip
def test_no_increment_expects_more_than_one(seed, params, place, draft):
    """Every token that can follow one context, with the evidence that the audit makes of it."""
    target, small = small_models(seed, size=4)
    rounds, engine = PLACES[place]
    outputs = [Transcript((2, 1, 2), (x,), params, rounds, engine) for x in range(4)]
    drafter = draft and create_drafter(draft, target, lambda _: small)
    found = sorted(gather(target, drafter, outputs, params), key=lambda item: item.index)
    p = np.array([float(item.mass[0]) for item in found])
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    for law in found[0].laws:
        numbers = [item.laws[law] for item in found]
        for strength in IN_PART:
            expected = sum(
                p[x] * np.exp(log_law_increments(numbers[x].relative, numbers[x].on_support, [strength])[0, 0])
                for x in np.flatnonzero(p)
            )
            assert expected <= 1.0 + 1e-12, law


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), params=settings_of(), draft=st.sampled_from(["draft", "prompt-lookup", None]))
def test_an_outputs_evidence_does_not_depend_on_how_it_is_cut(seed, params, draft):
    target, small = small_models(seed, size=4)
    drafter = draft and create_drafter(draft, target, lambda _: small)
    output = tuple(np.random.default_rng(seed).integers(4, size=9).tolist())
    rounds, engine = (2, 0, 1, 0, 1), {"k": 2, "max_new_tokens": 9}
    transcript = Transcript((0, 1), output, params, rounds, engine)
    with pytest.MonkeyPatch.context() as patch:
        (whole,) = gather(target, drafter, [transcript], params)
        patch.setattr("specaudit.audit.evidence.BLOCK", 8)
        (cut,) = gather(target, drafter, [transcript], params)
    assert cut.below == pytest.approx(whole.below, abs=1e-12)
    for one, other in ((whole.laws, cut.laws), (whole.directions, cut.directions)):
        for key, numbers in one.items():
            for part in ("relative", "on_support"):
                assert getattr(other[key], part) == pytest.approx(getattr(numbers, part), rel=1e-9, abs=1e-12), key


def test_a_law_that_is_none_is_refused():
    law = dataclasses.replace(law_named("bonus_argmax"), law=lambda c: 1.5 * c.target_probs)
    with pytest.raises(InputError, match=r"bug law bonus_argmax = 1\.5: is not a distribution"):
        law.placed(contexts_of([0.5, 0.5], [0.5, 0.5]))
    nothing = dataclasses.replace(law, law=lambda c: c.target_probs * torch.nan)
    with pytest.raises(InputError, match="not finite"):
        nothing.placed(contexts_of([0.5, 0.5], [0.5, 0.5]))


# Names


def test_every_law_is_explained():
    for draft in ("none", "point_mass", "dense"):
        assert {law.name for law in bug_laws(BUSY, draft, draft_logits=True)} <= EXPLANATIONS.keys()


def test_without_a_draft_only_the_targets_own_rows_can_be_wrong():
    names = {"temperature_ignored", "top_k_ignored", "top_p_ignored", "min_p_ignored"}
    assert {law.name for law in bug_laws(BUSY, "none")} == names | {"penalties_ignored", "top_p_before_top_k"}
    assert bug_laws(PLAIN, "none") == []


def test_the_largest_is_named_and_what_is_close_to_it():
    alone = named({"lenience": 20.0, "draft": 10.0})
    assert (alone["name"], alone["text"], alone["close"]) == ("lenience", EXPLANATIONS["lenience"], [])
    together = named({"draft": 18.0, "lenience": 20.0, "sharper": 1.0})
    assert (together["name"], together["close"]) == ("lenience", ["draft"])
    assert "cannot be told apart from draft" in together["text"]


def test_stray_tokens_are_strays_unless_a_law_expects_them():
    assert named_with_strays({"impossible_token": -5.0, "top_k_ignored": -4.0})["name"] == "impossible_token"
    assert named_with_strays({"impossible_token": -5.0, "top_k_ignored": -1.0})["name"] == "top_k_ignored"


def test_impossible_tokens_count_towards_the_law_that_emits_them():
    target, small = small_models(1)
    params = SamplingParams(top_k=2)
    outputs = decode(
        ModelTarget(target), None, RejectionVerifier(), [[0]] * 20, SamplingParams(), Limits(20)
    ).transcripts
    drafter = create_drafter("draft", target, lambda _: small)
    found = list(gather(target, drafter, outputs, params))
    assert sum(item.impossible.sum() for item in found) > 20
    tally = Tally(target.vocabulary, seed=0)
    for item in found:
        tally.add(item, item.index)
    scores = tally.explained()
    assert named_with_strays(scores)["name"] == "top_k_ignored"
    assert scores["residual_from_target"] == -np.inf
    assert tally.log_e["top_k_ignored"] == pytest.approx(0.0, abs=1e-9)
