"""The audit of two black boxes: do an engine and a baseline draw their outputs of the same prompts from one law?"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specaudit.audit import structure
from specaudit.audit.outcome import MISSED_RATE, Test
from specaudit.core.errors import InputError
from specaudit.core.types import SamplingParams, Transcript
from specaudit.engines.checks import one_setting
from specaudit.stats import (
    detectable_exchange,
    exchange_tests,
    holm,
    required_pairs_exchange,
    smallest_exchange_p_value,
    split,
    token_counts,
)

POSITIONS = 8  # tested one by one: each costs all others power, and later contexts have less in common
SHOWN = 20
ALL = "all_positions"
_ENDED = -1  # stands after an output's end, so that lengths are compared as well
_ALLOWED = 8  # drawn statistics as large as the observed one with which a test may still flag: fewer cost power
Progress = Callable[[Iterable[Any], int], Iterable[Any]]


def compare(
    transcripts: Sequence[Transcript],
    baseline: Sequence[Transcript],
    *,
    false_alarm_rate: float = 1e-3,
    seed: int = 0,
    progress: Progress = lambda items, _total: items,
) -> dict[str, Any]:
    """Tests whether an engine's outputs and a baseline's are exchangeable within each prompt, without any weights.

    Half of the false-alarm rate goes to the first ``POSITIONS`` positions, by Holm's procedure, and half to how often
    each token is written anywhere. Outputs must be independent of each other; where both engines are fed the same
    uniforms, they are not.

    Parameters
    ----------
    transcripts, baseline : sequence of Transcript
        Outputs of the same prompts, one or more of each prompt, under the same sampling parameters but for the seed,
        and with the same limit; never selected by what they contain. The baseline's are the target's own.
    false_alarm_rate : float
        Of the whole audit: the chance to report ``violated`` where both draw from one law.
    seed : int
        Of the permutations.

    Returns
    -------
    dict
        The figures of ``audit.json``. ``detectable_contamination`` is the smallest share of outputs which, each having
        at a position one and the same token that the baseline does not write there, would have been found with
        probability 0.95. A position's ``p_value`` is adjusted by Holm's procedure. Greedy outputs are compared token
        by token, and any difference is ``inconclusive``: a near tie cannot be told from a defect without the weights.

    Raises
    ------
    InputError
        If there is no token, or prompts, sampling parameters or limits differ, or a prompt's outputs share a seed, or
        the baseline's rule does not preserve the target.
    """
    params = _checked(transcripts, baseline)
    if params.greedy:
        tests, detectable, because, extra = _greedy(transcripts, baseline)
        cause: dict[str, str] | None = None
    else:
        tests, detectable, because, cause = _sampled(
            _Samples.of(transcripts, baseline), false_alarm_rate, seed, progress
        )
        extra = {}
    said = structure.tests(transcripts)
    for test in said:
        if test.flagged:
            because, cause = None, cause or {"name": test.name, "text": structure.EXPLANATIONS[test.name]}
    return {
        "target": None,
        "draft": None,
        "verdict": "inconclusive" if because else "violated" if cause else "no_violation_found",
        "inconclusive_because": because,
        "tokens": sum(len(transcript.output_ids) for transcript in transcripts),
        "baseline_tokens": sum(len(transcript.output_ids) for transcript in baseline),
        "transcripts": len(transcripts),
        "prompts": len({transcript.prompt_ids for transcript in transcripts}),
        "false_alarm_rate": false_alarm_rate,
        "missed_rate": MISSED_RATE,
        "log10_e": None,
        "detectable_contamination": detectable if math.isfinite(detectable) else None,
        "cause": cause,
        "preserves_target": not said[-1].flagged,
        "tests": [test.as_dict() for test in [*tests, *said]],
        **extra,
    }


@dataclass(frozen=True)
class _Samples:
    """Outputs of both sides: the prompt's number and the side of each, both ``[outputs]``."""

    outputs: list[tuple[int, ...]]
    prompts: np.ndarray
    engine: np.ndarray

    @classmethod
    def of(cls, transcripts: Sequence[Transcript], baseline: Sequence[Transcript]) -> _Samples:
        both, numbers = [*transcripts, *baseline], {}
        prompts = np.array([numbers.setdefault(transcript.prompt_ids, len(numbers)) for transcript in both])
        return cls([transcript.output_ids for transcript in both], prompts, np.arange(len(both)) < len(transcripts))

    @property
    def pairs(self) -> int:
        sides = (np.bincount(self.prompts[side]) for side in (self.engine, ~self.engine))
        return int(np.minimum(*sides).sum())

    def columns(self) -> dict[str, list[tuple[int, ...]]]:
        """What each test counts: one position's tokens, or the whole outputs."""
        positions = range(min(POSITIONS, max(map(len, self.outputs))))
        return {
            **{f"position_{t}": [output[t : t + 1] or (_ENDED,) for output in self.outputs] for t in positions},
            ALL: self.outputs,
        }


