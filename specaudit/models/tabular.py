"""A language model that is a table: next-token logits by the last token. Small enough to enumerate its whole law."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from specaudit.core.protocols import SplitModel
from specaudit.core.sequences import Sequence_
from specaudit.core.tree import Tree
from specaudit.core.types import SamplingParams
from specaudit.models.kv_cache import RowCache
from specaudit.models.scoring import conditionals, hidden_states, output_logits


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
        self.vocabulary = self.hidden_size = logits.shape[-1]
        self.device = torch.device("cpu")

    def open_rows(self, batch: int, capacity: int, hidden_layers: Sequence[int] = ()) -> TabularRows:
        return TabularRows(self, batch, hidden_layers)

    def split(self, exit_layer: int) -> SplitModel:
        raise LookupError(f"{self.name} has no decoder layers")

    def open_cache(self, layers: int, batch: int, capacity: int) -> RowCache:
        return RowCache(layers, batch, capacity, self.device)

    def score_full(
        self, ids: Int[Tensor, "batch length"], lengths: Sequence[int], first: int = 0
    ) -> Float[Tensor, "batch kept vocab"]:
        return self.logits[ids[:, first:]]

    @property
    def dtype(self) -> torch.dtype:
        return self.logits.dtype

    def embed(self, ids: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape hidden"]:
        """Its hidden state is its last token, one-hot."""
        return one_hot(ids, self.vocabulary).to(self.dtype)

    def head(self, hidden: Float[Tensor, "*shape hidden"]) -> Float[Tensor, "*shape vocab"]:
        return self.logits[hidden.argmax(-1)]

    def hidden_full(
        self, ids: Int[Tensor, "batch length"], lengths: Sequence[int], layers: Sequence[int]
    ) -> Float[Tensor, "batch length features"]:
        return torch.cat([self.embed(ids) for _ in layers], -1)

    def hidden_states(
        self, sequences: Sequence[Sequence_], layers: Sequence[int]
    ) -> Iterator[tuple[int, Float[Tensor, "tokens features"]]]:
        return hidden_states(self, sequences, layers)

    def conditionals(
        self, sequences: Sequence[Sequence_], params: SamplingParams, vocabulary: int | None = None
    ) -> Iterator[tuple[int, Float[Tensor, "tokens vocab"]]]:
        return conditionals(self, sequences, params, vocabulary)

    def output_logits(
        self, sequences: Sequence[Sequence_], vocabulary: int | None = None
    ) -> Iterator[tuple[int, Float[Tensor, "tokens vocab"]]]:
        return output_logits(self, sequences, vocabulary)


class TabularRows:
    """Implements ``core.protocols.CachedRows``; a Markov chain needs no cache, so only lengths are kept."""

    def __init__(self, model: TabularModel, batch: int, hidden_layers: Sequence[int] = ()) -> None:
        self._model, self._hidden_layers = model, hidden_layers
        self.lengths = [0] * batch
        self.hidden: Tensor | None = None

    def read(self, prompts: Sequence[Sequence[int]]) -> None:
        width = max(len(prompt) for prompt in prompts)
        if width:
            self.forward(torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts]))
        self.commit([len(prompt) for prompt in prompts])

    def forward(self, tokens: Int[Tensor, "batch width"], tree: Tree | None = None) -> Float[Tensor, "batch width v"]:
        if self._hidden_layers:
            self.hidden = torch.cat([self._model.embed(tokens) for _ in self._hidden_layers], -1)
        return self._model.logits[tokens]

    def commit(self, counts: Sequence[int]) -> None:
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]

    def commit_paths(self, paths: Sequence[Sequence[int]]) -> None:
        self.commit([len(path) + 1 for path in paths])

    def rewind(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    def keep(self, rows: list[int]) -> None:
        self.lengths = [self.lengths[row] for row in rows]
