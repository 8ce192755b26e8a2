"""Token trees: which node follows which, and what attention, verification and penalties need to know of it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specaudit.core.errors import InputError

Ints = NDArray[np.int64]


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