def _sampled(
    samples: _Samples, false_alarm_rate: float, seed: int, progress: Progress
) -> tuple[list[Test], float, str | None, dict[str, str] | None]:
    """Tests, detectable contamination, why nothing can be said, and what differs most."""
    columns = samples.columns()
    budget = split(false_alarm_rate, ["positions", ALL])
    share = budget["positions"] / (len(columns) - 1)
    tests = _tests(samples, columns, share, budget, np.random.default_rng([seed, 2]), progress)
    difference = detectable_exchange(samples.pairs, _permutations(share), share, MISSED_RATE)
    detectable = difference if difference <= 1.0 else math.inf
    flagged = [test for test in tests if test.flagged]
    if flagged:
        name = flagged[0].name  # the first position that differs, where one does by itself
        return tests, detectable, None, {"name": name, "text": _largest_shift(name, columns[name], samples)}
    needed = required_pairs_exchange(1.0, _permutations(share), share, MISSED_RATE)
    reachable = smallest_exchange_p_value(samples.engine, samples.prompts)
    because = None
    if reachable > budget[ALL]:
        because = f"no p-value can be below {reachable:.2g}, and a test may flag at {budget[ALL]:.2g} or less"
    elif not math.isfinite(detectable):
        because = "not even a token that the baseline never writes, in every output, would surely have been found"
    if because:
        ask = f"{needed} are needed, of more prompts or more of each"
        because = f"too few outputs: with {samples.pairs} pairs {because}; {ask}"
    return tests, detectable, because, None


def _tests(
    samples: _Samples, columns: dict[str, list[tuple[int, ...]]], share: float, budget: dict[str, float],
    generator: np.random.Generator, progress: Progress,
) -> list[Test]:  # fmt: skip
    counts = {name: token_counts(column) for name, column in columns.items()}
    whole = {ALL: counts.pop(ALL)}
    found = []
    for tables, level in ((counts, share), (whole, budget[ALL])):
        found += exchange_tests(
            tables, samples.engine, samples.prompts, _permutations(level), generator, progress
        )  # fmt: skip
    levels = [*holm([result.p_value for result in found[:-1]]).tolist(), found[-1].p_value]
    return [
        Test(result.name, result.statistic, p_value <= budget.get(result.name, budget["positions"]), p_value=p_value)
        for result, p_value in zip(found, levels, strict=True)
    ]


def _permutations(share: float) -> int:
    return math.ceil(_ALLOWED / share)


def _largest_shift(name: str, column: Sequence[Sequence[int]], samples: _Samples) -> str:
    """The token whose mean count differs most; means within a prompt and side first, as in the statistic."""
    places = list(zip(samples.prompts.tolist(), samples.engine.tolist(), strict=True))
    sizes, prompts = Counter(places), 1 + int(samples.prompts.max())
    means: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for output, (prompt, side) in zip(column, places, strict=True):
        for token in output:
            means[token][side] += 1.0 / (prompts * sizes[prompt, side])
    token, (other, own) = max(means.items(), key=lambda item: abs(item[1][1] - item[1][0]))
    where = "over whole outputs" if name == ALL else "at " + name.replace("_", " ")
    if token == _ENDED:
        return f"{where}, {own:.3g} of the engine's outputs have ended and {other:.3g} of the baseline's"
    return f"{where}, token {token} is written {own:.3g} times an output by the engine, {other:.3g} by the baseline"


