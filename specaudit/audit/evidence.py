"""From exact conditionals to the few numbers a token that the tests of an audit need."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from specaudit.audit.boundary import boundary_tokens
from specaudit.audit.bug_laws import BugLaw, Contexts, Draft, bug_laws
from specaudit.audit.positions import bonus_positions, depths, places
from specaudit.core.protocols import CausalModel, Drafter
from specaudit.core.sampling import penalised_along, processed_along
from specaudit.core.types import Replay, SamplingParams, Transcript
from specaudit.stats import ExcessLaw, excess_law

Floats = NDArray[np.float64]
TILTS = {"sharper": 2.0, "flatter": 0.5}  # directions p^t, normalised: what a wrong temperature looks like
BLOCK = 1 << 18  # numbers in one law, of which several are held at once: 2 MB each stay near the processor
USUAL_K = 4  # of a round whose depth is not known
LARGEST_RATIO = 4.0  # of alternatives under noise: what an increment may span is what the noise can feign


@dataclass(frozen=True)
class Alternative:
    """One predictable alternative r along one output.

    ``relative`` is r(x)/p(x) of the token x, and r(x) itself where p(x) is zero. ``on_support`` is the mass of r on the
    support of p. ``max_ratio`` is the largest r/p there, where it is wanted. Under noise r is cut to ``LARGEST_RATIO``
    times p where p is positive.
    """

    relative: Floats
    on_support: Floats
    max_ratio: Floats | None = None


@dataclass(frozen=True)
class Evidence:
    """One output's numbers, ``[tokens]`` each.

    ``depth`` is the tokens' place in their rounds, -1 where that is not known, and ``place`` as of `places`.
    ``below_by_id`` is like ``below`` with the vocabulary in its own order. ``impossible`` marks tokens to which the
    target gives no mass, and ``boundary`` those of them that the machine's noise may have let in.
    ``leading_excess`` says what could be found in the
    first direction r, which is the drafter's law where there is one. ``favoured`` marks tokens with r > p, of which the
    target has the mass ``favoured_by_target`` and r ``favoured_by_leading``. ``exact`` says whether the position of
    every token in its round is known, and the draft's law there.
    """

    index: int
    depth: NDArray[np.int64]
    place: NDArray[np.int64]
    mass: Floats
    below: Floats
    below_by_id: Floats
    impossible: NDArray[np.bool_]
    boundary: NDArray[np.bool_]
    directions: dict[str, Alternative]
    laws: dict[BugLaw, Alternative]
    leading_excess: ExcessLaw
    favoured: NDArray[np.bool_]
    favoured_by_target: Floats
    favoured_by_leading: Floats
    exact: bool


def gather(
    target: CausalModel, drafter: Drafter | None, transcripts: Sequence[Transcript], params: SamplingParams,
    noisy: bool = False, margin: float = 0.0,
) -> Iterator[Evidence]:  # fmt: skip
    """Scores every transcript once, in ``core.sequences.scoring_order``; empty outputs have no evidence.

    With a drafter its law at each prefix is one direction, and the vocabulary is ordered by log q/p for the PIT; a
    point-mass drafter counts where it would propose. Without one the vocabulary is ordered by p. ``margin`` is that of
    `Noise`.
    """
    pairs = [(transcript.prompt_ids, transcript.output_ids) for transcript in transcripts]
    replays = drafter.replay(pairs, params, 1) if drafter is not None else None
    for index, logits in target.output_logits(pairs):
        replay = None
        if replays is not None:
            other, replay = next(replays)
            assert other == index, "target and drafter must score in the same order"
        if len(logits):  # an output may be empty
            evidence = _evidence(index, transcripts[index], logits, replay, params, noisy)
            yield _with_boundary(evidence, transcripts[index], logits, params, margin)


@torch.inference_mode()
def _evidence(
    index: int, transcript: Transcript, logits: Tensor, replay: Replay | None, params: SamplingParams, noisy: bool
) -> Evidence:
    """In blocks of tokens, so that a law takes no more memory however long the output is."""
    step = max(1, BLOCK // logits.shape[1])
    bonus = bonus_positions(transcript)
    exact = bonus is not None and replay is not None and replay.probs is not None and replay.token_probs is None
    laws = bug_laws(params, _kind(replay), draft_logits=replay is not None and replay.logits is not None)
    depth, place, parts = depths(transcript), places(transcript), []
    for first in range(0, len(logits), step):
        kept = slice(first, min(first + step, len(logits)))
        contexts = _contexts(transcript, logits, replay, bonus, params, kept)
        part = _block(index, transcript.output_ids[kept], contexts, replay is not None, laws, exact, noisy)
        parts.append(dataclasses.replace(part, depth=depth[kept], place=place[kept]))
    return functools.reduce(_joined, parts)


def _with_boundary(
    evidence: Evidence, transcript: Transcript, logits: Tensor, params: SamplingParams, margin: float
) -> Evidence:
    """Marks which of the impossible tokens, if there are any, the machine's noise may have let in."""
    excluded = np.flatnonzero(evidence.impossible)
    if not excluded.size:
        return evidence
    boundary, output = evidence.boundary.copy(), transcript.output_ids
    for token in excluded.tolist():
        scores = penalised_along(logits[token : token + 1], transcript.prompt_ids, output, params, token)
        boundary[token] = bool(boundary_tokens(scores, torch.tensor([output[token]]), params, margin))
    return dataclasses.replace(evidence, boundary=boundary)


