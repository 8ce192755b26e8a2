"""A language model that is a table: next-token logits by the last token. Small enough to enumerate its whole law."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from specaudit.core.protocols import SplitModel
from specaudit.core.sequences import Sequence_
from specaudit.core.tree import Tree
from specaudit.core.types import SamplingParams
from specaudit.models.scoring import conditionals


class TabularModel:
    """Implements ``core.protocols.CausalModel`` with a first-order Markov chain.

    Parameters
    ----------
    logits : Float[Tensor, "vocab vocab"]
        Row i holds the next token's logits after token i; ``-inf`` is allowed.
    """

    max_context = 1 << 20
    tokenizer = None
    dtype_name = "float64"
    layer_count = 0

    def __init__(
        self, logits: Float[Tensor, "vocab vocab"], name: str = "tabular", end_ids: Sequence[int] = ()
    ) -> None:
        self.logits, self.name, self.end_ids = logits, name, frozenset(end_ids)
        self.vocabulary = logits.shape[-1]
        self.device = torch.device("cpu")

    def open_rows(self, batch: int, capacity: int, hidden_layers: Sequence[int] = ()) -> TabularRows:
        return TabularRows(self, batch)

    def split(self, exit_layer: int) -> SplitModel:
        raise LookupError(f"{self.name} has no decoder layers")

    def score_full(
        self, ids: Int[Tensor, "batch length"], lengths: Sequence[int], first: int = 0
    ) -> Float[Tensor, "batch kept vocab"]:
        return self.logits[ids[:, first:]]

    def conditionals(
        self, sequences: Sequence[Sequence_], params: SamplingParams, vocabulary: int | None = None
    ) -> Iterator[tuple[int, Float[Tensor, "tokens vocab"]]]:
        return conditionals(self, sequences, params, vocabulary)


class TabularRows:
    """Implements ``core.protocols.CachedRows``; a Markov chain needs no cache, so only lengths are kept."""

    def __init__(self, model: TabularModel, batch: int) -> None:
        self._model = model
        self.lengths = [0] * batch
        self.hidden: Tensor | None = None

    def read(self, prompts: Sequence[Sequence[int]]) -> None:
        self.commit([len(prompt) for prompt in prompts])

    def forward(self, tokens: Int[Tensor, "batch width"], tree: Tree | None = None) -> Float[Tensor, "batch width v"]:
        return self._model.logits[tokens]

    def commit(self, counts: Sequence[int]) -> None:
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]

    def commit_paths(self, paths: Sequence[Sequence[int]]) -> None:
        self.commit([len(path) + 1 for path in paths])

    def rewind(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    def keep(self, rows: list[int]) -> None:
        self.lengths = [self.lengths[row] for row in rows]
