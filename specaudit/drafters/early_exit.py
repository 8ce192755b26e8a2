"""Self-speculation: the target's own first layers, under its own final norm and head, draft for all of them.

Zhang et al. (arXiv:2309.08168) skip layers of the target to draft; LayerSkip (Elhoushi et al., arXiv:2404.16710) exits
early, shares the cache and verifies with the remaining layers, as is done here. A round of k tokens costs k + 1 steps
of the first M layers, k heads, and one pass of the other layers over k + 1 tokens; no key or value is computed twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from specaudit.core.errors import InputError
from specaudit.core.protocols import CausalModel, LoadModel, SplitModel, Target
from specaudit.core.sampling import TokenCounts, processed_along
from specaudit.core.sequences import Sequence_
from specaudit.core.types import Proposal, Replay, SamplingParams
from specaudit.drafters.chain import draw_chain, nothing

INSTEAD = "use prompt-lookup, or a draft model"


class EarlyExit:
    """Implements ``core.protocols.Drafter`` with the lower part of the target.

    Its cache rows are the target's own, so the target keeps, drops and rewinds them.

    Parameters
    ----------
    split : SplitModel
        Of the target.
    exit_layer : int
        How many layers draft.
    """

    hidden_layers: tuple[int, ...] = ()
    declares_lossy: str | None = None
    content: str | None = None

    def __init__(self, split: SplitModel, exit_layer: int) -> None:
        self.split, self.name = split, f"early-exit:{exit_layer}"

    def room(self, k: int) -> tuple[int, int]:
        return k, k

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int, target: Target) -> None:
        self.params, self.target = params, target
        self.roots = self._last(prompts)
        self.counts = TokenCounts.of(prompts, target.vocabulary, target.device) if params.penalised else None

    def propose(self, limits: Sequence[int], uniforms: Float[Tensor, "batch k"]) -> Proposal:
        depth = max(limits)
        if depth == 0:
            return nothing(len(limits), self.roots.device)
        early = self.split.open_pass(self.target.rows)
        tokens, probs = draw_chain(
            lambda last: early.step(self.roots if last is None else last), depth, self.params, self.counts, uniforms
        )
        return Proposal(tokens, tuple(limits), probs, continuation=early.close())

    def _last(self, texts: Sequence[Sequence[int]]) -> Int[Tensor, " batch"]:
        return torch.tensor([text[-1] for text in texts], device=self.target.device)

    def observe(self, emitted: Sequence[Sequence[int]]) -> None:
        self.roots = self._last(emitted)
        if self.counts is not None:
            self.counts.extend(emitted)

    def keep(self, rows: list[int]) -> None:
        self.roots = self.roots[rows]
        if self.counts is not None:
            self.counts.keep(rows)

    def replay(
        self, sequences: Sequence[Sequence_], params: SamplingParams, depth: int
    ) -> Iterator[tuple[int, Replay]]:
        """The exit's law depends on the prefix alone, so one pass serves every depth."""
        for index, logits in self.split.early.output_logits(sequences):
            prompt, output = sequences[index]
            yield index, Replay(probs=processed_along(logits, prompt, output, params), logits=logits)


def create(argument: str, target: CausalModel, load_model: LoadModel) -> EarlyExit:
    """The drafter of ``early-exit:M``; M is the number of layers that draft, at least 1 and below the target's."""
    name = f"early-exit:{argument}" if argument else "early-exit"
    most = target.layer_count - 1
    if most < 1:
        raise InputError(
            "--draft", name, f"{target.name} has {target.layer_count} decoder layers, and needs 2 or more", INSTEAD
        )
    example = f"use, for example, early-exit:{max(1, target.layer_count // 4)}"
    if not argument:
        raise InputError("--draft", name, f"needs the number of layers that draft, from 1 to {most}", example)
    if not (argument.isdecimal() and argument.isascii() and 1 <= int(argument) <= most):
        raise InputError("--draft", name, f"M must be an integer from 1 to {most}", example)
    try:
        return EarlyExit(target.split(int(argument)), int(argument))
    except LookupError as error:
        raise InputError("--draft", name, str(error), INSTEAD) from None
