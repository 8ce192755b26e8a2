"""Lookahead decoding: Jacobi iteration in the target's own pass feeds a pool of n-grams, which are verified in it too.

Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding" (arXiv:2402.02057). No draft and
no pass of its own, but every pass is wide: the root, the verified nodes and the window's (N - 1) W tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from specaudit.core.errors import InputError
from specaudit.core.protocols import CausalModel, LoadModel, Target
from specaudit.core.sequences import Sequence_, scoring_order
from specaudit.core.tree import Tree
from specaudit.core.types import Proposal, Replay, SamplingParams

DEFAULT_WINDOW, DEFAULT_SIZE, DEFAULT_CANDIDATES = 10, 5, 10


class NgramPool:
    """The latest distinct n-grams of each first token, and the end of the text that some of them are read from.

    Parameters
    ----------
    size : int
        N, the tokens of an n-gram.
    most : int
        How many are kept for each first token; one that comes again counts as new.
    """

    def __init__(self, size: int, most: int) -> None:
        self.size, self.most = size, most
        self.tail: list[int] = []
        self.after: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, ngram: Sequence[int]) -> None:
        known = self.after.setdefault(ngram[0], {})
        rest = tuple(ngram[1:])
        known.pop(rest, None)
        known[rest] = None
        if len(known) > self.most:
            del known[next(iter(known))]

    def extend(self, tokens: Sequence[int]) -> None:
        """Lets the text grow and takes up every n-gram that becomes whole."""
        for token in tokens:
            self.tail = [*self.tail[-self.size + 1 :], token]
            if len(self.tail) == self.size:
                self.add(self.tail)

    def candidates(self) -> list[tuple[int, ...]]:
        """What followed the text's last token in n-grams that start with it: N - 1 tokens each, newest first."""
        return list(reversed(self.after.get(self.tail[-1], {})))


def trie(candidates: Sequence[Sequence[int]], depth: int) -> tuple[list[int], list[int]]:
    """The first ``depth`` tokens of the candidates as a tree, in which those of one prefix share their nodes.

    Returns
    -------
    tokens, parents : list of int
        By depth, and within a depth in the order of the candidates; siblings are distinct. A parent of -1 is the root.
    """
    tokens: list[int] = []
    parents: list[int] = []
    places = [-1] * len(candidates)
    for level in range(depth):
        nodes: dict[tuple[int, int], int] = {}
        for number, candidate in enumerate(candidates):
            step = places[number], candidate[level]
            if step not in nodes:
                nodes[step] = len(tokens)
                tokens.append(step[1])
                parents.append(step[0])
            places[number] = nodes[step]
    return tokens, parents


def window_parents(levels: int, columns: int, first: int) -> list[int]:
    """Parents of a window whose tokens, level by level, are numbered from ``first``.

    Level 0 is a chain from the root; any other token stands below the same column of the level before. So the token at
    (i, j) sees the root's text, level 0 up to column j and its own column, and stands i + j + 1 places after the root.
    """
    chain = [-1, *range(first, first + columns - 1)]
    return chain + [first + place for place in range((levels - 1) * columns)]


