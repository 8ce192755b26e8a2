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

    def start(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int,
        hidden_layers: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.params = params
        self.rows = self.model.open_rows(len(prompts), capacity, hidden_layers)
        self.rows.read([prompt[:-1] for prompt in prompts])
        self.hidden = [] if not hidden_layers else self._hidden([list(range(-1, len(p) - 2)) for p in prompts])
        self.roots = torch.tensor([[prompt[-1]] for prompt in prompts], device=self.device)
        self.counts = TokenCounts.of(prompts, self.vocabulary, self.device) if params.penalised else None

    def score(self, proposal: Proposal | None) -> Float[Tensor, "batch nodes vocab"]:
        tree = proposal.tree if proposal is not None else None
        parts = [self.roots, proposal.tokens, proposal.extra_tokens] if proposal is not None else [self.roots]
        tokens = torch.cat([part for part in parts if part is not None], dim=1)
        if proposal is not None and proposal.continuation is not None:
            logits = proposal.continuation(tokens)
        else:
            logits = self.rows.forward(tokens, tree)
        if self.counts is not None:
            counts = self.counts.along(tokens[:, 1:], tree)
            logits = penalise(logits.float(), self.counts.prompt.unsqueeze(1), counts, self.params)
        self.probs = self.processed(logits)
        return self.probs

    def processed(self, logits: Float[Tensor, "batch nodes vocab"]) -> Float[Tensor, "batch nodes vocab"]:
        """The processed distribution of penalised logits; under greedy decoding the logits themselves."""
        return logits if self.params.greedy else processed_probs(logits, self.params)

    def commit(self, paths: Sequence[Sequence[int]], emitted: Sequence[Sequence[int]]) -> None:
        self.rows.commit_paths(paths)
        if self.rows.hidden is not None:
            self.hidden = self._hidden([[-1, *path] for path in paths])
        self.roots = torch.tensor([[tokens[-1]] for tokens in emitted], device=self.device)
        if self.counts is not None:
            self.counts.extend(emitted)

    def _hidden(self, nodes: Sequence[Sequence[int]]) -> list[Float[Tensor, "tokens features"]]:
        """The hidden states of each row's root (-1) and nodes, in the order given."""
        hidden = self.rows.hidden
        if hidden is None:  # prompts of one token: nothing has been read
            return [torch.zeros(0, 0, device=self.device) for _ in nodes]
        return [hidden[row, torch.tensor(ids, dtype=torch.long) + 1] for row, ids in enumerate(nodes)]

    def keep(self, rows: list[int]) -> None:
        self.rows.keep(rows)
        self.roots = self.roots[rows]
        if self.counts is not None:
            self.counts.keep(rows)
