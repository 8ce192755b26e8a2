"""Greedy output has no entropy: each token that is not the target's argmax is settled by the target's own margin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from specaudit.audit.noise import Noise
from specaudit.core.protocols import CausalModel
from specaudit.core.sampling import penalised_along
from specaudit.core.types import SamplingParams, Transcript

SHOWN = 20


def check(
    target: CausalModel, transcripts: Sequence[Transcript], params: SamplingParams, noise: Noise
) -> tuple[int, dict[str, Any]]:
    """Counts defects: tokens below the target's best by more than the machine's noise.

    Each token is judged on its own prefix, so what follows a divergence counts as well. Two tokens of exactly equal
    logits are a tie, whichever of them is emitted.

    Returns
    -------
    defects : int
    details : dict
        ``near_ties``, ``defects``, and the worst few of both with position, both tokens and the margin in nats, which
        is infinite where the target excludes the token.

    Raises
    ------
    InputError
        If a logit is not a number or infinite.
    """
    pairs = [(transcript.prompt_ids, transcript.output_ids) for transcript in transcripts]
    divergences: list[dict[str, Any]] = []
    for index, logits in target.output_logits(pairs):
        scores = penalised_along(logits, *pairs[index], params)
        tokens = torch.tensor(pairs[index][1], dtype=torch.long, device=scores.device)
        best = scores.argmax(-1)
        for position in torch.nonzero(best != tokens).flatten().tolist():
            leading, emitted = int(best[position]), int(tokens[position])
            # Of logits, not of probabilities: those of a token far below the best are zero in float32.
            margin = float(scores[position, leading].double() - scores[position, emitted].double())
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
