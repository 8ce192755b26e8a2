"""From exact conditionals to the few numbers a token that the tests of an audit need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specaudit.core.protocols import CausalModel, Drafter
from specaudit.core.types import Replay, SamplingParams, Transcript
from specaudit.stats import ExcessLaw, excess_law

Floats = NDArray[np.float64]
TILTS = {"sharper": 2.0, "flatter": 0.5}  # directions p^t, normalised: what a wrong temperature looks like


@dataclass(frozen=True)
class Direction:
    """One predictable alternative r along one output: what ``stats.log_contamination_eprocess`` takes."""

    ratio: Floats
    on_support: Floats
    max_ratio: Floats


@dataclass(frozen=True)
class Evidence:
    """One output's numbers, ``[tokens]`` each.

    ``impossible`` marks tokens to which the target gives no mass. ``leading_excess`` says what could be found in the
    first direction, which is the drafter's law where there is one.
    """

    index: int
    mass: Floats
    below: Floats
    impossible: NDArray[np.bool_]
    directions: dict[str, Direction]
    leading_excess: ExcessLaw


def gather(
    target: CausalModel, drafter: Drafter | None, transcripts: Sequence[Transcript], params: SamplingParams
) -> Iterator[Evidence]:
    """Scores every transcript once, in ``core.sequences.scoring_order``; empty outputs have no evidence.

    With a drafter its law at each prefix is one direction, and the vocabulary is ordered by log q/p for the PIT; a
    point-mass drafter counts where it would propose. Without one the vocabulary is ordered by p.
    """
    pairs = [(transcript.prompt_ids, transcript.output_ids) for transcript in transcripts]
    laws = target.conditionals(pairs, params)
    replays = drafter.replay(pairs, params, 1) if drafter is not None else None
    for index, probs in laws:
        draft_probs = None
        if replays is not None:
            other, replay = next(replays)
            assert other == index, "target and drafter must score in the same order"
            draft_probs = _dense(replay, probs)
        if len(probs):  # an output may be empty
            yield _evidence(index, pairs[index][1], probs, draft_probs)


def _dense(replay: Replay, probs: Tensor) -> Tensor:
    """The draft's law at each prefix; where a point-mass drafter proposes nothing, the target's own (no direction)."""
    if replay.probs is not None:
        return replay.probs.to(probs)
    assert replay.chains is not None
    first = replay.first_tokens.to(probs.device)
    points = torch.zeros_like(probs).scatter_(1, first.clamp(min=0)[:, None], 1.0)
    return torch.where((first >= 0)[:, None], points, probs)


@torch.inference_mode()
def _evidence(index: int, output: Sequence[int], probs: Tensor, draft_probs: Tensor | None) -> Evidence:
    p = probs.double()
    p = p / p.sum(-1, keepdim=True)  # float32 sums miss one by 1e-7, which 10^5 tokens would add up
    x = torch.tensor(list(output), dtype=torch.long, device=p.device)[:, None]
    alternatives = {name: _tilted(p, power) for name, power in TILTS.items()}
    if draft_probs is not None:
        q = draft_probs.double()
        alternatives = {"draft": q / q.sum(-1, keepdim=True), **alternatives}
    score = p if draft_probs is None else torch.where(p > 0, alternatives["draft"] / p, torch.inf)
    own = score.gather(1, x)
    ids = torch.arange(p.shape[1], device=p.device)
    before = (score < own) | ((score == own) & (ids < x))
    mass = p.gather(1, x).squeeze(1)
    return Evidence(
        index=index,
        mass=mass.cpu().numpy(),
        below=(p * before).sum(-1).clamp(max=1.0).cpu().numpy(),
        impossible=(mass <= 0).cpu().numpy(),
        directions={name: _direction(p, r, x) for name, r in alternatives.items()},
        leading_excess=excess_law(p.cpu().numpy(), next(iter(alternatives.values())).cpu().numpy()),
    )


def _tilted(p: Tensor, power: float) -> Tensor:
    tilted = p.pow(power)
    return tilted / tilted.sum(-1, keepdim=True)


def _direction(p: Tensor, r: Tensor, x: Tensor) -> Direction:
    supported = p > 0
    ratios = torch.where(supported, r / torch.where(supported, p, 1.0), 0.0)
    on_support = (r * supported).sum(-1).clamp(max=1.0)
    own = ratios.gather(1, x).squeeze(1)
    # A token outside the support is a violation counted apart; here it is neutral.
    own = torch.where(supported.gather(1, x).squeeze(1), own, on_support)
    return Direction(
        ratio=own.cpu().numpy(), on_support=on_support.cpu().numpy(), max_ratio=ratios.amax(-1).cpu().numpy(),
    )  # fmt: skip
