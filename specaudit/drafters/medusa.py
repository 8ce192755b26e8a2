"""Medusa: heads on the target's last hidden state propose a chain or a static tree (Cai et al. arXiv:2401.10774).

Costs one small pass a round, whatever the depth. Its proposals are fixed sets: every node is a point mass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from specaudit.core.errors import InputError
from specaudit.core.protocols import CausalModel, LoadModel, Target
from specaudit.core.sequences import Sequence_
from specaudit.core.tree import RankedTree, branching
from specaudit.core.types import Proposal, Replay, SamplingParams
from specaudit.drafters.chain import nothing
from specaudit.drafters.checkpoints import content_of, head_folder
from specaudit.drafters.medusa_heads import MedusaHeads, load_medusa, searched_tree
from specaudit.drafters.membership import accepted_chains

AUTO_NODES = 16


class Medusa:
    """Implements ``core.protocols.Drafter`` with Medusa heads.

    Parameters
    ----------
    model : CausalModel
        The target: its last hidden states feed the heads.
    heads : MedusaHeads
    tree : RankedTree, optional
        Nodes by rank; level d is filled from head d. None is the chain of each head's most probable token.
    """

    declares_lossy: str | None = None
    content: str | None = None

    def __init__(self, model: CausalModel, heads: MedusaHeads, name: str, tree: RankedTree | None = None) -> None:
        self.model, self.heads, self.name, self.tree = model, heads, name, tree
        self.hidden_layers = (model.layer_count,)
        if tree is not None and int(tree.levels.max()) >= heads.heads:
            depth = int(tree.levels.max()) + 1
            raise InputError("--tree", f"of depth {depth}", f"there are {heads.heads} heads", "use a shallower tree")

    def room(self, k: int) -> tuple[int, int]:
        depth = min(k, self.heads.heads)
        nodes = depth if self.tree is None else self.tree.within(depth)
        return nodes, nodes

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int, target: Target) -> None:
        self.target = target
        self.states: list[Tensor | None] = [None] * len(prompts)
        self._look()

    def _look(self) -> None:
        """Keeps the hidden state before each row's root; a prompt of one token has none yet."""
        self.states = [
            state[-1] if len(state) else old for state, old in zip(self.target.hidden, self.states, strict=True)
        ]

    @torch.inference_mode()
    def propose(self, limits: Sequence[int], uniforms: Float[Tensor, "batch nodes"]) -> Proposal:
        known = [state is not None for state in self.states]
        depths = [min(limit, self.heads.heads) if ready else 0 for limit, ready in zip(limits, known, strict=True)]
        deepest = max(depths)
        if deepest == 0:
            return nothing(len(limits), self.model.device)
        blank = next(state for state in self.states if state is not None)
        hidden = torch.stack([blank if state is None else state for state in self.states])
        logits = self.heads(hidden)
        if self.tree is None:
            tokens = self.heads.ids(logits[:, :deepest].argmax(-1))
            return Proposal(tokens, tuple(depths), "point_mass")
        tree = self.tree.cut(deepest)
        ranked = self.heads.ids(logits.topk(int(tree.ranks.max()) + 1, dim=-1).indices)
        tokens = ranked[:, tree.levels, tree.ranks]
        return Proposal(tokens, tuple(tree.within(depth) for depth in depths), "point_mass", tree=tree)

    def observe(self, emitted: Sequence[Sequence[int]]) -> None:
        self._look()

    def keep(self, rows: list[int]) -> None:
        self.states = [self.states[row] for row in rows]

    @torch.inference_mode()
    def replay(
        self, sequences: Sequence[Sequence_], params: SamplingParams, depth: int
    ) -> Iterator[tuple[int, Replay]]:
        """What the heads would propose from every prefix, in one pass over the target's hidden states."""
        for index, hidden in self.model.hidden_states(sequences, self.hidden_layers):
            prompt, output = sequences[index]
            chains = torch.full((len(output), depth), -1, dtype=torch.long)
            first_child = torch.full((len(output),), -1, dtype=torch.long)
            first = len(prompt) - 2  # the hidden state before the root of a round that starts at output token 0
            used = hidden[max(0, first) : len(prompt) + len(output) - 2]
            if len(used):
                logits, start = self.heads(used)[:, :depth], len(output) - len(used)
                if self.tree is None:
                    best = self.heads.ids(logits.argmax(-1)).cpu()
                    chains[start:, : best.shape[1]] = best
                else:
                    tree = self.tree.cut(min(depth, self.heads.heads))
                    ranked = self.heads.ids(logits.topk(int(tree.ranks.max()) + 1, dim=-1).indices).cpu()
                    chains[start:] = accepted_chains(tree, ranked, torch.tensor(list(output))[start:], depth)
                    first_child[start:] = ranked[:, 0, 0]
            yield index, Replay(chains=chains, first=first_child if self.tree is not None else None)


def create(argument: str, target: CausalModel, load_model: LoadModel, tree: str | None = None) -> Medusa:
    """The drafter of ``medusa:DIR``; ``tree`` is a shape, or "auto" for one searched from measured accuracies."""
    folder = head_folder(argument, "medusa")
    heads, config = load_medusa(folder, target.hidden_size, target.vocabulary)
    heads = heads.to(target.device, target.dtype)
    name = f"medusa:{argument}" if tree is None else f"medusa:{argument} --tree {tree}"
    drafter = Medusa(target, heads, name, _tree(tree, config, heads))
    drafter.content = content_of(folder)
    return drafter


def _tree(tree: str | None, config: dict, heads: MedusaHeads) -> RankedTree | None:
    if tree is None:
        return None
    if tree != "auto":
        return branching(tree)
    accuracies = config.get("head_accuracies")
    if not accuracies:
        raise InputError(
            "--tree", tree, "these heads come without measured accuracies", "give a shape, for example 4,2,1",
        )  # fmt: skip
    return RankedTree(searched_tree(accuracies[: heads.heads], AUTO_NODES))
