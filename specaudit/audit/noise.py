"""How far the machine's own arithmetic moves the target's distribution between shapes: measured, not assumed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specaudit.core.errors import NOT_FINITE, InputError
from specaudit.core.protocols import CausalModel
from specaudit.core.sampling import penalised_along, processed_probs
from specaudit.core.types import SamplingParams, Transcript

SAFETY = 2.0  # the largest of many tokens lies above the largest of the few measured
MEASURED_TOKENS = 64  # of each output: a step a token costs as much as a whole decode does
NEGLIGIBLE = 1e-4  # total variation: float32 makes a hundredth of it, half precision ten times as much


@dataclass(frozen=True)
class Noise:
    """Differences between one whole pass a row, and one-token and k + 1-token steps of some rows side by side.

    Attributes
    ----------
    margin : float
        Largest change of the gap between the two leading logits, times a safety factor of two: a greedy choice by
        less than this is a tie.
    total_variation : float
        Largest of the shapes' mean total-variation distances between the processed distributions, times two as well.
    tokens : int
        Tokens measured.
    """

    margin: float
    total_variation: float
    tokens: int


@torch.inference_mode()
def measure_noise(
    model: CausalModel, transcripts: Sequence[Transcript], params: SamplingParams, width: int = 5, rows: int = 4
) -> Noise:
    """Scores the first tokens of the first few outputs in three shapes and compares, penalties applied.

    Raises
    ------
    InputError
        If the model gives a logit in one of the shapes that is not a number.
    """
    chosen = [transcript for transcript in transcripts if len(transcript.output_ids) > 1][:rows]
    if not chosen:
        return Noise(0.0, 0.0, 0)
    outputs = [list(transcript.output_ids[:MEASURED_TOKENS]) for transcript in chosen]
    prompts = [list(transcript.prompt_ids) for transcript in chosen]

    def penalised(rows: Iterable[Tensor]) -> Tensor:
        parts = zip(rows, prompts, outputs, strict=True)
        return torch.cat([penalised_along(logits, prompt, output, params) for logits, prompt, output in parts])

    whole = penalised(_whole(model, prompt, output) for prompt, output in zip(prompts, outputs, strict=True))
    top = whole.topk(2, dim=-1).indices
    margins, distances = [], []
    for step in (1, width):
        other = penalised(_stepped(model, prompts, outputs, step))
        one, two = _gap(whole, top), _gap(other, top)
        margins.append(float(torch.where(one == two, 0.0, (one - two).abs()).max()))  # of infinite gaps as well
        laws = processed_probs(whole, params) - processed_probs(other, params)
        distances.append(float(laws.abs().sum(-1).mean()) / 2)
    if not all(map(math.isfinite, [*margins, *distances])):
        raise InputError("model", model.name, "gives logits that are not numbers, or not in every shape", NOT_FINITE)
    return Noise(SAFETY * max(margins), SAFETY * max(distances), len(whole))


def _gap(logits: Tensor, top: Tensor) -> Tensor:
    leading = logits.gather(-1, top)
    return leading[:, 0] - leading[:, 1]


def _whole(model: CausalModel, prompt: list[int], output: list[int]) -> Tensor:
    ids = torch.tensor([[*prompt, *output[:-1]]])
    return model.score_full(ids, [ids.shape[1]], len(prompt) - 1)[0].float()


def _stepped(
    model: CausalModel, prompts: Sequence[list[int]], outputs: Sequence[list[int]], width: int
) -> list[Tensor]:
    """Logits of the same tokens, all rows side by side and ``width`` at a time through the decode loop's own cache."""
    longest = max(len(output) for output in outputs)
    fed = torch.zeros(len(outputs), longest, dtype=torch.long)
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        fed[row, : len(output)] = torch.tensor([prompt[-1], *output[:-1]])
    fed = fed.to(model.device)
    cache = model.open_rows(len(outputs), max(len(prompt) for prompt in prompts) + longest + width)
    cache.read([prompt[:-1] for prompt in prompts])
    parts = []
    for start in range(0, longest, width):
        piece = fed[:, start : start + width]
        parts.append(cache.forward(piece).float())
        cache.commit([piece.shape[1]] * len(outputs))
    logits = torch.cat(parts, 1)
    return [logits[row, : len(output)] for row, output in enumerate(outputs)]
