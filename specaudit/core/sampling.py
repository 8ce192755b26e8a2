"""Logits to the distribution that must be preserved, and uniforms to tokens.

The target and every drafter go through the same functions, so both sides are processed in the same order. Temperature,
top_k, top_p and min_p are transformers' own processors: what ``generate`` samples from is what is preserved here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specaudit.core.tree import Tree
from specaudit.core.types import SamplingParams


class TokenCounts:
    """How often each token stands in a row's prompt and output: what penalties look at.

    ``prompt`` and ``output`` are counts, ``[batch, vocab]``.
    """

    def __init__(self, prompt: Float[Tensor, "batch vocab"], output: Float[Tensor, "batch vocab"]) -> None:
        self.prompt, self.output = prompt, output

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], vocabulary: int, device: torch.device | str) -> TokenCounts:
        prompt = torch.zeros(len(prompts), vocabulary, device=device)
        for row, ids in enumerate(prompts):
            prompt[row] += torch.bincount(torch.tensor(list(ids)), minlength=vocabulary).to(prompt)
        return cls(prompt, torch.zeros_like(prompt))

    def add(self, row: int, tokens: Sequence[int]) -> None:
        ids = torch.tensor(list(tokens), dtype=torch.long, device=self.output.device)
        self.output[row].index_add_(0, ids, torch.ones_like(ids, dtype=self.output.dtype))

    def extend(self, emitted: Sequence[Sequence[int]]) -> None:
        """Adds what each row emitted in a round."""
        for row, tokens in enumerate(emitted):
            self.add(row, tokens)

    def keep(self, rows: list[int]) -> None:
        self.prompt, self.output = self.prompt[rows], self.output[rows]

    def along(self, tokens: Int[Tensor, "batch width"], tree: Tree | None = None) -> Float[Tensor, "batch nodes vocab"]:
        """Output counts at the root and after each token of a chain or tree: ``nodes = width + 1``."""
        batch, width = tokens.shape
        steps = torch.zeros(batch, width + 1, self.output.shape[-1], device=self.output.device)
        steps[:, 1:].scatter_(2, tokens.unsqueeze(-1), 1.0)
        if tree is None:
            return steps.cumsum_(1).add_(self.output.unsqueeze(1))
        return torch.from_numpy(tree.ancestors).to(steps) @ steps + self.output.unsqueeze(1)


def penalise(
    logits: Float[Tensor, "*nodes vocab"],
    prompt_counts: Float[Tensor, "*nodes vocab"],
    output_counts: Float[Tensor, "*nodes vocab"],
    params: SamplingParams,
) -> Float[Tensor, "*nodes vocab"]:
    """Repetition penalty over prompt and output, then presence and frequency penalties over the output."""
    if params.repetition_penalty != 1.0:
        penalty = params.repetition_penalty
        penalised = torch.where(logits < 0, logits * penalty, logits / penalty)
        logits = torch.where((prompt_counts + output_counts) > 0, penalised, logits)
    return logits - params.presence_penalty * (output_counts > 0) - params.frequency_penalty * output_counts


@functools.lru_cache(maxsize=64)
def _warpers(params: SamplingParams) -> LogitsProcessorList:
    warpers = LogitsProcessorList()
    if params.temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(float(params.temperature)))
    if params.top_k:
        warpers.append(TopKLogitsWarper(top_k=params.top_k))
    if params.top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p=float(params.top_p)))
    if params.min_p > 0.0:
        warpers.append(MinPLogitsWarper(min_p=float(params.min_p)))
    return warpers


def processed_probs(logits: Float[Tensor, "*nodes vocab"], params: SamplingParams) -> Float[Tensor, "*nodes vocab"]:
    """The processed distribution of already penalised logits, in float32, or in float64 where the logits are so.

    With ``temperature = 0`` it is one at the largest logit, the first of several equal ones.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    flat = logits.reshape(-1, logits.shape[-1])
    if params.greedy:
        probs = torch.zeros_like(flat).scatter_(1, flat.argmax(-1, keepdim=True), 1.0)
    else:
        for warp in _warpers(params):
            flat = warp(None, flat)  # type: ignore[arg-type]  # these four never look at the ids
        probs = flat.softmax(-1)
    return probs.reshape(logits.shape)


def processed_along(
    logits: Float[Tensor, "tokens vocab"],
    prompt: Sequence[int],
    output: Sequence[int],
    params: SamplingParams,
    first: int = 0,
) -> Float[Tensor, "tokens vocab"]:
    """The processed distributions of output tokens ``first`` and after, from their unpenalised logits."""
    return processed_probs(penalised_along(logits, prompt, output, params, first), params)


def penalised_along(
    logits: Float[Tensor, "tokens vocab"],
    prompt: Sequence[int],
    output: Sequence[int],
    params: SamplingParams,
    first: int = 0,
) -> Float[Tensor, "tokens vocab"]:
    """Logits of output tokens ``first`` and after, penalised for all that stands before each."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if not params.penalised:
        return logits
    counts = TokenCounts.of([prompt], logits.shape[1], logits.device)
    counts.add(0, output[:first])
    passed = list(output[first : first + len(logits)])[:-1]
    along = counts.along(torch.tensor([passed], dtype=torch.long, device=logits.device))
    return penalise(logits, counts.prompt.expand_as(logits), along[0], params)


def sample(weights: Float[Tensor, "batch vocab"], uniforms: Float[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """The inverse distribution function of each row of ``weights`` (normalised or not) at its uniform.

    The sums run in float64, so that a vocabulary of 10^5 float32 weights loses nothing. A token of weight zero is never
    drawn: the first token whose cumulative weight exceeds the uniform's share is taken, and since the uniform is at
    most 1 - 2^-53, its share rounds to less than the total. Weights that are not numbers give the last token: an index
    past it would crash a device before anyone could say why.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    share = uniforms.to(torch.float64).unsqueeze(-1) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, share, right=True).squeeze(-1).clamp_(max=weights.shape[-1] - 1)


def row_seed(seed: int, index: int) -> int:
    """A seed for row ``index`` of a run: distinct rows and runs share no stream. Below 2^53, so that JSON keeps it."""
    # Words of 32 bits, each at its own place: numpy would put those of a longer seed where the index stands.
    words = [seed % 2**32, index, seed >> 32]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(11))


class RowUniforms:
    """One uniform stream a row, drawn in blocks of equal size, so that a row never depends on its batch."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.generators = [np.random.Generator(np.random.Philox(key=seed)) for seed in seeds]

    def draw(self, count: int, device: torch.device | str = "cpu") -> Float[Tensor, "batch count"]:
        block = np.stack([generator.random(count) for generator in self.generators])
        return torch.from_numpy(block).to(device)

    def keep(self, rows: list[int]) -> None:
        self.generators = [self.generators[row] for row in rows]
