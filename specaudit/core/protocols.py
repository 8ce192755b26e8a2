"""What the decode loop asks of a target, a drafter and a verifier, and what those ask of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float, Int
    from torch import Tensor

    from specaudit.core.sequences import Sequence_
    from specaudit.core.tree import Tree
    from specaudit.core.types import Continuation, Proposal, Replay, SamplingParams, Verification


class CausalModel(Protocol):
    """A causal language model with weights in memory, which can open batches of cached rows."""

    name: str
    tokenizer: Any
    vocabulary: int
    max_context: int
    end_ids: frozenset[int]

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype_name(self) -> str: ...

    def split(self, exit_layer: int) -> SplitModel:
        """The model cut after ``exit_layer`` of its layers; a LookupError says why it cannot be."""
        ...

    def open_rows(self, batch: int, capacity: int, hidden_layers: Sequence[int] = ()) -> CachedRows:
        """A batch of empty cache rows, each with room for ``capacity`` tokens, that keep the named hidden states."""
        ...

    def open_cache(self, layers: int, batch: int, capacity: int) -> LayerCache:
        """An empty cache for a drafter's own layers, on the model's device."""
        ...

    def score_full(
        self, ids: Int[Tensor, "batch length"], lengths: Sequence[int], first: int = 0
    ) -> Float[Tensor, "batch kept vocab"]:
        """Logits at positions ``first`` and after of right-padded sequences, in one pass without the row cache."""
        ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def layer_count(self) -> int:
        """Decoder layers, zero where there are none; hidden state i enters layer i, the last leaves the final norm."""
        ...

    @property
    def hidden_size(self) -> int: ...

    def embed(self, ids: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape hidden"]: ...

    def head(self, hidden: Float[Tensor, "*shape hidden"]) -> Float[Tensor, "*shape vocab"]:
        """Logits of final hidden states."""
        ...

    def hidden_full(
        self, ids: Int[Tensor, "batch length"], lengths: Sequence[int], layers: Sequence[int]
    ) -> Float[Tensor, "batch length features"]:
        """Hidden states of right-padded sequences in one pass without the row cache, the layers side by side."""
        ...

    def hidden_states(
        self, sequences: Sequence[Sequence_], layers: Sequence[int]
    ) -> Iterator[tuple[int, Float[Tensor, "tokens features"]]]:
        """Hidden states at every token of ``(prompt, output)`` pairs, in scoring order."""
        ...

    def conditionals(
        self, sequences: Sequence[Sequence_], params: SamplingParams, vocabulary: int | None = None
    ) -> Iterator[tuple[int, Float[Tensor, "tokens vocab"]]]:
        """Processed distributions at every output token of ``(prompt, output)`` pairs, in scoring order."""
        ...

    def output_logits(
        self, sequences: Sequence[Sequence_], vocabulary: int | None = None
    ) -> Iterator[tuple[int, Float[Tensor, "tokens vocab"]]]:
        """The logits that ``conditionals`` processes, before any penalty."""
        ...


class SplitModel(Protocol):
    """A model cut after some of its decoder layers.

    ``early`` is a causal model of its own: the layers below the cut, under the model's final norm and head.
    """

    @property
    def early(self) -> CausalModel: ...

    def open_pass(self, rows: CachedRows) -> EarlyPass:
        """A round of the early exit on rows that the whole model has opened."""
        ...


class EarlyPass(Protocol):
    """One round of an early exit on the whole model's cache rows: a step a token, then ``close``."""

    def step(self, tokens: Int[Tensor, " batch"]) -> Float[Tensor, "batch vocab"]:
        """The early exit's logits after one more token a row, which it commits."""
        ...

    def close(self) -> Continuation | None:
        """Puts the committed lengths back. What it returns, if anything, is ``Proposal.continuation``."""
        ...


class LayerCache(Protocol):
    """The bare key and value cache of a batch, for a drafter with attention layers of its own."""

    lengths: list[int]

    def prepare(self, width: int, tree: Tree | None = None) -> None:
        """Fixes where the next ``width`` tokens of each row go; a tree of ``width`` nodes hangs below the last one."""
        ...

    def positions(self) -> Int[Tensor, "batch width"]: ...

    def causal_mask(self, dtype: torch.dtype, window: int | None = None) -> Float[Tensor, "rows 1 width end"]:
        """Zero where a prepared token may look, else ``-inf``."""
        ...

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Writes the prepared tokens' keys and values, and gives all that they may look at."""
        ...

    def commit(self, counts: Sequence[int]) -> None: ...

    def rewind(self, lengths: Sequence[int]) -> None: ...

    def keep(self, rows: list[int]) -> None: ...