class Lookahead:
    """Implements ``core.protocols.Drafter``; its only model is the target.

    The verification branch is a tree of point masses: the pool's n-grams that start with the root. The lookahead branch
    is the window, N - 1 levels of W tokens, which the target scores and nobody verifies. Its last level's outputs
    complete an n-gram in each column, level 0 is dropped, and the outputs become the last level; until there are N - 1
    levels (the first N - 2 rounds) one is added and none dropped. An output is the target's argmax at any temperature:
    n-grams are verified as point masses, so this choice cannot change what is emitted, and it needs no random numbers.

    A round that emits m tokens moves the root by m. The window is kept as it is relative to the root, so after a shift
    its columns stand where they were computed if m = 1, and m - 1 places later if more was accepted.
    Level 0 starts with the last W tokens of the row's prompt, repeated if there are fewer.

    Parameters
    ----------
    window : int
        W, columns of the window; at least 1.
    size : int
        N, tokens of an n-gram, so that at most N - 1 are accepted a round; at least 2.
    candidates : int
        G, the most n-grams kept for each first token and verified a round; at least 1.
    """

    hidden_layers: tuple[int, ...] = ()
    declares_lossy: str | None = None
    content: str | None = None

    def __init__(
        self, window: int = DEFAULT_WINDOW, size: int = DEFAULT_SIZE, candidates: int = DEFAULT_CANDIDATES
    ) -> None:
        self.window, self.size, self.most = window, size, candidates
        self.name = f"lookahead:{window},{size},{candidates}"

    def room(self, k: int) -> tuple[int, int]:
        verified = self.most * min(k, self.size - 1)
        return verified, verified + (self.size - 1) * self.window

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int, target: Target) -> None:
        self.target = target
        self.pools = [self._pool(prompt) for prompt in prompts]
        self.levels = [[self._guesses(prompt)] for prompt in prompts]

    def _pool(self, prompt: Sequence[int]) -> NgramPool:
        pool = NgramPool(self.size, self.most)
        pool.extend(prompt)
        return pool

    def _guesses(self, prompt: Sequence[int]) -> list[int]:
        last = prompt[-self.window :]
        return [last[column % len(last)] for column in range(self.window)]

    def propose(self, limits: Sequence[int], uniforms: Float[Tensor, "batch nodes"]) -> Proposal:
        tries = [
            trie(pool.candidates(), min(limit, self.size - 1)) for pool, limit in zip(self.pools, limits, strict=True)
        ]
        lengths = tuple(len(tokens) for tokens, _ in tries)
        width = max(lengths)
        window = window_parents(len(self.levels[0]), self.window, width)
        parents = [shape + [-1] * (width - len(shape)) + window for _, shape in tries]
        padded = [tokens + [0] * (width - len(tokens)) for tokens, _ in tries]
        device = self.target.device
        tokens = torch.tensor(padded, dtype=torch.long, device=device).reshape(len(tries), width)
        extra = torch.tensor(
            [[token for level in levels for token in level] for levels in self.levels], dtype=torch.long, device=device
        )
        return Proposal(tokens, lengths, "point_mass", Tree(parents), extra)

    def observe(self, emitted: Sequence[Sequence[int]]) -> None:
        # The last level's nodes come last, so their distributions do too, however many nodes were verified.
        outputs = self.target.probs[:, -self.window :].argmax(-1).tolist()
        for pool, levels, new, tokens in zip(self.pools, self.levels, outputs, emitted, strict=True):
            if len(levels) == self.size - 1:
                # The column next to the root rests on the fewest guesses: it goes in last and so counts as newest.
                for column in reversed(list(zip(*levels, new, strict=True))):
                    pool.add(column)
                del levels[0]
            levels.append(new)
            pool.extend(tokens)

    def keep(self, rows: list[int]) -> None:
        self.pools = [self.pools[row] for row in rows]
        self.levels = [self.levels[row] for row in rows]

    def replay(
        self, sequences: Sequence[Sequence_], params: SamplingParams, depth: int
    ) -> Iterator[tuple[int, Replay]]:
        """The newest n-gram of the text so far, as a chain: an approximation, since proposals depend on past rounds.

        A finished output does not tell which n-grams the window had found, and a ``Replay`` holds no tree, so the
        window's n-grams and all candidates but one are left out. What is computed from this (the walk's tokens per
        round) is a lower bound, but for n-grams of the text that the window's had pushed out of the pool.
        """
        for number in scoring_order(sequences):
            prompt, output = sequences[number]
            pool = self._pool(prompt)
            chains = torch.full((len(output), depth), -1, dtype=torch.long)
            for position, token in enumerate(output):
                chain = next(iter(pool.candidates()), ())[:depth]
                chains[position, : len(chain)] = torch.tensor(chain, dtype=torch.long)
                pool.extend([token])
            yield number, Replay(chains=chains)


def create(argument: str, target: CausalModel, load_model: LoadModel) -> Lookahead:
    """The drafter of ``lookahead[:W,N,G]``."""
    if not argument:
        return Lookahead()
    numbers = [int(part) for part in argument.split(",")] if re.fullmatch(r"\d+,\d+,\d+", argument) else []
    if not numbers or any(number < least for number, least in zip(numbers, (1, 2, 1), strict=True)):
        raise InputError(
            "--draft", f"lookahead:{argument}",
            "takes W,N,G: a window of W >= 1 columns, n-grams of N >= 2 tokens, G >= 1 candidates a round",
            "use, for example, lookahead:10,5,10",
        )  # fmt: skip
    return Lookahead(*numbers)
