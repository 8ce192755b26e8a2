"""Targets that go wrong, on a right model, for planting in the real decoder; each says what it does wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from specaudit.core.protocols import CausalModel
from specaudit.core.sampling import processed_probs
from specaudit.core.types import Proposal, SamplingParams
from specaudit.models.target import ModelTarget


class TargetUnder(ModelTarget):
    """Scores under other sampling parameters than the claimed ones."""

    def __init__(self, model: CausalModel, **off: float) -> None:
        super().__init__(model)
        self.off = off

    def start(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int,
        hidden_layers: Sequence[int] = (),
    ) -> None:  # fmt: skip
        super().start(prompts, dataclasses.replace(params, **self.off), capacity, hidden_layers)


class VerifiesUnder(ModelTarget):
    """Processes the rows that verify drafts with other sampling parameters; that of the bonus is right."""

    def __init__(self, model: CausalModel, **off: float) -> None:
        super().__init__(model)
        self.off = off

    def score(self, proposal: Proposal | None) -> Float[Tensor, "batch nodes vocab"]:
        self.proposal = proposal
        return super().score(proposal)

    def processed(self, logits: Float[Tensor, "batch nodes vocab"]) -> Float[Tensor, "batch nodes vocab"]:
        right, wrong = super().processed(logits), processed_probs(logits, dataclasses.replace(self.params, **self.off))
        lengths = torch.tensor(self.proposal.lengths if self.proposal is not None else [0] * len(logits))
        verified = torch.arange(logits.shape[1]) < lengths.unsqueeze(-1)
        return torch.where(verified.unsqueeze(-1).to(logits.device), wrong, right)


class NucleusFirst(ModelTarget):
    """Applies top_p before top_k."""

    def processed(self, logits: Float[Tensor, "batch nodes vocab"]) -> Float[Tensor, "batch nodes vocab"]:
        nucleus = processed_probs(logits, dataclasses.replace(self.params, top_k=0))
        return processed_probs(nucleus.log(), SamplingParams(top_k=self.params.top_k))


class Misplaced(ModelTarget):
    """Gives the distributions of the neighbouring row (``axis`` 0), or of the node before (``axis`` 1)."""

    def __init__(self, model: CausalModel, axis: int) -> None:
        super().__init__(model)
        self.axis = axis

    def score(self, proposal: Proposal | None) -> Float[Tensor, "batch nodes vocab"]:
        right = super().score(proposal)
        if self.axis == 0:
            return right.roll(1, 0)
        return torch.cat([right[:, :1], right[:, :-1]], dim=1)


class KeepsRejected(ModelTarget):
    """Leaves the keys and values of rejected tokens in the cache."""

    def __init__(self, model: CausalModel, rounds: int, width: int) -> None:
        super().__init__(model)
        self.more = rounds * width

    def start(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int,
        hidden_layers: Sequence[int] = (),
    ) -> None:  # fmt: skip
        super().start(prompts, params, capacity + self.more, hidden_layers)

    def score(self, proposal: Proposal | None) -> Float[Tensor, "batch nodes vocab"]:
        self.width = proposal.width if proposal is not None else 0
        return super().score(proposal)

    def commit(self, paths: Sequence[Sequence[int]], emitted: Sequence[Sequence[int]]) -> None:
        super().commit([list(range(self.width))] * len(paths), emitted)


class LosesOne(ModelTarget):
    """After a round in which rows accepted different numbers, the cache of the shorter ones is a token short."""

    def commit(self, paths: Sequence[Sequence[int]], emitted: Sequence[Sequence[int]]) -> None:
        super().commit(paths, emitted)
        most = max(len(path) for path in paths)
        self.rows.rewind([length - (len(path) < most) for length, path in zip(self.rows.lengths, paths, strict=True)])


class CountsOnce(ModelTarget):
    """Penalties count one token a round, the last."""

    def commit(self, paths: Sequence[Sequence[int]], emitted: Sequence[Sequence[int]]) -> None:
        counts, self.counts = self.counts, None
        super().commit(paths, emitted)
        self.counts = counts
        if counts is not None:
            counts.extend([tokens[-1:] for tokens in emitted])
