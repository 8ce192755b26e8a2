"""Drafters that go wrong, around a right one, for planting in the real decoder; each says what it does wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from specaudit.core.protocols import Drafter, Target
from specaudit.core.sampling import sample
from specaudit.core.sequences import Sequence_
from specaudit.core.tree import Tree
from specaudit.core.types import Proposal, Replay, SamplingParams

Probs = Float[Tensor, "batch vocab"]
Uniforms = Float[Tensor, "batch nodes"]
SecondLaw = Callable[
    [Float[Tensor, "batch width vocab"], Int[Tensor, "batch width 1"]], Float[Tensor, "batch width vocab"]
]


class Wrapped:
    """A drafter that passes everything on to another."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.name, self.hidden_layers = inner.name, inner.hidden_layers
        self.declares_lossy, self.content = inner.declares_lossy, inner.content

    def room(self, k: int) -> tuple[int, int]:
        return self.inner.room(k)

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int, target: Target) -> None:
        self.inner.start(prompts, params, capacity, target)

    def propose(self, limits: Sequence[int], uniforms: Uniforms) -> Proposal:
        return self.inner.propose(limits, uniforms)

    def observe(self, emitted: Sequence[Sequence[int]]) -> None:
        self.inner.observe(emitted)

    def keep(self, rows: list[int]) -> None:
        self.inner.keep(rows)

    def replay(
        self, sequences: Sequence[Sequence_], params: SamplingParams, depth: int
    ) -> Iterator[tuple[int, Replay]]:
        return self.inner.replay(sequences, params, depth)


class Hands(Wrapped):
    """Hands out another proposal than the one that was drawn."""

    def __init__(self, inner: Drafter, change: Callable[[Proposal], Proposal]) -> None:
        super().__init__(inner)
        self.change = change

    def propose(self, limits: Sequence[int], uniforms: Uniforms) -> Proposal:
        proposal = self.inner.propose(limits, uniforms)
        return self.change(proposal) if proposal.width else proposal


class Started(Hands):
    """Drafts under other sampling parameters than the target's."""

    def __init__(
        self, inner: Drafter, change: Callable[[Proposal], Proposal] = lambda proposal: proposal, **off: float
    ) -> None:
        super().__init__(inner, change)
        self.off = off

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int, target: Target) -> None:
        self.inner.start(prompts, dataclasses.replace(params, **self.off), capacity, target)


class KeepsOneMore(Wrapped):
    """Drafts one token more than it hands out, and keeps the law of that one for `BonusFrom`."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner)
        self.law: Probs | None = None

    def room(self, k: int) -> tuple[int, int]:
        return self.inner.room(k + 1)

    def propose(self, limits: Sequence[int], uniforms: Uniforms) -> Proposal:
        whole = self.inner.propose([limit + 1 for limit in limits], uniforms)
        assert not isinstance(whole.draft_probs, str)
        rows = torch.arange(len(limits), device=whole.tokens.device)
        self.law = whole.draft_probs[rows, torch.tensor(limits, device=rows.device)]
        return Proposal(whole.tokens[:, :-1], tuple(limits), whole.draft_probs[:, :-1])


class Chooses(Wrapped):
    """Chooses each token itself, from the other drafter's law, and says that the law drew it.

    The other drafter reads the text anew in every round, so that it follows what was chosen at every depth. Its law may
    be that of other sampling parameters, ``off``. ``noise`` keeps what each choice was made with.
    """

    def __init__(
        self, inner: Drafter, choose: Callable[[Probs, Float[Tensor, " batch"]], Int[Tensor, " batch"]],
        **off: float,
    ) -> None:  # fmt: skip
        super().__init__(inner)
        self.choose, self.off = choose, off

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int, target: Target) -> None:
        self.texts = [list(prompt) for prompt in prompts]
        self.params, self.capacity, self.target = dataclasses.replace(params, **self.off), capacity, target

    def propose(self, limits: Sequence[int], uniforms: Uniforms) -> Proposal:
        if not max(limits):
            return Proposal(torch.zeros(len(limits), 0, dtype=torch.long), tuple(limits), "point_mass")
        self.inner.start(self.texts, self.params, self.capacity, self.target)
        tokens, laws = [], []
        for step in range(max(limits)):
            one = self.inner.propose([1] * len(limits), uniforms[:, step : step + 1])
            assert not isinstance(one.draft_probs, str)
            laws.append(one.draft_probs[:, 0])
            tokens.append(self.choose(laws[-1], uniforms[:, step]))
            self.inner.observe([[token] for token in tokens[-1].tolist()])
        return Proposal(torch.stack(tokens, 1), tuple(limits), torch.stack(laws, 1))

    def observe(self, emitted: Sequence[Sequence[int]]) -> None:
        for text, tokens in zip(self.texts, emitted, strict=True):
            text.extend(tokens)

    def keep(self, rows: list[int]) -> None:
        self.texts = [self.texts[row] for row in rows]


def gumbel_choice(law: Probs, uniforms: Float[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """Draws from ``law`` by the largest of its logarithms with noise, which the uniform is the seed of."""
    seeds = (uniforms * 2**53).long().tolist()
    noise = np.stack([np.random.default_rng(seed).gumbel(size=law.shape[1]) for seed in seeds])
    return (law.log() + torch.from_numpy(noise).to(law)).argmax(-1)


class RemembersUniforms(Chooses):
    """Draws by noise on each logit, and keeps the noise's seeds for `SharesNoise`."""

    def __init__(self, inner: Drafter) -> None:
        super().__init__(inner, gumbel_choice)

    def propose(self, limits: Sequence[int], uniforms: Uniforms) -> Proposal:
        self.uniforms = uniforms
        return super().propose(limits, uniforms)


