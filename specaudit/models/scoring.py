"""Exact conditionals of whole outputs by teacher forcing: one ordinary pass, none of the decode loop's cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from specaudit.core.errors import NOT_FINITE, InputError
from specaudit.core.protocols import CausalModel
from specaudit.core.sampling import processed_along
from specaudit.core.sequences import Sequence_, token_batches
from specaudit.core.types import SamplingParams

LOGITS_PER_BATCH = 1 << 27  # half a gigabyte of float32
TOKENS_PER_BATCH = 4096


def hidden_states(
    model: CausalModel, sequences: Sequence[Sequence_], layers: Sequence[int]
) -> Iterator[tuple[int, Float[Tensor, "tokens features"]]]:
    """The hidden states of whole ``(prompt, output)`` pairs, the named layers side by side, in scoring order."""
    for batch in token_batches(sequences, TOKENS_PER_BATCH):
        wholes = [[*sequences[index][0], *sequences[index][1]] for index in batch]
        ids = torch.zeros(len(batch), max(len(whole) for whole in wholes), dtype=torch.long)
        for row, whole in enumerate(wholes):
            ids[row, : len(whole)] = torch.tensor(whole, dtype=torch.long)
        hidden = model.hidden_full(ids, [len(whole) for whole in wholes], layers)
        for row, index in enumerate(batch):
            yield index, hidden[row, : len(wholes[row])]


def conditionals(
    model: CausalModel, sequences: Sequence[Sequence_], params: SamplingParams, vocabulary: int | None = None
) -> Iterator[tuple[int, Float[Tensor, "tokens vocab"]]]:
    """Processed next-token distributions at every output token; see ``output_logits``."""
    for index, logits in output_logits(model, sequences, vocabulary):
        prompt, output = sequences[index]
        yield index, processed_along(logits, prompt, output, params)


def output_logits(
    model: CausalModel, sequences: Sequence[Sequence_], vocabulary: int | None = None
) -> Iterator[tuple[int, Float[Tensor, "tokens vocab"]]]:
    """The logits of every output token of ``(prompt, output)`` pairs, neither penalised nor processed.

    Parameters
    ----------
    vocabulary : int, optional
        Width of the result: a model's padded logits are cut, and missing ones are impossible tokens.

    Yields
    ------
    (index, logits)
        In ``core.sequences.scoring_order``; ``logits[t]`` is about output token t given all before it.

    Raises
    ------
    InputError
        If a logit is not a number or plus infinity, or all at one token are minus infinity.
    """
    budget = min(TOKENS_PER_BATCH, max(1, LOGITS_PER_BATCH // model.vocabulary))
    for batch in token_batches(sequences, budget):
        first = min(len(sequences[index][0]) for index in batch) - 1
        lengths = [len(sequences[index][0]) + len(sequences[index][1]) - 1 for index in batch]
        ids = torch.zeros(len(batch), max(lengths), dtype=torch.long)
        for row, index in enumerate(batch):
            whole = [*sequences[index][0], *sequences[index][1]]
            ids[row, : lengths[row]] = torch.tensor(whole[:-1], dtype=torch.long)
        logits = model.score_full(ids, lengths, first)
        for row, index in enumerate(batch):
            start = len(sequences[index][0]) - 1 - first
            fitted = _fitted(logits[row, start : lengths[row] - first], vocabulary)
            _check_finite(model, index, fitted)
            yield index, fitted


def _fitted(logits: Float[Tensor, "tokens v"], vocabulary: int | None) -> Float[Tensor, "tokens vocab"]:
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if vocabulary is None:
        return logits
    return pad(logits[:, :vocabulary], (0, max(0, vocabulary - logits.shape[1])), value=-torch.inf)


def _check_finite(model: CausalModel, index: int, logits: Float[Tensor, "tokens vocab"]) -> None:
    largest = logits.amax(-1)  # a nan wins over everything
    wrong = ~largest.isfinite()
    if bool(wrong.any()):
        position = int(wrong.nonzero()[0])
        place = f"at token {position} of output {index} the largest logit is {float(largest[position])}"
        raise InputError("model", model.name, place, NOT_FINITE)