class CachedRows(Protocol):
    """The key and value cache of a batch. A row's committed length moves apart from its neighbours'.

    ``hidden`` holds the hidden states of the last pass, where some were asked for: the layers side by side.
    """

    hidden: Float[Tensor, "batch width features"] | None

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of each row."""
        ...

    def read(self, prompts: Sequence[Sequence[int]]) -> None:
        """Fills empty rows with prompts of different lengths, in one right-padded pass, and commits them."""
        ...

    def forward(
        self, tokens: Int[Tensor, "batch width"], tree: Tree | None = None
    ) -> Float[Tensor, "batch width vocab"]:
        """Logits of ``tokens`` placed after each row's committed length; commits nothing.

        With a tree they are its root and nodes, each of which sees its own ancestors alone.
        """
        ...

    def commit(self, counts: Sequence[int]) -> None:
        """Keeps the first ``counts[row]`` of the tokens just given and forgets the others, without a copy."""
        ...

    def commit_paths(self, paths: Sequence[Sequence[int]]) -> None:
        """Keeps the root and the named nodes of the tokens just given, as if they had followed each other."""
        ...

    def rewind(self, lengths: Sequence[int]) -> None:
        """Sets each row's committed length, at most what it holds."""
        ...

    def keep(self, rows: list[int]) -> None:
        """Drops every row that is not named, in the order given."""
        ...


class Target(Protocol):
    """The model whose distribution is the truth, over a batch of rows.

    ``probs`` is what ``score`` returned last. ``hidden`` holds, a tensor a row, the hidden states of the tokens that
    were committed last: at the start the prompt but for its last token, then each round's root and accepted path.
    """

    vocabulary: int
    max_context: int
    device: torch.device
    rows: CachedRows
    probs: Float[Tensor, "batch nodes vocab"]
    hidden: list[Float[Tensor, "tokens features"]]

    def start(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int,
        hidden_layers: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Reads each prompt but for its last token, which becomes the root of the first round."""
        ...

    def score(self, proposal: Proposal | None) -> Float[Tensor, "batch nodes vocab"]:
        """The processed distribution at the root, at every proposed node and at every extra token, in that order."""
        ...

    def commit(self, paths: Sequence[Sequence[int]], emitted: Sequence[Sequence[int]]) -> None:
        """Keeps the cache rows of the root and of each row's accepted path; the last emitted token is the next root."""
        ...

    def keep(self, rows: list[int]) -> None: ...


class Drafter(Protocol):
    """Proposes tokens that the target is likely to produce.

    ``hidden_layers`` names the target's hidden states that the drafter reads, by layer; most read none. ``content`` is
    a hash of weights of its own that no loaded model accounts for. ``declares_lossy`` says what its published
    configuration asks of a server that would change the output, if anything; the loop does not do it.
    """

    name: str
    hidden_layers: tuple[int, ...]
    declares_lossy: str | None
    content: str | None

    def room(self, k: int) -> tuple[int, int]:
        """The most nodes that are verified, and the most tokens scored beside the root, in a round of depth ``k``."""
        ...

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int, target: Target) -> None:
        """Reads the prompts of a new batch; the target has read them and may be looked at until the batch ends."""
        ...

    def propose(self, limits: Sequence[int], uniforms: Float[Tensor, "batch nodes"]) -> Proposal:
        """Up to ``limits[row]`` tokens deep, drawn with the row's own uniforms, one for each node there is room for."""
        ...

    def observe(self, emitted: Sequence[Sequence[int]]) -> None:
        """Learns what each row emitted in the round: accepted tokens, then the extra one."""
        ...

    def keep(self, rows: list[int]) -> None:
        """Drops every row that is not named."""
        ...

    def replay(
        self, sequences: Sequence[Sequence_], params: SamplingParams, depth: int
    ) -> Iterator[tuple[int, Replay]]:
        """What it would have proposed along finished ``(prompt, output)`` pairs, in scoring order."""
        ...


class Verifier(Protocol):
    """Decides what of a proposal is accepted: a pure function of probabilities and uniforms.

    ``preserves_target`` is False for every lossy rule, and a run that uses one is never reported as lossless.
    """

    name: str
    preserves_target: bool

    def __call__(
        self,
        target_probs: Float[Tensor, "batch nodes vocab"],
        proposal: Proposal | None,
        uniforms: Float[Tensor, "batch nodes"],
    ) -> Verification: ...


LoadModel = Callable[[str], CausalModel]