def _kind(replay: Replay | None) -> Draft:
    if replay is None:
        return "none"
    return "point_mass" if replay.probs is None else "dense"


def _contexts(
    transcript: Transcript, logits: Tensor, replay: Replay | None, bonus: NDArray[np.bool_] | None,
    params: SamplingParams, kept: slice,
) -> Contexts:  # fmt: skip
    prompt, output = transcript.prompt_ids, transcript.output_ids

    def laws_under(raw: Tensor | None) -> Callable[[SamplingParams], Tensor]:
        @functools.cache  # two defects leave out one parameter, and a nucleus takes a sort
        def under(other: SamplingParams) -> Tensor:
            assert raw is not None
            return _normalised(processed_along(raw[kept].to(logits), prompt, output, other, kept.start))

        return under

    target_under = laws_under(logits)
    p = target_under(params)
    q, drafted = (p, p.new_zeros(len(p), dtype=torch.bool)) if replay is None else _draft(replay, p, kept)
    if bonus is None:
        k = transcript.engine.get("k")
        after_k = p.new_full((len(p),), 1.0 / (1 + (k if isinstance(k, int) and k > 0 else USUAL_K)))
        positions = drafted.to(p), after_k
    else:
        last = torch.from_numpy(bonus[kept]).to(p.device)
        positions = (drafted & ~last).to(p), last.to(p)
    return Contexts(
        p, q, *positions, params, target_under, laws_under(replay.logits if replay is not None else None)
    )  # fmt: skip


def _normalised(probs: Tensor) -> Float[Tensor, "tokens vocab"]:
    probs = probs.double()
    return probs / probs.sum(-1, keepdim=True)  # float32 sums miss one by 1e-7, which 10^5 tokens would add up


def _draft(replay: Replay, p: Tensor, kept: slice) -> tuple[Float[Tensor, "tokens vocab"], Bool[Tensor, " tokens"]]:
    """The draft's law at each prefix, the target's own where nothing is drafted (no direction), and where that is."""
    if replay.probs is not None:
        q = replay.probs[kept].to(p)
        drafted = q.sum(-1) > 0
    else:
        first = replay.first_tokens[kept].to(p.device)
        drafted = first >= 0
        q = torch.zeros_like(p).scatter_(1, first.clamp(min=0)[:, None], 1.0)
    return _normalised(torch.where(drafted[:, None], q, p)), drafted


