"""The audit of transcripts against the target's weights: is this the target's own distribution?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from specaudit.audit import greedy, structure
from specaudit.audit.cause import HARD, cause_of
from specaudit.audit.evidence import LARGEST_RATIO, gather
from specaudit.audit.independence import ACROSS, SHARED_SEEDS
from specaudit.audit.noise import NEGLIGIBLE, Noise, measure_noise
from specaudit.audit.outcome import MISSED_RATE, Test
from specaudit.audit.tally import Tally
from specaudit.core.protocols import CausalModel, Drafter
from specaudit.core.types import SamplingParams, Transcript
from specaudit.engines.checks import check_transcripts, one_setting
from specaudit.engines.transcripts import in_pieces
from specaudit.stats import (
    REPEAT_NATS,
    detectable_contamination,
    log_mean_exp,
    repeat_keys,
    repeated_output_test,
    split,
)

LOG_10 = math.log(10.0)
FIXED_SAMPLE = (
    "pit_chi_square", "pit_cramer_von_mises", "pit_lag", "pit_depth", "pit_output", "cross_row", "within_row",
    "repeated_output",
)  # fmt: skip
PIECE = 256  # transcripts that are held and scored at a time
Progress = Callable[[Iterable[Any], int], Iterable[Any]]


def audit(
    target: CausalModel,
    drafter: Drafter | None,
    transcripts: Sequence[Transcript],
    *,
    false_alarm_rate: float = 1e-3,
    seed: int = 0,
    progress: Progress = lambda items, _total: items,
) -> dict[str, Any]:
    """Tests whether transcripts were drawn from the target's processed distribution.

    Parameters
    ----------
    drafter : Drafter, optional
        Turns the tests towards its distribution, where a broken decoder's output most often leans.
    transcripts : sequence of Transcript
        All made under the same sampling parameters but for the seed; never selected by what they contain.
    false_alarm_rate : float
        Of the whole audit: the chance to report ``violated`` for a lossless decoder.

    Returns
    -------
    dict
        The figures of ``audit.json``: verdict ``violated``, ``no_violation_found`` or ``inconclusive`` (with
        ``inconclusive_because``), the smallest contamination that these tokens would have shown with probability 0.95,
        and the upper bound of confidence 0.95 that they give of it.

    Raises
    ------
    InputError
        If there is no token, sampling parameters differ, or an id is outside the vocabulary.
    """
    one_setting(transcripts)
    whole = Audit(target, drafter, false_alarm_rate=false_alarm_rate, seed=seed)
    for piece in progress(in_pieces(transcripts, PIECE), -(-len(transcripts) // PIECE)):
        whole.add(piece)
    return whole.result()


class Audit:
    """An audit that takes transcripts as they come; what it keeps does not grow with them.

    Parameters
    ----------
    target, drafter, false_alarm_rate, seed
        As of `audit`.
    looks : bool
        Whether `result` will be asked again and again as transcripts come in. E-processes may be looked at whenever one
        likes; the tests of a fixed sample then spend ``1 / (j (j + 1))`` of their share at look ``j``, which sums to
        one. Without, the one look spends all of it.
    """

    def __init__(
        self, target: CausalModel, drafter: Drafter | None, *, false_alarm_rate: float = 1e-3, seed: int = 0,
        looks: bool = False,
    ) -> None:  # fmt: skip
        self.target, self.drafter = target, drafter
        self.false_alarm_rate, self.seed, self.looks = false_alarm_rate, seed, looks
        self.params: SamplingParams | None = None
        self.noise = Noise(0.0, 0.0, 0)
        self.transcripts = self.tokens = self.looked = 0
        self.tally: Tally | None = None
        self.greedy: dict[str, Any] = {"near_ties": 0, "defects": 0, "divergences": []}
        self.claims = structure.Claims(target.end_ids)
        self.seeds: set[int] = set()
        self.repeated_seeds = 0
        self.repeat_keys = np.zeros((len(REPEAT_NATS), 0), dtype=np.uint64)
        self.speculated = {"claimed": False, "accepted": False}
        self.found_before: dict[str, Test] = {}

    def add(self, transcripts: Sequence[Transcript]) -> None:
        """Scores more transcripts, made like those before; never selected by what they contain.

        Raises
        ------
        InputError
            If sampling parameters differ, a prompt is empty, an id is outside the vocabulary, or a number that a model
            gives is not finite.
        """
        if not transcripts:
            return
        self._begin(transcripts)
        assert self.params is not None
        (self._add_greedy if self.params.greedy else self._add_sampled)(transcripts)
        self.transcripts += len(transcripts)
        self.tokens += sum(len(transcript.output_ids) for transcript in transcripts)

    def _begin(self, transcripts: Sequence[Transcript]) -> None:
        """Checks transcripts before they are scored, and reads what they say of themselves."""
        params = check_transcripts(self.target, transcripts)
        if self.params is None:
            self.params = params
            self.noise = measure_noise(self.target, transcripts, params)
            robust = self.noise.total_variation if self.noise.total_variation > NEGLIGIBLE else 0.0
            self.tally = Tally(self.target.vocabulary, self.seed, robust * LARGEST_RATIO)
        elif params != self.params:
            one_setting([*transcripts, Transcript((0,), (0,), self.params)])
        self.claims.add(transcripts)
        rounds = [one.rounds for one in transcripts if one.rounds is not None]
        self.speculated["claimed"] |= bool(rounds)
        self.speculated["accepted"] |= any(any(counts) for counts in rounds)
        before = len(self.seeds)
        self.seeds.update(one.sampling.seed for one in transcripts)
        self.repeated_seeds += len(transcripts) - (len(self.seeds) - before)

    def _add_greedy(self, transcripts: Sequence[Transcript]) -> None:
        assert self.params is not None
        _, found = greedy.check(self.target, transcripts, self.params, self.noise)
        shown = [{**one, "transcript": one["transcript"] + self.transcripts} for one in found["divergences"]]
        worst = sorted([*self.greedy["divergences"], *shown], key=lambda one: -one["margin"])
        counts = {name: self.greedy[name] + found[name] for name in ("near_ties", "defects")}
        self.greedy = {**found, **counts, "divergences": worst[: greedy.SHOWN]}

    def _add_sampled(self, transcripts: Sequence[Transcript]) -> None:
        assert self.tally is not None and self.params is not None
        noisy, keys = self.tally.noise > 0, [self.repeat_keys]
        scored = gather(self.target, self.drafter, transcripts, self.params, noisy=noisy, margin=self.noise.margin)
        # In the transcripts' order: that of scoring follows the outputs' lengths, and a bet must not know them.
        for evidence in sorted(scored, key=lambda item: item.index):
            self.tally.add(evidence, self.transcripts + evidence.index)
            one = transcripts[evidence.index]
            keys.append(repeat_keys(one.prompt_ids, one.output_ids, evidence.mass)[:, None])
        self.repeat_keys = np.concatenate(keys, axis=1)

    @property
    def violated_by_now(self) -> bool:
        """Whether something that may be looked at whenever one likes has found a violation."""
        return any(test.flagged for test in self._anytime_tests())

    def result(self) -> dict[str, Any]:
        """The figures of ``audit.json``, as of `audit`."""
        if not self.tokens:
            one_setting([])
        assert self.params is not None and self.tally is not None
        self.looked += 1
        tests = [*self._anytime_tests(), *self._fixed_sample_tests()]
        for test in tests:
            if test.flagged:
                self.found_before.setdefault(test.name, test)
        # What was found at an earlier look stays found.
        tests = [self.found_before.get(test.name, test) for test in tests]
        flagged = [test for test in tests if test.flagged]
        detectable = self.detectable()
        because = self._inconclusive(flagged, detectable)
        verdict = "inconclusive" if because else "violated" if flagged else "no_violation_found"
        return {
            "target": self.target.name,
            "draft": self.drafter.name if self.drafter is not None else None,
            "verdict": verdict,
            "inconclusive_because": because,
            "tokens": self.tokens,
            "transcripts": self.transcripts,
            "false_alarm_rate": self.false_alarm_rate,
            "missed_rate": MISSED_RATE,
            "looks": self.looked,
            "log10_e": None,
            "detectable_contamination": detectable if math.isfinite(detectable) else None,
            "contamination_bound": self.contamination_bound(),
            "cause": cause_of(flagged, self.tally) if verdict == "violated" else None,
            "preserves_target": not self.claims.counts["declared_lossy"],
            "repeated_seeds": 0 if self.params.greedy else self.repeated_seeds,
            "noise": {**dataclasses.asdict(self.noise), "robust": self.tally.noise > 0},
            "tests": [test.as_dict() for test in tests],
            **({"greedy": self.greedy} if self.params.greedy else self._sampled_figures()),
        }

    def _sampled_figures(self) -> dict[str, Any]:
        assert self.tally is not None
        log_e = self.tally.log_e
        ranked = sorted(log_e.items(), key=lambda pair: -pair[1])
        return {
            "log10_e": float(log_mean_exp(list(log_e.values()))) / LOG_10,
            "impossible_tokens": self.tally.strays,
            "boundary_tokens": self.tally.boundary,
            "causes": [{"name": name, "log10_e": value / LOG_10} for name, value in ranked],
        }

    def _processes(self) -> dict[str, Any]:
        assert self.tally is not None
        found = {f"contamination_{name}": mixture.eprocess for name, mixture in self.tally.directions.items()}
        if self.tally.bug_laws is not None:
            # One test: the average of e-processes is one, and a law more costs no test its share of the error budget.
            found["bug_laws"] = self.tally.bug_laws.eprocess
        return found

    def _budget(self) -> dict[str, float]:
        """Each test's share. All are in it from the start, those for which there are too few tokens as well."""
        fixed = () if self.tally is None or self.tally.noise > 0 else FIXED_SAMPLE
        return split(self.false_alarm_rate, [*self._processes(), *fixed])

    def _anytime_tests(self) -> list[Test]:
        assert self.params is not None and self.tally is not None
        claims = self.claims.tests()
        if self.params.greedy:
            defects = self.greedy["defects"]
            return [Test("greedy", float(defects), defects > 0), *claims]
        if not self.tally.directions:
            return claims
        budget = self._budget()
        tests = [
            Test(name, process.running_max_log_e, process.rejects(budget[name]), log10_e=process.log10_e)
            for name, process in self._processes().items()
        ]
        return [*tests, Test("impossible_token", float(self.tally.strays), self.tally.strays > 0), *claims]

    def _fixed_sample_tests(self) -> list[Test]:
        assert self.params is not None and self.tally is not None
        if self.params.greedy or not self.tally.directions:
            return []
        share = 1.0 / (self.looked * (self.looked + 1)) if self.looks else 1.0
        budget = self._budget()
        # Under noise they are shown and decide nothing: with tokens enough they see the noise itself.
        return [
            Test(test.name, test.statistic, test.p_value <= share * budget.get(test.name, 0.0), p_value=test.p_value)
            for test in [*self.tally.pit_tests(), repeated_output_test(self.repeat_keys)]
        ]

    def detectable(self) -> float:
        """The smallest contamination that the tokens so far would have shown with probability 0.95, or ``inf``."""
        assert self.params is not None and self.tally is not None
        if self.params.greedy:
            return 1.0 - MISSED_RATE ** (1.0 / max(1, self.tokens))
        if self.tally.leading_excess is None:
            return math.inf
        leading = self._budget()[f"contamination_{next(iter(self.tally.directions))}"]
        return detectable_contamination(
            self.tally.leading_excess, self.tally.tokens, leading, MISSED_RATE, noise=self.tally.noise
        )

    def contamination_bound(self) -> float:
        """An upper confidence bound of the contamination, valid at every look with probability 0.95."""
        assert self.params is not None and self.tally is not None
        if self.params.greedy:
            return 1.0 if self.greedy["defects"] or not self.tokens else self.detectable()
        return self.tally.contamination_bound(MISSED_RATE)

    def _inconclusive(self, flagged: Sequence[Test], detectable: float) -> str | None:
        """Why nothing can be said, if so: a violation is said in any case."""
        assert self.tally is not None
        if flagged:
            # One seed for several outputs would also explain whatever else is found among them.
            shared = self.repeated_seeds > 0 and any(test.name in ACROSS for test in flagged)
            return SHARED_SEEDS if shared and not any(test.name in HARD for test in flagged) else None
        if not math.isfinite(detectable):
            if self.tally.noise > 0:
                return (
                    f"too few tokens for the machine's own noise (total variation {self.noise.total_variation:.3g}): "
                    "not even an output drawn from the drafter alone would surely have been found"
                )
            return "too few tokens: not even an output drawn from the drafter alone would surely have been found"
        if self.drafter is not None and self.speculated["claimed"] and not self.speculated["accepted"]:
            return "no drafted token was ever accepted, so speculative decoding was not exercised"
        return None
