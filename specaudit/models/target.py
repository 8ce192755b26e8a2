"""The target: the model whose processed distribution must be preserved, over a batch of rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from specaudit.core.protocols import CausalModel
from specaudit.core.sampling import TokenCounts, penalise, processed_probs
from specaudit.core.types import Proposal, SamplingParams


class ModelTarget:
    """Implements ``core.protocols.Target`` with a causal model."""

    def __init__(self, model: CausalModel) -> None:
        self.model = model
        self.vocabulary, self.max_context, self.device = model.vocabulary, model.max_context, model.device

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int) -> None:
        self.params = params
        self.rows = self.model.open_rows(len(prompts), capacity)
        self.rows.read([prompt[:-1] for prompt in prompts])
        self.roots = torch.tensor([[prompt[-1]] for prompt in prompts], device=self.device)
        self.counts = TokenCounts.of(prompts, self.vocabulary, self.device) if params.penalised else None

    def score(self, proposal: Proposal | None) -> Float[Tensor, "batch nodes vocab"]:
        tokens = self.roots if proposal is None else torch.cat([self.roots, proposal.tokens], dim=1)
        logits = self.rows.forward(tokens)
        if self.counts is not None:
            counts = self.counts.along(tokens[:, 1:])
            logits = penalise(logits.float(), self.counts.prompt.unsqueeze(1), counts, self.params)
        return logits if self.params.greedy else processed_probs(logits, self.params)

    def commit(self, accepted: Sequence[int], emitted: Sequence[Sequence[int]]) -> None:
        self.rows.commit([count + 1 for count in accepted])
        self.roots = torch.tensor([[tokens[-1]] for tokens in emitted], device=self.device)
        if self.counts is not None:
            for row, tokens in enumerate(emitted):
                self.counts.add(row, tokens)

    def keep(self, rows: list[int]) -> None:
        self.rows.keep(rows)
        self.roots = self.roots[rows]
        if self.counts is not None:
            self.counts.keep(rows)
