"""EAGLE: a small decoder of the target's hidden states drafts a chain or a tree (arXiv:2401.15077, 2406.16858).

A chain is sampled from the head's own processed distribution and verified by the chain rule. The children in a tree of
a static shape are drawn without replacement and verified by recursive rejection. A tree that is grown where the head is
most sure (EAGLE-2) holds each node's most probable continuations, verified as fixed sets. Costs one pass of the head
for each level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from specaudit.core.protocols import CausalModel, LoadModel, Target
from specaudit.core.sampling import TokenCounts, penalise
from specaudit.core.sequences import Sequence_
from specaudit.core.tree import RankedTree, Tree
from specaudit.core.types import Proposal, Replay, SamplingParams
from specaudit.drafters.chain import draw_chain, nothing
from specaudit.drafters.checkpoints import content_of, head_folder
from specaudit.drafters.eagle_checkpoint import load_eagle
from specaudit.drafters.eagle_head import EagleHead
from specaudit.drafters.eagle_replay import replay_along
from specaudit.drafters.eagle_trees import DynamicTree, kept, tree_of
from specaudit.drafters.siblings import draw_siblings
from specaudit.drafters.speculators_checkpoint import surfaced_declaration


class Eagle:
    """Implements ``core.protocols.Drafter`` with an EAGLE head.

    Parameters
    ----------
    model : CausalModel
        The target: its hidden states, embedding and output head.
    head : EagleHead
    hidden_layers : tuple of int
        The target's hidden states that the head reads.
    tree : RankedTree or DynamicTree, optional
        None is a sampled chain.
    declares_lossy : str, optional
        What the head's configuration asks of whoever serves it that would change the output; not done here.
    content : str, optional
        Hash of the head.
    """

    def __init__(
        self, model: CausalModel, head: EagleHead, hidden_layers: tuple[int, ...], name: str,
        tree: RankedTree | DynamicTree | None = None, declares_lossy: str | None = None, content: str | None = None,
    ) -> None:  # fmt: skip
        self.model, self.head, self.hidden_layers, self.name, self.tree = model, head, hidden_layers, name, tree
        self.declares_lossy, self.content = declares_lossy, content

    def room(self, k: int) -> tuple[int, int]:
        if self.tree is None:
            nodes = k
        elif isinstance(self.tree, RankedTree):
            nodes = self.tree.within(k)
        else:
            nodes = self.tree.total
        return nodes, nodes

    def start(self, prompts: Sequence[Sequence[int]], params: SamplingParams, capacity: int, target: Target) -> None:
        self.target, self.params = target, params
        grown = self.tree.top_k * self.tree.depth if isinstance(self.tree, DynamicTree) else 0
        self.rows = self.model.open_cache(len(self.head.layers), len(prompts), capacity + grown)
        self.tokens = [list(prompt[1:]) for prompt in prompts]
        self.features = list(target.hidden)
        # A prompt of one token has no pair yet: its round proposes nothing.
        self.counts = TokenCounts.of(prompts, self.model.vocabulary, self.model.device) if params.penalised else None

    @torch.inference_mode()
    def propose(self, limits: Sequence[int], uniforms: Float[Tensor, "batch nodes"]) -> Proposal:
        ready = [len(tokens) > 0 for tokens in self.tokens]
        depths = [limit if known else 0 for limit, known in zip(limits, ready, strict=True)]
        if max(depths) == 0:
            return nothing(len(limits), self.model.device)
        feature = self._read_pairs()
        if self.tree is None:
            return self._chain(feature, depths, uniforms)
        if isinstance(self.tree, RankedTree):
            return self._static(feature, depths, uniforms, self.tree)
        return self.grow(feature, depths, self.tree)

    def _read_pairs(self) -> Float[Tensor, "batch hidden"]:
        """Reads each row's pairs that are new, and gives the feature predicted from its last one."""
        counts = [len(tokens) for tokens in self.tokens]
        width = max(counts)
        device = self.model.device
        ids = torch.zeros(len(counts), width, dtype=torch.long, device=device)
        states = next(f for f in self.features if len(f)).shape[-1]
        given = torch.zeros(len(counts), width, states, dtype=self.model.dtype, device=device)
        for row, (tokens, features) in enumerate(zip(self.tokens, self.features, strict=True)):
            if tokens:
                ids[row, : len(tokens)] = torch.tensor(tokens, device=device)
                given[row, : len(tokens)] = features
        self.rows.prepare(width)
        predicted = self.head(self.embed(ids), self.head.feature(given), self.rows)
        self.rows.commit(counts)
        self.tokens = [[] for _ in counts]
        last = torch.tensor(counts, device=device).clamp(min=1) - 1
        return predicted[torch.arange(len(counts), device=device), last]

    def embed(self, ids: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape hidden"]:
        return self.model.embed(ids) if self.head.embed_tokens is None else self.head.embed_tokens(ids)

    def logits(self, feature: Float[Tensor, "*shape hidden"]) -> Float[Tensor, "*shape vocab"]:
        """Over the target's vocabulary: what the head cannot propose is impossible."""
        if self.head.lm_head is None:
            return self.model.head(self.head.readout(feature))
        own = self.head.logits(feature)
        if self.head.d2t is None or own.shape[-1] == self.model.vocabulary:
            return own
        whole = own.new_full((*own.shape[:-1], self.model.vocabulary), -torch.inf)
        whole[..., self.head.ids(torch.arange(own.shape[-1], device=own.device))] = own
        return whole

    def _chain(
        self, feature: Float[Tensor, "batch hidden"], depths: list[int], uniforms: Float[Tensor, "batch nodes"]
    ) -> Proposal:
        kept, state = list(self.rows.lengths), feature

        def logits_after(last: Tensor | None) -> Tensor:
            nonlocal state
            if last is not None:
                self.rows.prepare(1)
                state = self.head(self.embed(last.unsqueeze(1)), state.unsqueeze(1), self.rows)[:, 0]
                self.rows.commit([1] * len(depths))
            return self.logits(state)

        tokens, probs = draw_chain(logits_after, max(depths), self.params, self.counts, uniforms)
        self.rows.rewind(kept)
        return Proposal(tokens, tuple(depths), probs)

    def _static(
        self, root: Float[Tensor, "batch hidden"], depths: list[int], uniforms: Float[Tensor, "batch nodes"],
        tree: RankedTree,
    ) -> Proposal:  # fmt: skip
        """Children drawn without replacement; at temperature zero the most probable ones, as point masses."""
        tree = tree.cut(max(depths))
        tokens = torch.zeros(len(depths), tree.nodes, dtype=torch.long, device=root.device)
        laws: list[Tensor] = []
        features = root.unsqueeze(1)  # of the root, then of every node above the level
        last = 0  # where the parents of the level begin among them
        for level, width in enumerate(tree.widths):
            nodes = np.flatnonzero(tree.levels == level)
            if level > 0:
                above = tree.cut(level)
                read = self._read_tree(root, tokens[:, : above.nodes], features, above)
                features, last = torch.cat([root.unsqueeze(1), read], 1), tree.within(level - 1) + 1
            logits = self._below(features[:, last:], tokens, tree, level)
            if self.params.greedy:
                tokens[:, nodes] = logits.topk(width, dim=-1).indices.flatten(1)
                continue
            drawn, law = draw_siblings(logits, self.params, uniforms[:, nodes].unflatten(1, (-1, width)))
            tokens[:, nodes] = drawn.flatten(1)
            laws.append(law.flatten(1, 2))
        lengths = tuple(tree.within(depth) for depth in depths)
        return Proposal(tokens, lengths, torch.cat(laws, 1) if laws else "point_mass", tree=tree)

    def _below(
        self, features: Float[Tensor, "batch parents hidden"], tokens: Int[Tensor, "batch nodes"], tree: RankedTree,
        level: int,
    ) -> Float[Tensor, "batch parents vocab"]:  # fmt: skip
        """Logits of the children at ``level``, penalised for the path to their parents."""
        logits = self.logits(features)
        if self.counts is None:
            return logits
        known = tree.within(level)
        along = self.counts.along(tokens[:, :known], tree.cut(level) if level else None)
        prompt = self.counts.prompt.unsqueeze(1).expand_as(logits)
        return penalise(logits.float(), prompt, along[:, -logits.shape[1] :], self.params)

    def _read_tree(
        self,
        root: Tensor,
        tokens: Int[Tensor, "batch nodes"],
        features: Float[Tensor, "batch known hidden"],
        tree: Tree,
    ) -> Float[Tensor, "batch nodes hidden"]:
        """Predicted features of all nodes, given those of the root and of every parent; the cache keeps none."""
        parents = torch.from_numpy(tree.parents + 1).to(root.device).expand(len(root), -1)
        known = features.gather(1, parents.unsqueeze(-1).expand(-1, -1, features.shape[-1]))
        self.rows.prepare(tokens.shape[1], tree)
        return self.head(self.embed(tokens), known, self.rows)

    def grow(self, root: Float[Tensor, "batch hidden"], depths: Sequence[int], shape: DynamicTree) -> Proposal:
        """EAGLE-2, section 4.1: expand the nodes of largest joint probability, then keep the best of all."""
        batch, device = len(depths), root.device
        best = self.logits(root).float().log_softmax(-1).topk(shape.top_k, dim=-1)
        tokens, values = best.indices, best.values  # of all candidates so far
        parents = torch.full_like(tokens, -1)  # candidate numbers
        frontier = torch.arange(shape.top_k, device=device).expand(batch, -1)  # candidate numbers
        read, features = frontier, root.unsqueeze(1)
        origins = torch.full_like(tokens, -1)  # of each read node, the number of its parent among those read
        deep = torch.ones_like(tokens)
        for level in range(1, shape.depth):
            tree = Tree(origins.cpu().numpy())
            predicted = self._read_tree(root, tokens.gather(1, read), features, tree)
            features = torch.cat([root.unsqueeze(1), predicted], 1)
            best = self.logits(predicted[:, -shape.top_k :]).float().log_softmax(-1).topk(shape.top_k, dim=-1)
            joint = (best.values + values.gather(1, frontier).unsqueeze(-1)).flatten(1)
            first = tokens.shape[1]
            tokens, values = torch.cat([tokens, best.indices.flatten(1)], 1), torch.cat([values, joint], 1)
            parents = torch.cat([parents, frontier.repeat_interleave(shape.top_k, 1)], 1)
            deep = torch.cat([deep, torch.full_like(joint, level + 1, dtype=torch.long)], 1)
            chosen = joint.topk(shape.top_k, dim=-1).indices
            origins = torch.cat([origins, (level - 1) * shape.top_k + chosen // shape.top_k], 1)
            frontier = first + chosen
            read = torch.cat([read, frontier], 1)
        return kept(tokens, values, parents, deep, depths, shape.total)

    def observe(self, emitted: Sequence[Sequence[int]]) -> None:
        self.tokens = [old + list(new) for old, new in zip(self.tokens, emitted, strict=True)]
        # Of a prompt of one token the first feature is that of the root, to which the first emitted token belongs.
        self.features = [
            torch.cat([old, new]) if len(old) and len(tokens) > len(new) else new
            for old, new, tokens in zip(self.features, self.target.hidden, self.tokens, strict=True)
        ]
        if self.counts is not None:
            self.counts.extend(emitted)

    def keep(self, rows: list[int]) -> None:
        self.rows.keep(rows)
        self.tokens = [self.tokens[row] for row in rows]
        self.features = [self.features[row] for row in rows]
        if self.counts is not None:
            self.counts.keep(rows)

    def replay(
        self, sequences: Sequence[Sequence_], params: SamplingParams, depth: int
    ) -> Iterator[tuple[int, Replay]]:
        """Runs the head ``depth`` deep from every position of each output side by side."""
        return replay_along(self, sequences, params, depth)


def create(argument: str, target: CausalModel, load_model: LoadModel, tree: str | None = None) -> Eagle:
    """The drafter of ``eagle:DIR``; ``tree`` is a shape, "auto" for EAGLE-2's dynamic tree, or "auto:K,TOTAL,DEPTH"."""
    folder = head_folder(argument, "eagle")
    declared = surfaced_declaration(folder)
    head, hidden_layers = load_eagle(folder, target)
    name = f"eagle:{argument}" if tree is None else f"eagle:{argument} --tree {tree}"
    head = head.to(target.device, target.dtype)
    return Eagle(target, head, hidden_layers, name, tree_of(tree), declared, content_of(folder))
