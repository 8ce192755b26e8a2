"""Scored outputs: the audit's own evidence, and how the target's mass and the tokens fall into bins of q/p."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specaudit.audit.evidence import Evidence, gather
from specaudit.core.sampling import processed_probs
from specaudit.core.types import Replay, SamplingParams, Transcript
from specaudit.stats import pit_values

Floats = NDArray[np.float64]
STEPS = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0)
EDGES = torch.tensor([-step for step in reversed(STEPS)] + [0.0, *STEPS], dtype=torch.float64)  # of log2 q/p


@dataclass(frozen=True)
class Scored:
    """One output.

    Attributes
    ----------
    evidence : Evidence
        What `specaudit.audit` keeps of it.
    u : ndarray, [tokens]
        The randomised PIT, the vocabulary ordered by q/p.
    counts, expected : ndarray, [bins]
        How many tokens fell into each bin of q/p, and how many the target would put there at these contexts.
    covariance : ndarray, [bins, bins]
        Of the counts, given the contexts: the sum of diag(m) - m m' over the tokens, m the target's mass of each bin.
    """

    evidence: Evidence
    u: Floats
    counts: Floats
    expected: Floats
    covariance: Floats


class Watched:
    """Hands on a model's or a drafter's scores, and keeps the last."""

    def __init__(self, scorer: Any) -> None:
        self.scorer = scorer
        self.seen: Any = None

    def output_logits(self, sequences: Sequence[Any]) -> Iterator[tuple[int, torch.Tensor]]:
        for index, scores in self.scorer.output_logits(sequences):
            self.seen = scores
            yield index, scores

    def replay(self, sequences: Sequence[Any], params: SamplingParams, depth: int) -> Iterator[tuple[int, Replay]]:
        for index, scores in self.scorer.replay(sequences, params, depth):
            self.seen = scores
            yield index, scores


def score(target: Any, drafter: Any, transcripts: Sequence[Transcript], params: SamplingParams) -> list[Scored]:
    """Every output once, by the audit's own `gather`, in their order."""
    model, draft = Watched(target), Watched(drafter)
    generator = np.random.default_rng([params.seed, 7])
    found: dict[int, Scored] = {}
    for evidence in gather(model, draft, transcripts, params):  # type: ignore[arg-type]
        p = processed_probs(model.seen, params).double()
        output = torch.tensor(transcripts[evidence.index].output_ids)
        uniforms = generator.random(len(output))
        u = pit_values(evidence.below, evidence.mass, uniforms)
        found[evidence.index] = Scored(evidence, u, *_binned(p, draft.seen.probs.double(), output))
    return [found[index] for index in range(len(transcripts))]


def _binned(p: torch.Tensor, q: torch.Tensor, output: torch.Tensor) -> tuple[Floats, Floats, Floats]:
    bins = torch.bucketize(torch.log2(q / p), EDGES)
    masses = torch.zeros(len(p), len(EDGES) + 1, dtype=torch.float64).scatter_add_(1, bins, p)
    masses = masses / masses.sum(-1, keepdim=True)
    counts = torch.bincount(bins.gather(1, output[:, None]).squeeze(1), minlength=len(EDGES) + 1).double()
    expected = masses.sum(0)
    return counts.numpy(), expected.numpy(), (torch.diag(expected) - masses.T @ masses).numpy()
