"""Timed work undisturbed by Python's garbage collector."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


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
