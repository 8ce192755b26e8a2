"""Greedy output has no entropy: each token that is not the target's argmax is settled by the target's own margin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from specaudit.audit.noise import Noise
from specaudit.core.protocols import CausalModel
from specaudit.core.types import SamplingParams, Transcript

SHOWN = 20


def check(
    target: CausalModel, transcripts: Sequence[Transcript], params: SamplingParams, noise: Noise
) -> tuple[int, dict[str, Any]]:
    """Counts defects: tokens below the target's best by more than the machine's noise.

    Each token is judged on its own prefix, so what follows a divergence counts as well.

    Returns
    -------
    defects : int
    details : dict
        ``near_ties``, ``defects``, and the first few of both with position, both tokens and the margin in nats.
    """
    pairs = [(transcript.prompt_ids, transcript.output_ids) for transcript in transcripts]
    unit = SamplingParams(
        temperature=1.0, repetition_penalty=params.repetition_penalty, presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
    )  # fmt: skip
    divergences: list[dict[str, Any]] = []
    for index, probs in target.conditionals(pairs, unit):
        tokens = torch.tensor(pairs[index][1], dtype=torch.long, device=probs.device)
        best = probs.argmax(-1)
        for position in torch.nonzero(best != tokens).flatten().tolist():
            leading, emitted = int(best[position]), int(tokens[position])
            margin = float((probs[position, leading].double() / probs[position, emitted].double()).log())
            divergences.append(
                {
                    "transcript": index, "position": position, "emitted": emitted, "argmax": leading, "margin": margin,
                    "kind": "near_tie" if margin <= noise.margin else "defect",
                }
            )  # fmt: skip
    defects = sum(1 for divergence in divergences if divergence["kind"] == "defect")
    worst_first = sorted(divergences, key=lambda divergence: -divergence["margin"])
    return defects, {
        "near_ties": len(divergences) - defects, "defects": defects, "noise_margin": noise.margin,
        "divergences": worst_first[:SHOWN],
    }  # fmt: skip