def _greedy(
    transcripts: Sequence[Transcript], baseline: Sequence[Transcript]
) -> tuple[list[Test], float, str | None, dict[str, Any]]:
    """Each output beside that of the baseline's outputs of its prompt which it follows longest."""
    expected: dict[tuple[int, ...], set[tuple[int, ...]]] = defaultdict(set)
    for transcript in baseline:
        expected[transcript.prompt_ids].add(transcript.output_ids)
    differences, compared = [], 0
    for index, transcript in enumerate(transcripts):
        own = transcript.output_ids
        others = {own} & expected[transcript.prompt_ids] or expected[transcript.prompt_ids]
        position, closest = max((_agreeing(own, other), other) for other in others)
        compared += min(position + 1, len(own))
        if own != closest:
            emitted, wanted = (dict(enumerate(ids)).get(position) for ids in (own, closest))
            differences.append({"transcript": index, "position": position, "emitted": emitted, "baseline": wanted})
    because = None
    if differences:
        because = (
            f"{len(differences)} of {len(transcripts)} greedy outputs differ from the baseline's, and without the "
            "weights a near tie cannot be told from a defect; audit them with the target"
        )
    tests = [Test("greedy_difference", float(len(differences)), False)]
    detectable = 1.0 - MISSED_RATE ** (1.0 / compared) if compared else math.inf
    return tests, detectable, because, {"differences": differences[:SHOWN]}


def _agreeing(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((position for position, (a, b) in pairs if a != b), min(len(one), len(other)))


def _checked(transcripts: Sequence[Transcript], baseline: Sequence[Transcript]) -> SamplingParams:
    """The common sampling parameters of two sets of outputs that can be compared."""
    params, expected = one_setting(transcripts), one_setting(baseline, "baseline")
    if params != expected:
        problem, remedy = f"the transcripts were made under {params.as_dict()}", "sample both sides alike"
        raise InputError("baseline", str(expected.as_dict()), problem, remedy)
    sides = {"transcripts": transcripts, "baseline": baseline}
    prompts = {name: {transcript.prompt_ids for transcript in side} for name, side in sides.items()}
    for name, other in (("transcripts", "baseline"), ("baseline", "transcripts")):
        alone = len(prompts[name] - prompts[other])
        if alone:
            problem = f"{alone} of its prompts are not in the {other}"
            raise InputError(name, f"{len(prompts[name])} prompts", problem, "run both engines on the same prompts")
    if not all(transcript.engine.get("preserves_target", True) for transcript in baseline):
        problem = "names a verification rule that does not preserve the target"
        raise InputError("baseline", baseline[0].engine.get("method"), problem, "give the target's own outputs")
    for name, side in sides.items():
        _check_seeds(name, side)
    _check_limits([*transcripts, *baseline])
    return params


def _check_seeds(argument: str, transcripts: Sequence[Transcript]) -> None:
    """Outputs under one seed are copies, and would count as so many; seed 0 is what unrecorded seeds look like."""
    seeds = Counter((t.prompt_ids, t.sampling.seed) for t in transcripts if t.sampling.seed and not t.sampling.greedy)
    for (_, seed), count in seeds.items():
        if count > 1:
            problem = f"{count} outputs of one prompt have this seed"
            raise InputError(argument, seed, problem, "sample each output under a seed of its own")


def _check_limits(transcripts: Sequence[Transcript]) -> None:
    """Outputs of a prompt that were cut by the limit must be equally long, or the limits were not the same."""
    cut: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for transcript in transcripts:
        if transcript.finish_reason == "length":
            cut[transcript.prompt_ids].add(len(transcript.output_ids))
    for lengths in cut.values():
        if len(lengths) > 1:
            problem = "outputs of one prompt were cut at different lengths"
            raise InputError("transcripts, baseline", sorted(lengths), problem, "give both the same max_new_tokens")
