"""What an EAGLE head would have proposed along a finished output, from every token on, in one unrolling."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from specaudit.core.sampling import penalised_along, processed_probs
from specaudit.core.sequences import Sequence_
from specaudit.core.tree import RankedTree
from specaudit.core.types import Replay, SamplingParams
from specaudit.drafters.eagle_trees import DynamicTree
from specaudit.drafters.membership import OTHER, accepted_chains
from specaudit.drafters.siblings import accepted_mass

STARTS = 64  # tokens from which dynamic trees are grown side by side

if TYPE_CHECKING:
    from specaudit.drafters.eagle import Eagle


@torch.inference_mode()
def replay_along(
    eagle: Eagle, sequences: Sequence[Sequence_], params: SamplingParams, depth: int
) -> Iterator[tuple[int, Replay]]:
    """Runs the head ``depth`` deep from every position of each output side by side."""
    layers = (*eagle.hidden_layers, eagle.model.layer_count)
    for index, states in eagle.model.hidden_states(sequences, layers):
        prompt, output = sequences[index]
        ids = torch.tensor([*prompt, *output], device=states.device)
        if len(ids) < 3 or not len(output):  # not one pair that predicts an output token
            none = torch.zeros(len(output), depth)
            yield index, Replay(torch.zeros(len(output), eagle.model.vocabulary), None, none, none[:, 0].long())
            continue
        along = _Along(eagle, ids, states, sequences[index], depth)
        if eagle.tree is None or (isinstance(eagle.tree, RankedTree) and not params.greedy):
            yield index, along.sampled(params, depth, torch.Generator().manual_seed(params.seed + index))
        else:
            yield index, along.fixed(depth)


class _Along:
    """One output: its pairs, the features predicted from them by depth, and the target's own last states.

    Features and target states are those of the tokens from ``missing`` on; pair ``first`` predicts the first of them.
    """

    def __init__(self, eagle: Eagle, ids: Tensor, states: Tensor, sequence: Sequence_, depth: int) -> None:
        self.eagle, self.sequence = eagle, sequence
        self.missing = max(0, 2 - len(sequence[0]))  # a prompt of one token has no pair for the first output token
        self.first = max(0, len(sequence[0]) - 2)
        self.own = ids[self.first + 2 :]
        hidden = eagle.model.hidden_size
        self.tokens = eagle.embed(ids[1:-1]).unsqueeze(0)
        self.given = eagle.head.feature(states[:-2, :-hidden]).unsqueeze(0)
        self.features = [part[0, self.first :] for part in eagle.head.unroll(self.tokens, self.given, depth)]
        self.final = states[self.first + 1 : -1, -hidden:]

    def sampled(self, params: SamplingParams, depth: int, generator: torch.Generator) -> Replay:
        """A chain's laws, or those of the first child and the mass accepted of all, at each depth."""
        tree, missing, count = self.eagle.tree, self.missing, len(self.sequence[1])
        widths = tree.widths if isinstance(tree, RankedTree) else (1,) * depth
        masses = torch.zeros(count, depth, dtype=torch.float64, device=self.final.device)
        first, target_probs = None, None
        if tree is not None:
            target_probs = processed_probs(self._penalised(self.eagle.model.head(self.final), params), params)
        for level, features in enumerate(self.features[: len(widths)]):
            logits = self._penalised(self.eagle.logits(features), params)
            law = processed_probs(logits, params) if target_probs is None or first is None else None
            first = law if first is None else first
            if target_probs is None:
                assert law is not None
                own = law.gather(1, self.own[:, None]).squeeze(1)
            else:
                own = accepted_mass(target_probs, logits, params, widths[level], self.own, generator)
            masses[missing:, level] = own.to(masses)
        assert first is not None
        drafted = torch.full((count,), min(depth, len(widths)), dtype=torch.long)
        drafted[:missing] = 0
        blank = first.new_zeros(missing, first.shape[1])
        return Replay(probs=torch.cat([blank, first]), token_probs=masses, drafted=drafted)

    def _penalised(self, logits: Float[Tensor, "tokens vocab"], params: SamplingParams) -> Tensor:
        return penalised_along(logits, *self.sequence, params, self.missing)

    def fixed(self, depth: int) -> Replay:
        """A tree of each node's most probable continuations, along the output."""
        tree = self.eagle.tree
        if isinstance(tree, RankedTree):
            return self._members(tree.cut(depth), depth)
        parts = [self._grown(start, depth) for start in range(0, len(self.own), STARTS)]
        chains, firsts = (torch.cat(part) for part in zip(*parts, strict=True))
        return Replay(chains=self._padded(chains), first=self._padded(firsts)[:, 0])

    def _grown(self, start: int, depth: int) -> tuple[Int[Tensor, "starts depth"], Int[Tensor, "starts 1"]]:
        """Grows the tree of a round from each of some tokens on, and follows the output down it."""
        eagle, own = self.eagle, self.own[start:].tolist()
        assert isinstance(eagle.tree, DynamicTree)
        count = min(STARTS, len(own))
        known = [self.first + start + row for row in range(1, count + 1)]  # pairs that a round may look at
        pairs = max(known)
        drafter = copy.copy(eagle)
        capacity = max(count, pairs + eagle.tree.top_k * eagle.tree.depth)
        drafter.rows = eagle.model.open_cache(len(eagle.head.layers), 1, capacity)
        drafter.rows.prepare(pairs)
        eagle.head(self.tokens[:, :pairs], self.given[:, :pairs], drafter.rows)
        drafter.rows.commit([pairs])
        drafter.rows.keep([0] * count)
        drafter.rows.rewind(known)
        proposal = drafter.grow(self.features[0][start : start + count], (depth,) * count, eagle.tree)
        assert proposal.tree is not None
        chains = torch.full((count, depth), -1, dtype=torch.long)
        drafted = proposal.tokens.tolist()
        for row, children in enumerate(proposal.tree.children):
            chains[row, : proposal.depths[row]] = OTHER
            place = 0
            for level, token in enumerate(own[row : row + depth]):
                below = [node for node in children[place] if node < proposal.lengths[row]]
                place = next((node + 1 for node in below if drafted[row][node] == token), 0)
                if not place:
                    break
                chains[row, level] = token
        return chains, proposal.tokens[:, :1].cpu()

    def _members(self, tree: RankedTree, depth: int) -> Replay:
        most, levels = max(tree.widths), len(tree.widths)
        ranked = torch.full((len(self.own), levels, most), -1, dtype=torch.long)
        for level, states in enumerate(self.features[:levels]):
            # The law at depth d of a round from token i stands at token i + d.
            best = self.eagle.logits(states[level:]).topk(most, dim=-1).indices.cpu()
            ranked[: len(best), level] = best
        chains = accepted_chains(tree, ranked, self.own.cpu(), depth)
        return Replay(chains=self._padded(chains), first=self._padded(ranked[:, 0, :1])[:, 0])

    def _padded(self, chains: Int[Tensor, "starts depth"]) -> Int[Tensor, "tokens depth"]:
        """With -1 for the tokens that no pair predicts."""
        return torch.cat([chains.new_full((self.missing, chains.shape[1]), -1), chains])
