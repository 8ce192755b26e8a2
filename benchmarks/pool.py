"""Outputs of the bundled pair: of the target, of the draft, and of the target with a share of the draft's law."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from specaudit.core.protocols import CachedRows, CausalModel
from specaudit.core.sampling import processed_probs
from specaudit.core.types import Limits, SamplingParams, Transcript
from specaudit.decode import decode_batches
from specaudit.engines import transcripts as files
from specaudit.models.target import ModelTarget
from specaudit.verify import RejectionVerifier

BATCH = 100


class Mixture:
    """What `ModelTarget` needs of a model whose next token follows (1 - share) p + share q.

    A token from p, or with probability ``share`` from q by an independent coin, has this law. p and q are the two
    models' laws at ``temperature``, in float64; the logits returned give the mixture back once that temperature divides
    them, so nothing but a temperature may be on.
    """

    def __init__(self, target: CausalModel, draft: CausalModel, share: float, temperature: float) -> None:
        self.models, self.share = (target, draft), share
        self.params = SamplingParams(temperature=temperature)
        self.vocabulary, self.max_context, self.device = target.vocabulary, target.max_context, target.device
        self.name = f"{target.name} with {share:g} of {draft.name}"

    def open_rows(self, batch: int, capacity: int, hidden_layers: Sequence[int] = ()) -> MixtureRows:
        return MixtureRows(self, [model.open_rows(batch, capacity) for model in self.models])


class MixtureRows:
    """Both models' rows, moved together."""

    hidden = None

    def __init__(self, model: Mixture, rows: Sequence[CachedRows]) -> None:
        self.model, self.rows = model, rows

    def read(self, prompts: Sequence[Sequence[int]]) -> None:
        for rows in self.rows:
            rows.read(prompts)

    def forward(self, tokens: torch.Tensor, tree: None = None) -> torch.Tensor:
        p, q = (processed_probs(rows.forward(tokens).double(), self.model.params) for rows in self.rows)
        mixed = (1.0 - self.model.share) * p + self.model.share * q
        return mixed.log() * self.model.params.temperature

    def commit_paths(self, paths: Sequence[Sequence[int]]) -> None:
        for rows in self.rows:
            rows.commit_paths(paths)

    def keep(self, kept: list[int]) -> None:
        for rows in self.rows:
            rows.keep(kept)


def read_or_make(
    path: Path, target: CausalModel, draft: CausalModel, prompts: Sequence[Sequence[int]], counts: dict[float, int],
    temperature: float, max_new_tokens: int, seed: int,
) -> dict[float, list[Transcript]]:  # fmt: skip
    """Outputs by contamination, each prompt's one after another; made once and kept at ``path``.

    Parameters
    ----------
    counts : dict of float to int
        For each contamination how many outputs a prompt has.
    """
    if not path.exists():
        made = [
            dataclasses.replace(transcript, rounds=None, category=f"{share:g}")
            for place, (share, count) in enumerate(counts.items())
            for transcript in decoded(
                target, draft, share, [prompt for prompt in prompts for _ in range(count)],
                SamplingParams(temperature=temperature, seed=seed + place), max_new_tokens,
            )
        ]  # fmt: skip
        files.write(path, made)
    found: dict[float, list[Transcript]] = {share: [] for share in counts}
    for transcript in files.read(path, "--pool"):
        found.setdefault(float(transcript.category or "nan"), []).append(transcript)
    for share, outputs in found.items():
        wanted = Counter({tuple(prompt): counts.get(share, 0) for prompt in prompts})
        settings = {(one.sampling.temperature, one.engine["max_new_tokens"]) for one in outputs}
        if Counter(one.prompt_ids for one in outputs) != wanted or settings - {(temperature, max_new_tokens)}:
            sys.exit(f"{path} was made with other options: name another file, or remove it")
    return found


def decoded(
    target: CausalModel, draft: CausalModel, share: float, prompts: Sequence[Sequence[int]], params: SamplingParams,
    max_new_tokens: int,
) -> list[Transcript]:  # fmt: skip
    """One output a prompt by the plain loop, in the order of the prompts."""
    pure = {0.0: target, 1.0: draft}
    model = pure[share] if share in pure else Mixture(target, draft, share, params.temperature)
    limits = Limits(max_new_tokens, target.end_ids)
    batches = decode_batches(ModelTarget(model), None, RejectionVerifier(), prompts, params, limits, batch_size=BATCH)  # type: ignore[arg-type]
    outputs: dict[int, Transcript] = {}
    for indexes, batch in batches:
        outputs.update(zip(indexes, batch.transcripts, strict=True))
        print(f"contamination {share:g}: {len(outputs)} of {len(prompts)} outputs", file=sys.stderr)
    return [outputs[index] for index in range(len(prompts))]