class Siblings(Wrapped):
    """A second child beside every drafted token, drawn from q without the first; the law said of it is ``law``'s.

    Parameters
    ----------
    law : callable, optional
        Of q and the first child: the law that is said of the second. Without, all are said to be point masses, which is
        no fault: given the tokens, whatever chose them, each is accepted with what p gives it.
    """

    def __init__(self, inner: Drafter, k: int, law: SecondLaw | None) -> None:
        super().__init__(inner)
        self.k, self.law = k, law
        self.chain: list[list[int]] = []

    def room(self, k: int) -> tuple[int, int]:
        return 2 * k, 2 * k

    def propose(self, limits: Sequence[int], uniforms: Uniforms) -> Proposal:
        one = self.inner.propose(limits, uniforms[:, : self.k])
        if not one.width:
            self.chain = [[] for _ in limits]
            return one
        assert not isinstance(one.draft_probs, str)
        self.chain = one.tokens.tolist()
        width, places = one.width, one.tokens.unsqueeze(-1)
        left = one.draft_probs.scatter(-1, places, 0.0)
        # Of a q that holds one token alone nothing is left: any other token may stand beside it.
        left = torch.where(left.sum(-1, keepdim=True) > 0, left, 1.0 - one.draft_probs)
        second = sample(left.flatten(0, 1), uniforms[:, self.k : self.k + width].flatten()).view(-1, width)
        tokens = torch.stack([one.tokens, second], 2).flatten(1)
        tree = Tree([[2 * depth - 2 if depth else -1 for depth in range(width) for _ in range(2)]])
        lengths = tuple(2 * limit for limit in limits)
        if self.law is None:
            return Proposal(tokens, lengths, "point_mass", tree)
        laws = torch.stack([one.draft_probs, self.law(one.draft_probs, places)], 2).flatten(1, 2)
        return Proposal(tokens, lengths, laws, tree)

    def observe(self, emitted: Sequence[Sequence[int]]) -> None:
        """Up to the first token that the other drafter has not drafted itself, and then the rest."""
        known = []
        for tokens, chain in zip(emitted, self.chain, strict=True):
            same = next((i for i, pair in enumerate(zip(tokens, chain, strict=False)) if pair[0] != pair[1]), None)
            known.append(len(tokens) if same is None else same + 1)
        self.inner.observe([tokens[:count] for tokens, count in zip(emitted, known, strict=True)])
        self.inner.observe([tokens[count:] for tokens, count in zip(emitted, known, strict=True)])


def until_unsure(least: float, *, keeps: bool) -> Callable[[Proposal], Proposal]:
    """Ends each draft at the first token of less confidence than ``least``, which it ``keeps`` or drops."""

    def cut(proposal: Proposal) -> Proposal:
        assert not isinstance(proposal.draft_probs, str)
        sure = proposal.draft_probs.gather(-1, proposal.tokens.unsqueeze(-1)).squeeze(-1) >= least
        before = sure.long().cumprod(-1).sum(-1) + int(keeps)
        lengths = tuple(min(n, length) for n, length in zip(before.tolist(), proposal.lengths, strict=True))
        width = max(lengths)
        return Proposal(proposal.tokens[:, :width], lengths, proposal.draft_probs[:, :width])

    return cut
