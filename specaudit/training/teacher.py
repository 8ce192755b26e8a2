"""What the target makes of windows of text: its hidden states and distributions, each window run once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from specaudit.models.causal import HuggingFaceModel

MOST_KEPT_BYTES = 8 << 30  # of states on disk; beyond that each window is run again whenever it is asked for


def half_precision(device: torch.device) -> Any:
    """bfloat16 arithmetic on float32 weights, for passes whose rounding does not matter.

    Not on a CPU without AVX-512, where torch multiplies bfloat16 matrices ten times slower than float32 ones.
    """
    slow = device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=not slow)


@dataclass(frozen=True)
class Batch:
    """Whole sequences of one length with what the target makes of them.

    Attributes
    ----------
    ids : Int[Tensor, "batch length"]
    states : Float[Tensor, "batch length features"]
        The hidden states that the head reads.
    final : Float[Tensor, "batch length hidden"]
        The last ones, of which the target's own head makes its logits.
    probs : Float[Tensor, "batch length vocab"]
        The target's distribution of the token after each position, at temperature one; of a reduced vocabulary the
        mass of each of its tokens.
    """

    ids: Tensor
    states: Tensor
    final: Tensor
    probs: Tensor


class Teacher:
    """Batches of windows of text with the target's states.

    Parameters
    ----------
    texts : int[windows, length]
    layers : sequence of int
        The hidden states that the head reads; none for the last alone.
    folder : Path
        Where a nameless temporary file may grow; it is gone with the process.
    tokens : Int[Tensor, "reduced"], optional
        The target's ids that the head can propose, where it has a vocabulary of its own.
    """

    def __init__(
        self, target: HuggingFaceModel, texts: np.ndarray, layers: Sequence[int], folder: Path,
        tokens: Int[Tensor, " reduced"] | None = None,
    ) -> None:  # fmt: skip
        self.target, self.texts, self.tokens = target, texts, tokens
        last = (target.layer_count,)
        self.layers = last if tuple(layers) in ((), last) else (*layers, *last)
        # Of each position the features, the last hidden state, and the logsumexp of its logits.
        self.width = len(self.layers) * target.hidden_size + 1
        self.known: Tensor | None = None
        if 4 * texts.size * self.width <= MOST_KEPT_BYTES:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:  # the map lives on
                self.known = torch.from_numpy(np.memmap(file, np.float32, shape=(*texts.shape, self.width)))
            self.seen = np.zeros(len(texts), dtype=bool)

    def batches(self, rows: int, first: int) -> Iterator[Batch]:
        """The windows from ``first`` on, about ``rows`` at a time."""
        windows = np.arange(first, len(self.texts))
        for part in np.array_split(windows, max(1, len(windows) // rows)):
            yield self.batch(part)

    @torch.no_grad()
    def batch(self, windows: Sequence[int] | np.ndarray) -> Batch:
        """The tensors are ordinary ones, so that a gradient may pass beside them."""
        states, hidden = torch.stack([self._run(window) for window in windows]), self.target.hidden_size
        read, normaliser = states[..., :-1], states[..., -1:]
        final = read[..., -hidden:]
        probs = (self.target.head(final.to(self.target.dtype), self.tokens).float() - normaliser).exp()
        ids = torch.from_numpy(self.texts[windows]).to(self.target.device)
        return Batch(ids, read[..., :-hidden] if len(self.layers) > 1 else final, final, probs)

    def _run(self, window: int) -> Tensor:
        """A window at a time: its states must not depend on which others a resumed run asks for beside it."""
        if self.known is not None and self.seen[window]:
            return self.known[window].to(self.target.device)
        ids = torch.from_numpy(self.texts[window : window + 1]).to(self.target.device)
        with half_precision(self.target.device):
            states, logits = self.target.score_hidden(ids, self.layers)
        row = torch.cat([states.float(), logits.float().logsumexp(-1, keepdim=True)], -1)[0]
        if self.known is not None:
            self.known[window], self.seen[window] = row.cpu(), True
        return row
