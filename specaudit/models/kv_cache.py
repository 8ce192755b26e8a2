"""A key and value cache whose rows advance apart from each other, on transformers' cache interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from specaudit.core.tree import Tree


class RowLayer(CacheLayerMixin):
    """One layer's keys and values, allocated once: ``[batch, heads, capacity, dim]``.

    ``update`` writes each row's new tokens after that row's own committed length, so whatever stood there (rejected
    tokens, padding) is overwritten and never copied.
    """

    def __init__(self, rows: RowCache) -> None:
        super().__init__()
        self.rows = rows

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        batch, heads, _, key_dim = key_states.shape
        # Zeros, not empty: rows that nobody wrote are masked, but a NaN there would survive the mask.
        self.keys = key_states.new_zeros(batch, heads, self.rows.capacity, key_dim)
        self.values = value_states.new_zeros(batch, heads, self.rows.capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(
        self,
        key_states: Float[Tensor, "batch heads width key"],
        value_states: Float[Tensor, "batch heads width value"],
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        width, end = key_states.shape[2], self.rows.end
        start = self.rows.shared_length
        if start is not None:
            self.keys[:, :, start : start + width] = key_states
            self.values[:, :, start : start + width] = value_states
        else:
            row, slots = self.rows.row_index, self.rows.slots
            self.keys[row, :, slots] = key_states.transpose(1, 2)
            self.values[row, :, slots] = value_states.transpose(1, 2)
        return self.keys[:, :, :end], self.values[:, :, :end]

    def keep(self, rows: Int[Tensor, " rows"]) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys[rows], self.values[rows]

    def move(self, row: Int[Tensor, " moves"], source: Int[Tensor, " moves"], goal: Int[Tensor, " moves"]) -> None:
        for states in (self.keys, self.values):
            if states is not None:
                states[row, :, goal] = states[row, :, source]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.rows.end, 0

    def get_seq_length(self) -> int:
        return max(self.rows.lengths)

    def get_max_length(self) -> int:
        return self.rows.capacity


class RowCache(Cache):
    """All layers of a batch, its committed lengths, and the positions and masks that belong to them.

    Parameters
    ----------
    layers : int
        Attention layers of the model.
    batch, capacity : int
        Rows, and tokens that each can hold: prompt, output and the widest round.
    """

    def __init__(self, layers: int, batch: int, capacity: int, device: torch.device | str) -> None:
        super().__init__(layers=[RowLayer(self) for _ in range(layers)])
        self.capacity, self.device = capacity, device
        self.lengths = [0] * batch
        self._span = torch.arange(max(capacity, batch), device=device)
        self._triangle = torch.ones(capacity, capacity, dtype=torch.bool, device=device).tril_()
        self.prepare(0)

    def prepare(self, width: int, tree: Tree | None = None) -> None:
        """Fixes where the next ``width`` tokens of each row go: one after another, or as a tree.

        A tree's root and nodes, or, where ``width`` is the number of its nodes, the nodes alone below the last
        committed token.
        """
        self.width, self.tree = width, tree
        self.end = max(self.lengths) + width
        if self.end > self.capacity:
            raise IndexError(f"{self.end} tokens do not fit a cache of {self.capacity}")
        self.shared_length = self.lengths[0] if len(set(self.lengths)) == 1 else None
        if self.shared_length is None or tree is not None:
            self.starts = torch.tensor(self.lengths, device=self.device).unsqueeze(-1)
            self.row_index = self._span[: len(self.lengths)].unsqueeze(-1)
            self.slots = self.starts + self._span[:width]
        if tree is not None:
            first = tree.nodes + 1 - width
            self._depths = torch.from_numpy(tree.depths[:, first:]).to(self.device) - first
            self._ancestors = torch.from_numpy(tree.ancestors[:, first:, first:]).to(self.device)

    def positions(self) -> Int[Tensor, "batch width"]:
        if self.tree is not None:
            return self.starts + self._depths
        if self.shared_length is not None:
            return self._span[self.shared_length : self.end].expand(len(self.lengths), -1)
        return self.slots

    def causal_mask(self, dtype: torch.dtype, window: int | None = None) -> Float[Tensor, "rows 1 width end"]:
        """Zero where a new token may look, at its row's committed tokens and the new ones up to itself; else ``-inf``.

        ``window`` limits the look back to that many tokens, the token itself included. ``rows`` is one where all rows
        have the same length. Additive, since every attention implementation takes that, and a boolean mask would be
        converted anew in every layer. In a tree a token looks at its own ancestors alone.
        """
        if self.tree is not None:
            mask = self._tree_mask(window)
        elif self.shared_length is not None:
            mask = self._triangle[self.shared_length : self.end, : self.end].unsqueeze(0)
        else:
            mask = self._span[: self.end] <= self.slots.unsqueeze(-1)
        if window is not None and self.end > window and self.tree is None:
            oldest = self.positions()[: mask.shape[0]].unsqueeze(-1) - window
            mask = mask & (self._span[: self.end] > oldest)
        return torch.zeros((), dtype=dtype, device=mask.device).where(mask, -torch.inf).unsqueeze(1)

    def _tree_mask(self, window: int | None) -> Bool[Tensor, "batch width end"]:
        batch = len(self.lengths)
        index = self._span[: self.end] - self.starts  # of each slot in the tree, negative where it is committed
        inside = (index >= 0) & (index < self.width)
        place = index.clamp(0, self.width - 1)
        mask = self._ancestors.expand(batch, -1, -1).gather(
            2, place.unsqueeze(1).expand(-1, self.width, -1)
        ) & inside.unsqueeze(1)
        mask = mask | (index < 0).unsqueeze(1)
        if window is not None:
            depths = self._depths.expand(batch, -1).gather(1, place)
            held = torch.where(index < 0, self._span[: self.end].expand(batch, -1), self.starts + depths)
            mask = mask & (held.unsqueeze(1) > self.positions().unsqueeze(-1) - window)
        return mask

    def commit(self, counts: Sequence[int]) -> None:
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]

    def commit_paths(self, paths: Sequence[Sequence[int]]) -> None:
        """Keeps the root and the named nodes of the tree just given, moved to follow each other."""
        moves = [
            (row, length + 1 + node, length + 1 + place)
            for row, (length, path) in enumerate(zip(self.lengths, paths, strict=True))
            for place, node in enumerate(path)
            if node != place
        ]
        if moves:
            row, source, goal = torch.tensor(moves, device=self.device).T
            for layer in self.layers:
                layer.move(row, source, goal)  # type: ignore[union-attr]
        self.commit([len(path) + 1 for path in paths])

    def rewind(self, lengths: Sequence[int]) -> None:
        if any(new > old for new, old in zip(lengths, self.lengths, strict=True)):
            raise IndexError(f"cannot rewind rows of {self.lengths} tokens to {list(lengths)}")
        self.lengths = list(lengths)

    def keep(self, rows: list[int]) -> None:
        index = torch.tensor(rows, dtype=torch.long, device=self.device)
        for layer in self.layers:
            layer.keep(index)  # type: ignore[union-attr]
        self.lengths = [self.lengths[row] for row in rows]