def _block(
    index: int, output: Sequence[int], contexts: Contexts, drafts: bool, laws: Sequence[BugLaw], exact: bool,
    noisy: bool,
) -> Evidence:  # fmt: skip
    p, q = contexts.target_probs, contexts.draft_probs
    x = torch.tensor(list(output), dtype=torch.long, device=p.device)[:, None]
    alternatives = {name: _tilted(p, power) for name, power in TILTS.items()}
    if drafts:
        alternatives = {"draft": q, **alternatives}
    score = torch.where(p > 0, q / p, torch.inf) if drafts else p
    own = score.gather(1, x)
    ids = torch.arange(p.shape[1], device=p.device)
    before = (score < own) | ((score == own) & (ids < x))
    mass = p.gather(1, x).squeeze(1)
    mask = None if bool((p > 0).all()) else (p > 0).to(p)
    most = torch.where(p > 0, LARGEST_RATIO * p, torch.inf) if noisy else None

    def cut(r: Tensor) -> Tensor:
        return r if most is None else torch.minimum(r, most)

    alternatives = {name: cut(r) for name, r in alternatives.items()}
    leading = next(iter(alternatives.values()))
    favoured = leading > p
    return Evidence(
        index=index,
        depth=np.full(len(mass), -1),
        place=np.full(len(mass), -1),
        mass=mass.cpu().numpy(),
        below=(p * before).sum(-1).clamp(max=1.0).cpu().numpy(),
        below_by_id=(p * (ids < x)).sum(-1).clamp(max=1.0).cpu().numpy(),
        impossible=(mass <= 0).cpu().numpy(),
        boundary=np.zeros(len(mass), dtype=np.bool_),
        directions={name: _alternative(p, mask, r, x, largest=True) for name, r in alternatives.items()},
        laws={law: _alternative(p, mask, cut(law.placed(contexts)), x) for law in laws},
        leading_excess=excess_law(p.cpu().numpy(), leading.cpu().numpy()),
        favoured=favoured.gather(1, x).squeeze(1).cpu().numpy(),
        favoured_by_target=(p * favoured).sum(-1).clamp(max=1.0).cpu().numpy(),
        favoured_by_leading=(leading * favoured).sum(-1).clamp(max=1.0).cpu().numpy(),
        exact=exact,
    )


def _tilted(p: Tensor, power: float) -> Tensor:
    tilted = p.pow(power)
    return tilted / tilted.sum(-1, keepdim=True)


def _alternative(p: Tensor, mask: Tensor | None, r: Tensor, x: Tensor, *, largest: bool = False) -> Alternative:
    """``mask`` is one on the support of p, None where that is the whole vocabulary."""
    own_p, own_r = p.gather(1, x).squeeze(1), r.gather(1, x).squeeze(1)
    kept = r if mask is None else r * mask
    ratios = (kept / (p if mask is None else p + (1.0 - mask))).amax(-1) if largest else None
    return Alternative(
        relative=(own_r / torch.where(own_p > 0, own_p, 1.0)).cpu().numpy(),
        on_support=kept.sum(-1).clamp(max=1.0).cpu().numpy(),
        max_ratio=ratios.cpu().numpy() if ratios is not None else None,
    )


def _joined(one: Evidence, other: Evidence) -> Evidence:
    """One output's evidence from that of its blocks."""

    def appended(a: Floats | None, b: Floats | None) -> Floats | None:
        return None if a is None or b is None else np.concatenate([a, b])

    def both(a: Alternative, b: Alternative) -> Alternative:
        names = [field.name for field in dataclasses.fields(Alternative)]
        return Alternative(*(appended(getattr(a, name), getattr(b, name)) for name in names))  # type: ignore[arg-type]

    def each(a: Mapping, b: Mapping) -> dict:
        return {name: both(a[name], b[name]) for name in a}

    arrays = (
        "depth", "place", "mass", "below", "below_by_id", "impossible", "boundary", "favoured", "favoured_by_target",
        "favoured_by_leading",
    )  # fmt: skip
    return Evidence(
        **{name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in arrays},
        index=one.index, directions=each(one.directions, other.directions), laws=each(one.laws, other.laws),
        leading_excess=one.leading_excess + other.leading_excess, exact=one.exact,
    )  # fmt: skip
