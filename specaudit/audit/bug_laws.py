"""Bug laws: the exact law of an emitted token under each known defect, from the target's and the draft's laws.

A defect of the verification rule shows at drafted positions, one of the bonus at bonus positions, one of the target's
own rows at all. Not here is what cannot be computed from one context: a neighbouring row's logits, or laws of several
tokens at once. The rule is that of Leviathan et al. (arXiv:2211.17192, algorithm 1), for a chain.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from specaudit.core.errors import InputError
from specaudit.core.sampling import processed_probs
from specaudit.core.types import SamplingParams
from specaudit.verify import typical

LENIENCES = (0.8, 0.5)
TILTS = (-0.5, 0.5)  # exponents of q where draft and residual share their noise; bets in part stand for smaller ones
ROUNDING = 1e-9  # of a sum over a vocabulary in float64
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
NO_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}

Rows = Float[Tensor, "contexts vocab"]
Draft = Literal["none", "point_mass", "dense"]


@dataclass(frozen=True)
class Contexts:
    """Some contexts of one output, and all that laws there may depend on. Everything is known before the token is.

    Attributes
    ----------
    target_probs, draft_probs : float64, [contexts, vocab]
        Processed laws, each row of sum one; the target's own where nothing would be drafted.
    drafted, bonus : float64, [contexts]
        How much of a law of drafted positions, and of bonus positions, a token here follows: zero or one where the
        rounds are known. What is left follows the target.
    params : SamplingParams
    target_under, draft_under : callable
        The laws under other sampling parameters.
    """

    target_probs: Rows
    draft_probs: Rows
    drafted: Float[Tensor, " contexts"]
    bonus: Float[Tensor, " contexts"]
    params: SamplingParams
    target_under: Callable[[SamplingParams], Rows]
    draft_under: Callable[[SamplingParams], Rows]

    @functools.cached_property
    def overlap(self) -> Rows:
        """min(p, q): what is drafted and accepted by the standard rule."""
        return torch.minimum(self.target_probs, self.draft_probs)

    @functools.cached_property
    def residual(self) -> Rows:
        return residual(self.target_probs, self.draft_probs)


@dataclass(frozen=True)
class BugLaw:
    """One law of a defect.

    Attributes
    ----------
    name : str
        The defect's; ``audit.cause`` has it in plain words.
    variant : str
        Which of several laws of one name.
    where : "drafted", "bonus" or "all"
        The positions at which tokens follow ``law``.
    law : callable
        From contexts to rows of sum one.
    graded : bool
        The defect has a size, and this law is that of one of its sizes: it is worth a bet in part.
    """

    name: str
    variant: str
    where: Literal["drafted", "bonus", "all"]
    law: Callable[[Contexts], Rows] = field(compare=False)
    graded: bool = False

    def placed(self, contexts: Contexts) -> Rows:
        """The law of each context's token where the defect applies to its position, and else the target's.

        Raises
        ------
        InputError
            If a row is not a distribution. Then no bet on it would be fair, since a bet's expectation under the target
            is one only by what the law has on the target's own support.
        """
        law = self.law(contexts)
        if self.where != "all":
            weight = contexts.drafted if self.where == "drafted" else contexts.bonus
            law = torch.lerp(contexts.target_probs, law, weight.unsqueeze(-1))
        totals = law.sum(-1)
        wrong = ~(((totals - 1.0).abs() <= ROUNDING) & (law.amin(-1) >= 0.0))  # so that a nan is wrong
        if bool(wrong.any()):
            total = float(totals[wrong][0])
            raise InputError(
                f"bug law {self.name}", total, "is not a distribution at some context: it sums to this, or is negative",
                "check the models' logits for values that are not finite",
            )  # fmt: skip
        return law


def emission(accepted: Rows, residual: Rows) -> Rows:
    """The law of a token that is drafted and accepted with mass ``accepted`` and otherwise drawn from ``residual``."""
    return accepted + (1.0 - accepted.sum(-1, keepdim=True)).clamp(min=0.0) * residual


def residual(target_probs: Rows, draft_probs: Rows) -> Rows:
    """norm(max(0, p - q)), or p where that is zero, as the shipped rule has it."""
    left = (target_probs - draft_probs).clamp(min=0.0)
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total.clamp(min=torch.finfo(total.dtype).tiny), target_probs)


def residual_from_target(c: Contexts) -> Rows:
    """After a rejection the token is drawn from p."""
    return emission(c.overlap, c.target_probs)


def residual_exponentiated(c: Contexts) -> Rows:
    """After a rejection max(0, p - q) is taken for logits: its softmax, over the whole vocabulary."""
    return emission(c.overlap, (c.target_probs - c.overlap).softmax(-1))


def draft_unverified(c: Contexts) -> Rows:
    """Every drafted token is accepted."""
    return c.draft_probs


def lenience(c: Contexts, factor: float) -> Rows:
    """Accepts with p / (l q) (Leviathan et al., arXiv:2211.17192, appendix A.5), then the standard residual."""
    return emission(torch.minimum(c.target_probs / factor, c.draft_probs), c.residual)


def argmax_draft(c: Contexts) -> Rows:
    """The draft's most probable token is proposed, and scored as if it had been drawn from q."""
    mass, best = c.draft_probs.max(-1, keepdim=True)
    accept = (c.target_probs.gather(-1, best) / mass).clamp(max=1.0)
    return ((1.0 - accept) * c.residual).scatter_add_(-1, best, accept)


