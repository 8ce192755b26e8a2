"""The shapes of EAGLE's trees: chosen beforehand, or grown in each round (EAGLE-2, arXiv:2406.16858)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from specaudit.core.errors import InputError
from specaudit.core.tree import RankedTree, Tree, branching
from specaudit.core.types import Proposal


@dataclass(frozen=True)
class DynamicTree:
    """EAGLE-2's tree: at each level the ``top_k`` best nodes grow ``top_k`` children; the ``total`` best are kept.

    It is grown to ``depth`` whatever k is, which cuts it: so the tree of a smaller k is a part of that of a larger.
    """

    top_k: int = 4
    total: int = 16
    depth: int = 4


def kept(
    tokens: Int[Tensor, "batch candidates"], values: Float[Tensor, "batch candidates"],
    parents: Int[Tensor, "batch candidates"], deep: Int[Tensor, "batch candidates"], depths: Sequence[int], total: int,
) -> Proposal:  # fmt: skip
    """The ``total`` best candidates of each row, in order of depth; those deeper than ``depths`` are not proposed."""
    # Stable: of equal values the earlier candidate wins, so that a parent is never left out for its child.
    order = values.sort(dim=-1, descending=True, stable=True).indices[:, :total].sort(dim=-1).values
    place = torch.full_like(values, -1, dtype=torch.long)
    place.scatter_(1, order, torch.arange(order.shape[1], device=order.device).expand(len(order), -1))
    limit = torch.tensor(depths, device=tokens.device).unsqueeze(1)
    lengths = (deep.gather(1, order) <= limit).sum(-1).tolist()
    order = order[:, : max(lengths)]
    above = parents.gather(1, order)
    tree = Tree(torch.where(above < 0, above, place.gather(1, above.clamp(min=0))).cpu().numpy())
    return Proposal(tokens.gather(1, order), tuple(lengths), "point_mass", tree=tree)


def tree_of(tree: str | None) -> RankedTree | DynamicTree | None:
    """The tree of ``--tree``: a shape, "auto" or "auto:K,TOTAL,DEPTH"; None is a chain."""
    if tree is None or not tree.startswith("auto"):
        return None if tree is None else branching(tree)
    numbers = tree.removeprefix("auto").removeprefix(":")
    parts = [int(part) if part.isdecimal() else 0 for part in numbers.split(",")] if numbers else []
    if len(parts) > 3 or min(parts, default=1) < 1 or max(parts, default=1) > 256:
        problem = "K, TOTAL and DEPTH must be between 1 and 256"
        raise InputError("--tree", tree, problem, "use, for example, auto:4,16,4")
    return DynamicTree(*parts)
