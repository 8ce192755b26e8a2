"""Timed work undisturbed by Python's garbage collector and the scheduler."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

PLACEMENT = ("OMP_PROC_BIND", "OMP_PLACES", "OMP_NUM_THREADS", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def bind_threads() -> None:
    """Asks OpenMP to keep each of its threads on a core of its own; to be called before torch is loaded.

    Left to itself the scheduler may put two threads on one core for minutes, in which a pass over several tokens costs
    as much as on one core. Whoever has placed threads by the environment keeps that placement.
    """
    if not any(name in os.environ for name in PLACEMENT):
        os.environ["OMP_PROC_BIND"] = "true"


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Collects garbage, then pauses the collector for the block, as ``timeit`` does.

    Its pauses fall on whichever run happens to fill its quota, and speculative rounds take more steps in Python than
    baseline steps do, so a comparison of the two would measure the collector.
    """
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
