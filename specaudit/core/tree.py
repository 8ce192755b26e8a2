"""Token trees: which node follows which, and what attention, verification and penalties need to know of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specaudit.core.errors import InputError

Ints = NDArray[np.int64]
MOST_NODES = 1000


class Tree:
    """The shapes of a batch of token trees below each row's last committed token, the root.

    Nodes are numbered from zero and the root is -1; in the arrays below the root has index 0 and node i index i + 1,
    as in the pass that scores them.

    Parameters
    ----------
    parents : int[batch or 1, nodes]
        Each node's parent, -1 for the root; a parent comes before its children. One row serves a whole batch.

    Raises
    ------
    InputError
        If a parent does not come before its child.
    """

    def __init__(self, parents: Any) -> None:
        self.parents: Ints = np.atleast_2d(np.asarray(parents, dtype=np.int64))
        wrong = (self.parents >= np.arange(self.nodes)) | (self.parents < -1)
        if wrong.any():
            raise InputError("tree", self.parents.tolist(), "a node's parent must come before it", "order it by depth")

    @property
    def nodes(self) -> int:
        return self.parents.shape[1]

    @cached_property
    def depths(self) -> Ints:
        """``[batch or 1, nodes + 1]``: zero for the root."""
        depths = np.zeros((len(self.parents), self.nodes + 1), dtype=np.int64)
        rows = np.arange(len(self.parents))
        for node in range(self.nodes):
            depths[:, node + 1] = depths[rows, self.parents[:, node] + 1] + 1
        return depths

    @cached_property
    def ancestors(self) -> NDArray[np.bool_]:
        """``[batch or 1, nodes + 1, nodes + 1]``: whether the second is the first itself or stands above it."""
        size = self.nodes + 1
        seen = np.zeros((len(self.parents), size, size), dtype=bool)
        rows = np.arange(len(self.parents))
        seen[:, 0, 0] = True
        for node in range(self.nodes):
            seen[:, node + 1] = seen[rows, self.parents[:, node] + 1]
            seen[:, node + 1, node + 1] = True
        return seen

    @cached_property
    def children(self) -> list[list[list[int]]]:
        """For each row, and each index, the nodes below it in order."""
        below: list[list[list[int]]] = [[[] for _ in range(self.nodes + 1)] for _ in self.parents]
        for row, parents in enumerate(self.parents.tolist()):
            for node, parent in enumerate(parents):
                below[row][parent + 1].append(node)
        return below

    def row(self, row: int) -> int:
        """Where a batch row's shape stands in the arrays."""
        return row if len(self.parents) > 1 else 0


class RankedTree(Tree):
    """A static tree whose nodes are ranks: the token of a node is its parent's rank-th most probable continuation.

    Parameters
    ----------
    paths : sequence of tuple of int
        The ranks along the path to each node, in order of depth; every prefix of a path is a path, and siblings come
        in order of rank.
    """

    def __init__(self, paths: Sequence[tuple[int, ...]]) -> None:
        place = {(): -1} | {path: node for node, path in enumerate(paths)}
        try:
            super().__init__([[place[path[:-1]] for path in paths]])
        except KeyError as error:
            problem, remedy = f"the node {error.args[0]} is missing above another", "name every prefix of a path"
            raise InputError("--tree", list(paths), problem, remedy) from None
        self.paths = list(paths)
        self.ranks = np.array([path[-1] for path in paths], dtype=np.int64)
        self.levels = self.depths[0, 1:] - 1

        self._cuts: dict[int, RankedTree] = {}

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """The most children of a node at each level; of all nodes there, if the tree is full."""
        return tuple(int(self.ranks[self.levels == level].max()) + 1 for level in range(int(self.levels.max()) + 1))

    def within(self, depth: int) -> int:
        """How many nodes, which are the first ones, stand no deeper than ``depth``."""
        return int((self.levels < depth).sum())

    def cut(self, depth: int) -> RankedTree:
        """The tree down to ``depth``; made once, since its masks are made once."""
        if self.within(depth) == self.nodes:
            return self
        if depth not in self._cuts:
            self._cuts[depth] = RankedTree(self.paths[: self.within(depth)])
        return self._cuts[depth]


def branching(shape: str) -> RankedTree:
    """The full tree of ``"4,2,1"``: four children of the root, two of each of those, one of each of those.

    Raises
    ------
    InputError
        If the shape is not a list of positive integers, or the tree has more than a thousand nodes.
    """
    widths = [int(part) if part.strip().isdecimal() else 0 for part in shape.split(",")]
    if min(widths) < 1:
        raise InputError("--tree", shape, "is not a list of widths, all at least 1", "use, for example, 4,2,1, or auto")
    paths: list[tuple[int, ...]] = []
    level: list[tuple[int, ...]] = [()]
    for width in widths:
        level = [(*path, rank) for path in level for rank in range(width)]
        paths += level
        if len(paths) > MOST_NODES:
            raise InputError("--tree", shape, f"has more than {MOST_NODES} nodes", "use a narrower tree")
    return RankedTree(paths)