def scored_as_another(target_probs: Rows, proposed: Rows, scored: Rows) -> Rows:
    """Drawn from one law, but accepted, and its residual formed, with another."""
    accept = torch.where(scored > 0, (target_probs / scored).clamp(max=1.0), (target_probs > 0).to(scored))
    return emission(proposed * accept, residual(target_probs, scored))


def typical_acceptance(c: Contexts) -> Rows:
    """Accepts where p(x) > min(epsilon, delta exp(-H)) (Medusa, arXiv:2401.10774, section 2.3.1), then draws from p."""
    entropy = torch.special.entr(c.target_probs).sum(-1, keepdim=True)
    threshold = (typical.DELTA * torch.exp(-entropy)).clamp(max=typical.EPSILON)
    return emission(c.draft_probs * (c.target_probs > threshold), c.target_probs)


def siblings_with_replacement(c: Contexts) -> Rows:
    """Two children drawn without replacement (Sequoia, arXiv:2402.12374) and the second scored as if it were with.

    The first is rejected as x with mass (q - p)+(x), and the second is y with q(y) / (1 - q(x)). It is weighed as q(y)
    against p' = norm(p - q)+, which is positive only where nothing is rejected: y never meets its own exclusion.
    """
    q = c.draft_probs
    refused, left = q - c.overlap, c.residual
    best = q.argmax(-1, keepdim=True)
    # 1 - q(x) of the largest is summed, since the difference would lose digits; a certain draft has no second child.
    rest_of_best = q.scatter(-1, best, 0.0).sum(-1, keepdim=True)
    certain = rest_of_best <= 0
    others = (1.0 - q).scatter_(-1, best, rest_of_best.masked_fill(certain, torch.inf))
    second = (refused / others).sum(-1, keepdim=True) * torch.minimum(q, left)
    alone = refused.gather(-1, best) * certain
    rest = (refused.sum(-1, keepdim=True) - alone - second.sum(-1, keepdim=True)).clamp(min=0.0)
    law = c.overlap + second + rest * residual(left, q) + alone * left
    return law / law.sum(-1, keepdim=True)


def shared_gumbel_noise(c: Contexts) -> Rows:
    """A rejected token's Gumbel noise draws its replacement: norm(rest / (1 + q / rest)), to first order.

    The largest of log weight and noise is the first of exponential clocks with the weights as rates. The draft's clocks
    have no memory: given that x rang first, after m ~ Exp(1), y's rings m + Exp(q(y)) after the start. Read at the rate
    rest(y) of the replacement it starts late by m q(y) / rest(y), and the mean of exp(-that) is 1 / (1 + q / rest).
    """
    rest = c.residual
    late = torch.where(rest > 0, rest * rest / (rest + c.draft_probs).clamp(min=torch.finfo(rest.dtype).tiny), 0.0)
    total = late.sum(-1, keepdim=True)
    return emission(c.overlap, torch.where(total > 0, late / total.clamp(min=torch.finfo(total.dtype).tiny), rest))


def shared_noise(c: Contexts, power: float) -> Rows:
    """The target's law times q^t, normalised: a rejected token's noise, used again, leans to or from the draft."""
    root = c.draft_probs.clamp(min=1e-12).pow(abs(power))
    tilted = c.target_probs * root if power > 0 else c.target_probs / root
    return tilted / tilted.sum(-1, keepdim=True)


