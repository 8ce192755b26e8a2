"""A static tree along a finished output: a token is accepted if it is among the children of the node reached."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from specaudit.core.tree import RankedTree

OTHER = -2  # a proposal that was not the output's token; -1 stands for none


def accepted_chains(
    tree: RankedTree, ranked: Int[Tensor, "starts levels ranks"], output: Int[Tensor, " starts"], depth: int
) -> Int[Tensor, "starts depth"]:
    """The path that a round starting at each token would take, as a chain of point masses.

    Parameters
    ----------
    ranked : Int[Tensor, "starts levels ranks"]
        For a round that starts at token i, the proposals of level d by rank: where levels depend on the path, given
        that it follows the output.
    output : Int[Tensor, " starts"]
        The tokens from the first start on.

    Returns
    -------
    Int[Tensor, "starts depth"]
        The output's own tokens as far as they are among the children, ``OTHER`` below, -1 deeper than the tree.
    """
    starts, levels, ranks = ranked.shape
    below = torch.full((tree.nodes + 1, ranks), -1, dtype=torch.long)
    for node, (parent, rank) in enumerate(zip(tree.parents[0].tolist(), tree.ranks.tolist(), strict=True)):
        below[parent + 1, rank] = node
    chains = torch.full((starts, depth), -1, dtype=torch.long)
    place = torch.zeros(starts, dtype=torch.long)
    alive = torch.ones(starts, dtype=torch.bool)
    for level in range(min(levels, depth, int(tree.levels.max()) + 1)):
        wanted = torch.full((starts,), -1, dtype=torch.long)
        wanted[: max(0, starts - level)] = output[level:]
        same = ranked[:, level] == wanted.unsqueeze(1)
        node = torch.where(same, below[place], -1).amax(-1)
        alive = alive & (node >= 0)
        chains[:, level] = torch.where(alive, wanted, OTHER)
        place = torch.where(alive, node + 1, place)
    return chains
