"""Prompt lookup: proposes what followed the last occurrence of the text's final n-gram (Saxena, 2023).

Costs no model pass; wins where the output copies the prompt (summaries, edits, retrieval). Its proposals are point
masses: the distribution each token was drawn from is one at that token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from specaudit.core.errors import InputError
from specaudit.core.protocols import CausalModel, LoadModel, Target
from specaudit.core.sequences import Sequence_, scoring_order
from specaudit.core.types import Proposal, Replay, SamplingParams

DEFAULT_LONGEST = 3


class NgramIndex:
    """A growing text, with the place after the latest occurrence of each of its n-grams, its own end left out."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.text: list[int] = []
        self.after: list[dict[tuple[int, ...], int]] = [{} for _ in range(longest)]

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            # The n-grams that ended before this token now have a continuation: this token.
            end = len(self.text)
            for size in range(1, min(self.longest, end) + 1):
                self.after[size - 1][tuple(self.text[end - size :])] = end
            self.text.append(token)

    def continuation(self, count: int) -> list[int]:
        """Up to ``count`` tokens after the latest earlier occurrence of the longest final n-gram that has one."""
        for size in range(min(self.longest, len(self.text)), 0, -1):
            start = self.after[size - 1].get(tuple(self.text[-size:]))
            if start is not None:
                return self.text[start : start + count]
        return []


class PromptLookup:
    """Implements ``core.protocols.Drafter``; needs no model.

    Parameters
    ----------
    longest : int
        The longest n-gram that is looked up; shorter ones are tried after it, down to a single token.
    """

    hidden_layers: tuple[int, ...] = ()
    declares_lossy: str | None = None
    content: str | None = None

    def __init__(self, longest: int = DEFAULT_LONGEST, device: torch.device | str = "cpu") -> None:
        self.longest, self.device = longest, device
        self.name = f"prompt-lookup:{longest}"

    def room(self, k: int) -> tuple[int, int]:
        return k, k

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int, target: Target) -> None:
        self.indexes = [NgramIndex(self.longest) for _ in prompts]
        self.observe(prompts)

    def propose(self, limits: Sequence[int], uniforms: Float[Tensor, "batch k"]) -> Proposal:
        chains = [index.continuation(limit) for index, limit in zip(self.indexes, limits, strict=True)]
        width = max(len(chain) for chain in chains)
        padded = [chain + [0] * (width - len(chain)) for chain in chains]
        tokens = torch.tensor(padded, dtype=torch.long, device=self.device).reshape(len(chains), width)
        return Proposal(tokens, tuple(len(chain) for chain in chains), "point_mass")

    def observe(self, emitted: Sequence[Sequence[int]]) -> None:
        for index, tokens in zip(self.indexes, emitted, strict=True):
            index.extend(tokens)

    def keep(self, rows: list[int]) -> None:
        self.indexes = [self.indexes[row] for row in rows]

    def replay(
        self, sequences: Sequence[Sequence_], params: SamplingParams, depth: int
    ) -> Iterator[tuple[int, Replay]]:
        """Proposes again from every token of each output."""
        for number in scoring_order(sequences):
            prompt, output = sequences[number]
            index = NgramIndex(self.longest)
            index.extend(prompt)
            chains = torch.full((len(output), depth), -1, dtype=torch.long)
            for position, token in enumerate(output):
                chain = index.continuation(depth)
                chains[position, : len(chain)] = torch.tensor(chain, dtype=torch.long)
                index.extend([token])
            yield number, Replay(chains=chains)


def create(argument: str, target: CausalModel, load_model: LoadModel) -> PromptLookup:
    """The drafter of ``prompt-lookup[:N]``; N is the longest n-gram."""
    if argument and not (argument.isdecimal() and int(argument) > 0):
        raise InputError(
            "--draft", f"prompt-lookup:{argument}", "N must be at least 1", "use, for example, prompt-lookup:3"
        )
    return PromptLookup(int(argument) if argument else DEFAULT_LONGEST, target.device)