def bonus_from_draft(c: Contexts) -> Rows:
    """After k acceptances the token is drawn from q."""
    return c.draft_probs


def bonus_argmax(c: Contexts) -> Rows:
    """After k acceptances the target's most probable token is taken."""
    return torch.zeros_like(c.target_probs).scatter_(-1, c.target_probs.argmax(-1, keepdim=True), 1.0)


def top_p_before_top_k(c: Contexts) -> Rows:
    """The nucleus is taken of all tokens instead of the top k, min_p last."""
    nucleus = c.target_under(dataclasses.replace(c.params, top_k=0, min_p=0.0))
    return processed_probs(nucleus.log(), SamplingParams(top_k=c.params.top_k, min_p=c.params.min_p))


def target_without(c: Contexts, **off: float) -> Rows:
    """The target's rows under sampling parameters of which some are off."""
    return c.target_under(dataclasses.replace(c.params, **off))


def missing_from_ratio(c: Contexts, **off: float) -> Rows:
    """Drawn from the processed q, but scored with a q in which some sampling parameters are off."""
    return scored_as_another(c.target_probs, c.draft_probs, c.draft_under(dataclasses.replace(c.params, **off)))


def missing_from_draft(c: Contexts, **off: float) -> Rows:
    """Drawn from a q in which some sampling parameters are off, but scored with the processed one."""
    return scored_as_another(c.target_probs, c.draft_under(dataclasses.replace(c.params, **off)), c.draft_probs)


def bug_laws(params: SamplingParams, draft: Draft, *, draft_logits: bool = False) -> list[BugLaw]:
    """Every law that differs from the target's under these settings, fixed before the output is looked at.

    Parameters
    ----------
    params : SamplingParams
        Not greedy.
    draft : "none", "point_mass" or "dense"
        What the drafter's laws are.
    draft_logits : bool
        Whether ``Contexts.draft_under`` can be asked.
    """
    on = [name for name, off in OFF.items() if getattr(params, name) != off]
    laws = []
    for name in on:
        ignored = partial(target_without, **{name: OFF[name]})
        laws.append(BugLaw(f"{name}_ignored", "", "all", ignored))
        if draft != "none":
            laws.append(BugLaw(f"{name}_ignored_on_verified_rows", "", "drafted", ignored))
    if params.penalised:
        laws.append(BugLaw("penalties_ignored", "", "all", partial(target_without, **NO_PENALTIES)))
    if params.top_k and params.top_p < 1.0:
        laws.append(BugLaw("top_p_before_top_k", "", "all", top_p_before_top_k))
    if draft == "none":
        return laws
    for rule in (draft_unverified, residual_from_target, residual_exponentiated, typical_acceptance):
        laws.append(BugLaw(rule.__name__, "", "drafted", rule))
    laws += [BugLaw("lenience", f"{size:g}", "drafted", partial(lenience, factor=size), True) for size in LENIENCES]
    laws += [BugLaw(rule.__name__, "", "bonus", rule) for rule in (bonus_from_draft, bonus_argmax)]
    return laws if draft == "point_mass" else [*laws, *_laws_of_drawn_tokens(on, draft_logits)]


def _laws_of_drawn_tokens(on: list[str], draft_logits: bool) -> list[BugLaw]:
    """Laws that a point mass cannot tell from the right one."""
    laws = [BugLaw(rule.__name__, "", "drafted", rule) for rule in (argmax_draft, siblings_with_replacement)]
    laws += [BugLaw("shared_noise", f"{t:+g}", "drafted", partial(shared_noise, power=t), True) for t in TILTS]
    laws.append(BugLaw("shared_noise", "gumbel", "drafted", shared_gumbel_noise))
    for name in on if draft_logits else ():
        off = {name: OFF[name]}
        laws.append(BugLaw(f"{name}_missing_from_ratio", "", "drafted", partial(missing_from_ratio, **off)))
        laws.append(BugLaw(f"{name}_missing_from_draft", "", "drafted", partial(missing_from_draft, **off)))
    if draft_logits and len(on) > 1:
        everything = {name: OFF[name] for name in on}
        law = partial(missing_from_ratio, **everything)
        laws.append(BugLaw("processing_missing_from_ratio", "", "drafted", law))
    return laws
