"""A decoder whose parts can be exchanged for defective ones, and what it claims of its outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from specaudit.core.protocols import CausalModel, Drafter, Target, Verifier
from specaudit.core.sampling import row_seed
from specaudit.core.types import Limits, SamplingParams, Transcript
from specaudit.decode import decode

FIRST_BATCH = 8


@dataclass(frozen=True)
class Setup:
    """Everything that a decoder is made of. A fault is a change of some of it.

    Attributes
    ----------
    model : CausalModel
        The target's.
    params : SamplingParams
        What the outputs claim to be made under; a faulty part may do otherwise.
    seeds : callable
        The seeds that rows are really given, of those that they claim.
    finish : callable
        What the decoder's user gets, of what the loop gave.
    believed : Drafter, optional
        What the audit is told to be the drafter; the one at the start, as long as a fault does not say otherwise.
    """

    model: CausalModel
    target: Target
    drafter: Drafter
    verifier: Verifier
    params: SamplingParams
    limits: Limits
    k: int
    seeds: Callable[[Sequence[int]], Sequence[int]] = lambda own: own
    finish: Callable[[Transcript], Transcript] = lambda transcript: transcript
    believed: Drafter | None = None

    def outputs(self, prompts: Sequence[Sequence[int]], batch: int, seed: int) -> Iterator[list[Transcript]]:
        """Outputs of the prompts, round and round without an end: a few at first, then ``batch`` at a time."""
        first, size = 0, min(FIRST_BATCH, batch)
        while True:
            rows = [prompts[(first + row) % len(prompts)] for row in range(size)]
            own = [row_seed(seed, first + row) for row in range(size)]
            made = decode(
                self.target, self.drafter, self.verifier, rows, self.params, self.limits, k=self.k,
                seeds=self.seeds(own),
            )  # fmt: skip
            claimed = [self._claimed(one, seed) for one, seed in zip(made.transcripts, own, strict=True)]
            yield from (claimed[start : start + FIRST_BATCH] for start in range(0, size, FIRST_BATCH))
            first, size = first + size, min(2 * size, batch)

    def _claimed(self, transcript: Transcript, seed: int) -> Transcript:
        sampling = dataclasses.replace(transcript.sampling, seed=seed)
        return self.finish(dataclasses.replace(transcript, sampling=sampling))
