"""The tests under comparison, each as a function of an order of outputs and the numbers of them to be tested at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rivals import binned_chi_square, hamming_kernel, mmd_p_value, permuted_labels
from scored import Scored

from specaudit.audit.evidence import Evidence
from specaudit.audit.lossless import Audit
from specaudit.audit.tally import BINS, Tally
from specaudit.core.types import SamplingParams, Transcript
from specaudit.stats import MINIMUM_PER_BIN, RunningMixture, chi_square_uniform, log_contamination_increments

FALSE_ALARM_RATE = 1e-3


class EvidenceAudit(Audit):
    """An audit whose outputs have been scored: everything that `Audit.add` does after that, and its tests."""

    def __init__(self, target: Any, drafter: Any, params: SamplingParams) -> None:
        super().__init__(target, drafter, false_alarm_rate=FALSE_ALARM_RATE)
        self.params, self.tally = params, Tally(target.vocabulary, self.seed)

    def take(self, evidence: Evidence) -> None:
        assert self.tally is not None
        self.tally.add(evidence, self.transcripts)
        self.transcripts += 1
        self.tokens += len(evidence.mass)

    @property
    def violated(self) -> bool:
        return any(test.flagged for test in [*self._anytime_tests(), *self._fixed_sample_tests()])

    @property
    def budget(self) -> dict[str, float]:
        return self._budget()


class OneSample:
    """The tests that need the target's weights, on orders of one pool."""

    def __init__(self, scored: Sequence[Scored], target: Any, drafter: Any, params: SamplingParams) -> None:
        self.scored, self.pair, self.params = scored, (target, drafter), params
        self.increments = [_increments(one.evidence) for one in scored]
        audit = self.new_audit()
        audit.take(scored[0].evidence)
        self.share = audit.budget["contamination_draft"]

    def new_audit(self) -> EvidenceAudit:
        return EvidenceAudit(*self.pair, self.params)

    def eprocess(self, chosen: NDArray[np.int64], grid: Sequence[int], rate: float) -> list[bool]:
        mixture, flags, start = RunningMixture(np.ones(len(self.increments[0]))), [], 0
        for outputs in grid:
            mixture.read(np.concatenate([self.increments[index] for index in chosen[start:outputs]], axis=1))
            flags.append(mixture.eprocess.rejects(rate))
            start = outputs
        return flags

    def whole_audit(self, chosen: NDArray[np.int64], grid: Sequence[int]) -> list[bool]:
        """An audit of each number of outputs; what an e-process has flagged stays so, and is read no further."""
        audit, flags, start = self.new_audit(), [], 0
        for outputs in grid:
            for index in chosen[start:outputs]:
                if not audit.violated_by_now:
                    audit.take(self.scored[index].evidence)
            flags.append(audit.violated_by_now or audit.violated)
            start = outputs
        return flags

    def pit_chi_square(self, chosen: NDArray[np.int64], grid: Sequence[int]) -> list[bool]:
        flags = []
        for outputs in grid:
            u = np.concatenate([self.scored[index].u for index in chosen[:outputs]])
            bins = min(BINS, len(u) // MINIMUM_PER_BIN)
            flags.append(bins >= 2 and chi_square_uniform(u, bins).p_value <= FALSE_ALARM_RATE)
        return flags

    def binned_chi_square(self, chosen: NDArray[np.int64], grid: Sequence[int]) -> list[bool]:
        sums = [
            np.cumsum([getattr(self.scored[index], name) for index in chosen], axis=0)
            for name in ("counts", "expected", "covariance")
        ]
        return [binned_chi_square(*(total[outputs - 1] for total in sums)) <= FALSE_ALARM_RATE for outputs in grid]


def _increments(evidence: Evidence) -> NDArray[np.float64]:
    draft = evidence.directions["draft"]
    assert not evidence.impossible.any()
    assert draft.max_ratio is not None
    return log_contamination_increments(draft.relative, draft.on_support, draft.max_ratio)


class TwoSample:
    """The MMD test of a pool against outputs of the target alone, as many on each side."""

    def __init__(self, engine: Sequence[Transcript], baseline: Sequence[Transcript], length: int) -> None:
        both = [*engine, *baseline]
        places = {prompt: place for place, prompt in enumerate(dict.fromkeys(one.prompt_ids for one in both))}
        self.prompts = np.array([places[one.prompt_ids] for one in both])
        self.kernel = hamming_kernel([one.output_ids for one in both], self.prompts, length)
        self.engine = len(engine)

    def mmd(
        self, chosen: NDArray[np.int64], others: NDArray[np.int64], grid: Sequence[int], permutations: int,
        generator: np.random.Generator,
    ) -> dict[str, list[bool]]:  # fmt: skip
        """Permuting the pairs of prompt and output as a whole, as the paper does, and within each prompt."""
        flags: dict[str, list[bool]] = {"": [], ", permuted within prompts": []}
        for outputs in grid:
            rows = np.concatenate([chosen[:outputs], self.engine + others[:outputs]])
            kernel, prompts = self.kernel[np.ix_(rows, rows)], self.prompts[rows]
            for found, within in zip(flags.values(), (False, True), strict=True):
                labels = permuted_labels(prompts, outputs, permutations, within, generator)
                found.append(mmd_p_value(kernel, prompts, labels) <= FALSE_ALARM_RATE)
        return flags
