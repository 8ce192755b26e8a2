"""Every fault and every control, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specaudit.audit.bug_laws import OFF
from specaudit.audit.cause import EXPLANATIONS
from specaudit.audit.faults import drafters, targets, transcripts, verifiers
from specaudit.audit.faults.setup import Setup
from specaudit.core.sampling import processed_probs, sample
from specaudit.core.types import Proposal, SamplingParams
from specaudit.drafters import prompt_lookup
from specaudit.verify import GreedyVerifier, TypicalVerifier

Plant = Callable[[Setup], Setup]
ON = {"top_k": 5, "top_p": 0.8, "min_p": 0.1}  # where a fault needs one that the user has not switched on
CONTAMINATION = 0.05


@dataclass(frozen=True)
class Fault:
    """A defect and how it is planted.

    Attributes
    ----------
    causes : tuple of str
        The names under which the audit is right to find it; none where no law describes it.
    params : mapping
        Sampling parameters that it shows under, where they are off.
    draws : bool
        Whether it needs a chain that is drawn from a dense law.
    """

    name: str
    text: str
    plant: Plant
    causes: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    draws: bool = True

    def planted(self, right: Setup) -> Setup:
        off = {name: value for name, value in self.params.items() if getattr(right.params, name) == _OFF[name]}
        return self.plant(dataclasses.replace(right, params=dataclasses.replace(right.params, **off)))


@dataclass(frozen=True)
class Control:
    """A right decoder that an audit may take for a faulty one; ``dtype`` is the one to load the pair in."""

    name: str
    text: str
    plant: Plant
    draws: bool = True
    dtype: str | None = None

    def planted(self, right: Setup) -> Setup:
        return self.plant(right)


_OFF = {field.name: field.default for field in dataclasses.fields(SamplingParams)}


def _verifier(make: Callable[[], verifiers.Claiming]) -> Plant:
    return lambda right: dataclasses.replace(right, verifier=make())


def _drafter(make: Callable[..., drafters.Wrapped], *arguments: Any, **options: Any) -> Plant:
    return lambda right: dataclasses.replace(right, drafter=make(right.drafter, *arguments, **options))


def _target(make: Callable[..., targets.ModelTarget], *arguments: Any, **options: Any) -> Plant:
    return lambda right: dataclasses.replace(right, target=make(right.model, *arguments, **options))


def _named(name: str, plant: Plant, *, draws: bool = True, **params: Any) -> Fault:
    """A fault that has a law of its own name."""
    return Fault(name, EXPLANATIONS[name], plant, (name,), params, draws)


def _only(right: Setup, names: list[str]) -> SamplingParams:
    """The sampling parameters with all but the named switched off."""
    return SamplingParams(**{name: getattr(right.params, name) for name in names})


def _missing_from_ratio(names: list[str]) -> Plant:
    """Drawn with the parameters, scored by the law without them."""

    def plant(right: Setup) -> Setup:
        last = _only(right, names)
        off = {name: OFF[name] for name in names}
        chooses = drafters.Chooses(right.drafter, lambda law, u: sample(processed_probs(law.log(), last), u), **off)
        return dataclasses.replace(right, drafter=chooses)

    return plant


def _missing_from_draft(name: str) -> Plant:
    """Drawn without the parameter, scored by the law with it."""

    def plant(right: Setup) -> Setup:
        last = _only(right, [name])

        def scored(proposal: Proposal) -> Proposal:
            assert not isinstance(proposal.draft_probs, str)
            return dataclasses.replace(proposal, draft_probs=processed_probs(proposal.draft_probs.log(), last))

        started = drafters.Started(right.drafter, scored, **{name: OFF[name]})
        return dataclasses.replace(right, drafter=started)

    return plant


def _of_parameter(name: str) -> list[Fault]:
    """The four places where a sampling parameter may be missing."""
    on = {name: ON[name]} if name in ON else {}
    off = {name: OFF[name]}
    return [
        _named(f"{name}_ignored", _target(targets.TargetUnder, **off), draws=False, **on),
        _named(f"{name}_ignored_on_verified_rows", _target(targets.VerifiesUnder, **off), **on),
        _named(f"{name}_missing_from_ratio", _missing_from_ratio([name]), **on),
        _named(f"{name}_missing_from_draft", _missing_from_draft(name), **on),
    ]


def _bonus_from_draft(right: Setup) -> Setup:
    more = drafters.KeepsOneMore(right.drafter)
    return dataclasses.replace(right, drafter=more, verifier=verifiers.BonusFrom(more))


def _shared_noise(right: Setup) -> Setup:
    noisy = drafters.RemembersUniforms(right.drafter)
    return dataclasses.replace(right, drafter=noisy, verifier=verifiers.SharesNoise(noisy))


def _siblings(law: drafters.SecondLaw | None) -> Plant:
    return lambda right: dataclasses.replace(right, drafter=drafters.Siblings(right.drafter, right.k, law))


def _keeps_rejected(right: Setup) -> Setup:
    target = targets.KeepsRejected(right.model, right.limits.max_new_tokens, right.drafter.room(right.k)[1])
    return dataclasses.replace(right, target=target)


def _shared_seeds(right: Setup) -> Setup:
    return dataclasses.replace(right, seeds=lambda own: [7] * len(own))


def _end_ignored(right: Setup) -> Setup:
    limits = dataclasses.replace(right.limits, end_ids=frozenset())
    return dataclasses.replace(
        right, limits=limits, finish=lambda one: transcripts.until_the_round_of_an_end(one, right.limits.end_ids)
    )


def _past_limit(right: Setup) -> Setup:
    limits = dataclasses.replace(right.limits, max_new_tokens=right.limits.max_new_tokens + right.k)
    return dataclasses.replace(
        right, limits=limits, finish=lambda one: transcripts.until_the_round_of_a_limit(one, right.k)
    )


def _contaminated() -> verifiers.Claiming:
    return verifiers.Decides(lambda u: ((u - CONTAMINATION) / (1.0 - CONTAMINATION)).clamp(min=0.0))


FAULTS = [
    Fault("contamination", "one drafted token in twenty is accepted unseen", _verifier(_contaminated), ("draft",)),
    _named("residual_from_target", _verifier(lambda: verifiers.Replaces(lambda p, q: p, bonus=False))),
    _named("residual_exponentiated", _verifier(
        lambda: verifiers.Replaces(lambda p, q: (p - q).clamp(min=0.0).softmax(-1), bonus=False))),
    _named("lenience", _verifier(lambda: verifiers.Decides(lambda u: 0.7 * u)), draws=False),
    _named("draft_unverified", _verifier(verifiers.AcceptsAll)),
    _named("typical_acceptance", _verifier(lambda: verifiers.Claiming(TypicalVerifier())), draws=False),
    _named("argmax_draft", _drafter(drafters.Chooses, lambda law, u: law.argmax(-1))),
    *(fault for name in OFF for fault in _of_parameter(name)),
    _named("processing_missing_from_ratio", _missing_from_ratio(["temperature", "top_k"]), top_k=ON["top_k"]),
    _named("top_p_before_top_k", _target(targets.NucleusFirst), draws=False, top_k=ON["top_k"], top_p=ON["top_p"]),
    _named("bonus_from_draft", _bonus_from_draft),
    _named("bonus_argmax", _verifier(
        lambda: verifiers.Replaces(lambda p, q: (p == p.amax(-1, keepdim=True)).to(p), bonus=True))),
    _named("siblings_with_replacement", _siblings(lambda law, first: law)),
    _named("penalties_ignored", _target(targets.TargetUnder, repetition_penalty=1.0), draws=False,
           repetition_penalty=1.2),
    _named("shared_noise", _shared_noise),
    Fault("neighbouring_row", "rows are verified by their neighbours' logits", _target(targets.Misplaced, 0),
          draws=False),
    Fault("neighbouring_position", "tokens are verified by the logits one position before",
          _target(targets.Misplaced, 1), draws=False),
    Fault("stale_cache", "rejected tokens stay in the cache", _keeps_rejected, draws=False),
    Fault("cache_off_by_one", "after a ragged round the shorter rows' cache lacks a token", _target(targets.LosesOne),
          draws=False),
    Fault("shared_seeds", "all rows of a batch draw the same random numbers", _shared_seeds, ("cross_row",),
          draws=False),
    Fault("seed_reset", "the seed is set anew for every decision of a round", _verifier(verifiers.OneUniform)),
    Fault("end_ignored", "an end token inside a round does not end the output", _end_ignored, ("after_end",),
          draws=False),
    Fault("past_limit", "the last round is not cut at max_new_tokens", _past_limit, ("past_limit",), draws=False),
    Fault("penalty_once_a_round", "penalties count one token a round", _target(targets.CountsOnce),
          params={"frequency_penalty": 0.5}, draws=False),
    Fault("unsure_token_dropped", "drafting stops at a token of low confidence, which is thrown away",
          _drafter(drafters.Hands, drafters.until_unsure(0.3, keeps=False))),
]  # fmt: skip


def _by_lookup(right: Setup) -> Setup:
    lookup = prompt_lookup.PromptLookup(device=right.model.device)
    return dataclasses.replace(right, drafter=lookup, believed=lookup)


def _greedy(right: Setup) -> Setup:
    return dataclasses.replace(
        right, params=SamplingParams(temperature=0.0), verifier=verifiers.Claiming(GreedyVerifier())
    )


CONTROLS = [
    Control("no_fault", "the decoder as it is", lambda right: right, draws=False),
    Control("argmax_point_masses", "the draft's most probable tokens, verified as point masses",
            _drafter(drafters.Started, temperature=0.0)),
    Control("accept_if_equal", "the target's own draws, accepted where the draft has the same",
            _verifier(verifiers.AcceptsEqual), draws=False),
    Control("tree_of_point_masses", "two children a level, verified as point masses", _siblings(None)),
    Control("unsure_token_kept", "drafting stops after a token of low confidence, which is kept",
            _drafter(drafters.Hands, drafters.until_unsure(0.3, keeps=True))),
    Control("ngram_drafts", "what followed the text's last n-gram", _by_lookup, draws=False),
    Control("bfloat16_near_ties", "greedy decoding in bfloat16", _greedy, draws=False, dtype="bfloat16"),
]  # fmt: skip
