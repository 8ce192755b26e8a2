"""How far the machine's own arithmetic moves the target's distribution between shapes: measured, not assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specaudit.core.protocols import CausalModel
from specaudit.core.sampling import processed_probs
from specaudit.core.types import SamplingParams, Transcript

SAFETY = 2.0  # the largest of many tokens lies above the largest of the few measured


@dataclass(frozen=True)
class Noise:
    """Differences between one whole pass, one-token steps and k + 1-token steps over the same tokens.

    Attributes
    ----------
    margin : float
        Largest change of the gap between the two leading logits, times a safety factor of two: a greedy choice by
        less than this is a tie.
    total_variation : float
        Mean total-variation distance between the processed distributions.
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
    """Scores the first few outputs in three shapes and compares."""
    chosen = [transcript for transcript in transcripts if len(transcript.output_ids) > 1][:rows]
    if not chosen:
        return Noise(0.0, 0.0, 0)
    gaps, distances = [], []
    for transcript in chosen:
        whole = _whole(model, transcript)
        for step in (1, width):
            other = _stepped(model, transcript, step)
            top = whole.topk(2, dim=-1).indices
            gaps.append((_gap(whole, top) - _gap(other, top)).abs().max())
            laws = processed_probs(whole, params) - processed_probs(other, params)
            distances.append(laws.abs().sum(-1).mean() / 2)
    return Noise(
        margin=SAFETY * float(torch.stack(gaps).max()),
        total_variation=float(torch.stack(distances).mean()),
        tokens=sum(len(transcript.output_ids) for transcript in chosen),
    )


def _gap(logits: Tensor, top: Tensor) -> Tensor:
    leading = logits.gather(-1, top)
    return leading[:, 0] - leading[:, 1]


def _whole(model: CausalModel, transcript: Transcript) -> Tensor:
    ids = torch.tensor([[*transcript.prompt_ids, *transcript.output_ids[:-1]]])
    return model.score_full(ids, [ids.shape[1]], len(transcript.prompt_ids) - 1)[0].float()


def _stepped(model: CausalModel, transcript: Transcript, width: int) -> Tensor:
    """Logits of the same tokens, ``width`` at a time through the decode loop's own cache."""
    fed = torch.tensor([[transcript.prompt_ids[-1], *transcript.output_ids[:-1]]], device=model.device)
    cache = model.open_rows(1, len(transcript.prompt_ids) + fed.shape[1] + width)
    cache.read([transcript.prompt_ids[:-1]])
    parts = []
    for start in range(0, fed.shape[1], width):
        piece = fed[:, start : start + width]
        parts.append(cache.forward(piece)[0].float())
        cache.commit([piece.shape[1]])
    return torch.cat(parts)
