"""What an EAGLE head would have proposed along a finished output, from every token on, in one unrolling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from specaudit.core.errors import NoReplayError
from specaudit.core.sampling import TokenCounts, penalise, processed_probs
from specaudit.core.sequences import Sequence_
from specaudit.core.tree import RankedTree
from specaudit.core.types import Replay, SamplingParams
from specaudit.drafters.membership import accepted_chains
from specaudit.drafters.siblings import accepted_mass

if TYPE_CHECKING:
    from specaudit.drafters.eagle import Eagle


@torch.inference_mode()
def replay_along(
    eagle: Eagle, sequences: Sequence[Sequence_], params: SamplingParams, depth: int
) -> Iterator[tuple[int, Replay]]:
    """Runs the head ``depth`` deep from every position of each output side by side."""
    last = eagle.model.layer_count
    for index, states in eagle.model.hidden_states(sequences, (*eagle.hidden_layers, last)):
        prompt, output = sequences[index]
        ids = torch.tensor([*prompt, *output], device=states.device)
        if len(ids) < 3 or not len(output):  # not one pair that predicts an output token
            none = torch.zeros(len(output), depth)
            yield index, Replay(torch.zeros(len(output), eagle.model.vocabulary), None, none, none[:, 0].long())
            continue
        first = max(0, len(prompt) - 2)  # the pair that predicts output token 0
        read, final = states.split([states.shape[1] - eagle.model.hidden_size, eagle.model.hidden_size], -1)
        features = eagle.head.feature(read[:-2]).unsqueeze(0)
        unrolled = eagle.head.unroll(eagle.embed(ids[1:-1]).unsqueeze(0), features, depth)
        along = _Along(eagle, [states_[0, first:] for states_ in unrolled], final[first + 1 : -1], sequences[index])
        if eagle.tree is None or (isinstance(eagle.tree, RankedTree) and not params.greedy):
            yield index, along.sampled(params, depth, torch.Generator().manual_seed(params.seed + index))
        else:
            yield index, along.fixed(depth)


class _Along:
    """One output's predicted features by depth, of the tokens from ``missing`` on, and the target's own states."""

    def __init__(self, eagle: Eagle, features: list[Tensor], final: Tensor, sequence: Sequence_) -> None:
        self.eagle, self.features, self.final, self.sequence = eagle, features, final, sequence
        self.missing = max(0, 2 - len(sequence[0]))  # a prompt of one token has no pair for the first output token
        self.own = torch.tensor(list(sequence[1])[self.missing :], dtype=torch.long, device=final.device)

    def sampled(self, params: SamplingParams, depth: int, generator: torch.Generator) -> Replay:
        """A chain's laws, or those of the first child and the mass accepted of all, at each depth."""
        tree, missing, count = self.eagle.tree, self.missing, len(self.sequence[1])
        widths = tree.widths if isinstance(tree, RankedTree) else (1,) * depth
        masses = torch.zeros(count, depth, dtype=torch.float64, device=self.final.device)
        target_probs = processed_probs(self._penalised(self.eagle.model.head(self.final), params), params)
        laws = []
        for level, features in enumerate(self.features[: len(widths)]):
            logits = self._penalised(self.eagle.logits(features), params)
            laws.append(processed_probs(logits, params))
            if tree is None:
                own = laws[-1].gather(1, self.own[:, None]).squeeze(1)
            else:
                own = accepted_mass(target_probs, logits, params, widths[level], self.own, generator)
            masses[missing:, level] = own.to(masses)
            del laws[1:]  # of the deeper ones the masses are enough
        first = torch.cat([laws[0].new_zeros(missing, laws[0].shape[1]), laws[0]])
        drafted = torch.full((count,), min(depth, len(widths)), dtype=torch.long)
        drafted[:missing] = 0
        return Replay(probs=first, token_probs=masses, drafted=drafted)

    def _penalised(self, logits: Float[Tensor, "tokens vocab"], params: SamplingParams) -> Tensor:
        if not params.penalised:
            return logits
        counts = TokenCounts.of([self.sequence[0]], logits.shape[1], logits.device)
        output = torch.tensor([list(self.sequence[1][:-1])], dtype=torch.long, device=logits.device)
        along = counts.along(output)[0, self.missing :]
        return penalise(logits.float(), counts.prompt.expand_as(logits), along, params)

    def fixed(self, depth: int) -> Replay:
        """A tree of each node's most probable continuations, along the output."""
        tree = self.eagle.tree
        if isinstance(tree, RankedTree):
            return self._members(tree.cut(depth), depth)
        if depth > 1:
            raise NoReplayError(
                "--tree", "auto", "a tree that is grown anew each round cannot be replayed along an output",
                "profile a fixed shape, for example --tree 4,2,1",
            )  # fmt: skip
        # an audit: which child comes first is known
        return Replay(chains=self._padded(self.eagle.logits(self.features[0]).argmax(-1, keepdim=True).cpu()))

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
