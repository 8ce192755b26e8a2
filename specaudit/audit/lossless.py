"""The audit of transcripts against the target's weights: is this the target's own distribution?"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from specaudit.audit import greedy, structure
from specaudit.audit.cause import explained, law_paths, named, named_with_strays
from specaudit.audit.evidence import Evidence, gather
from specaudit.audit.noise import Noise, measure_noise
from specaudit.audit.outcome import MISSED_RATE, Test, one_setting
from specaudit.core.errors import InputError
from specaudit.core.protocols import CausalModel, Drafter
from specaudit.core.types import SamplingParams, Transcript
from specaudit.stats import (
    MINIMUM_PAIRS,
    MINIMUM_PER_BIN,
    MINIMUM_TOKENS_CRAMER_VON_MISES,
    EProcess,
    chi_square_uniform,
    cramer_von_mises_uniform,
    detectable_contamination,
    lag_test,
    log_contamination_eprocess,
    log_mean_exp,
    mixed_log_path,
    pit_values,
    split,
)

LOG_10 = math.log(10.0)
BINS = 32
HARD = ("structure", "impossible_token", "greedy", "declared_lossy")  # no statistics: one is enough
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
        ``inconclusive_because``), and the smallest contamination that these tokens would have shown with probability
        0.95.

    Raises
    ------
    InputError
        If there is no token, sampling parameters differ, or an id is outside the vocabulary.
    """
    params = _common_params(target, transcripts)
    log_e: dict[str, float] = {}
    likelihoods: dict[str, float] = {}
    noise = measure_noise(target, transcripts, params)
    tokens = sum(len(transcript.output_ids) for transcript in transcripts)
    if params.greedy:
        outcome, details = greedy.check(target, transcripts, params, noise)
        tests, log10_e = [Test("greedy", float(outcome), outcome > 0)], None
        detectable, extra = 1.0 - MISSED_RATE ** (1.0 / tokens), {"greedy": details}
    else:
        scored = progress(gather(target, drafter, transcripts, params), len(transcripts))
        evidence = sorted(scored, key=lambda item: item.index)
        tests, log_e, detectable = _sampled(evidence, false_alarm_rate, seed)
        log10_e = float(log_mean_exp(list(log_e.values()))) / LOG_10
        impossible = int(sum(item.impossible.sum() for item in evidence))
        likelihoods = explained(evidence, target.vocabulary) if impossible else {}
        ranked = sorted(log_e.items(), key=lambda pair: -pair[1])
        causes = [{"name": name, "log10_e": value / LOG_10} for name, value in ranked]
        extra = {"impossible_tokens": impossible, "causes": causes}
    said = structure.tests(transcripts)
    tests += said
    because = _inconclusive(tests, detectable, noise, transcripts, drafter)
    flagged = [test for test in tests if test.flagged]
    verdict = "inconclusive" if because else "violated" if flagged else "no_violation_found"
    return {
        "target": target.name,
        "draft": drafter.name if drafter is not None else None,
        "verdict": verdict,
        "inconclusive_because": because,
        "tokens": tokens,
        "transcripts": len(transcripts),
        "false_alarm_rate": false_alarm_rate,
        "missed_rate": MISSED_RATE,
        "log10_e": log10_e,
        "detectable_contamination": detectable if math.isfinite(detectable) else None,
        "cause": _cause(flagged, log_e, likelihoods) if verdict == "violated" else None,
        "preserves_target": not said[-1].flagged,
        "noise": dataclasses.asdict(noise),
        "tests": [test.as_dict() for test in tests],
        **extra,
    }


def _common_params(target: CausalModel, transcripts: Sequence[Transcript]) -> SamplingParams:
    params = one_setting(transcripts)
    if not all(transcript.prompt_ids for transcript in transcripts):
        raise InputError("transcripts", "an empty prompt", "has no token to condition on", "keep the first token")
    largest = max(max((*transcript.prompt_ids, *transcript.output_ids)) for transcript in transcripts)
    if largest >= target.vocabulary:
        raise InputError(
            "transcripts", largest, f"a token id is outside the target's vocabulary of {target.vocabulary}",
            "audit against the model that made them",
        )  # fmt: skip
    return params


def _sampled(
    evidence: list[Evidence], false_alarm_rate: float, seed: int
) -> tuple[list[Test], dict[str, float], float]:
    """The tests of sampled output, the logarithm of each cause's e-value and the detectable contamination."""
    names = list(evidence[0].directions)
    processes: dict[str, EProcess] = {f"contamination_{name}": _eprocess(evidence, name) for name in names}
    log_e = {name: processes[f"contamination_{name}"].log_e for name in names}
    paths = law_paths(evidence)
    if paths:
        # One test: the average of e-processes is one, and a law more costs no test its share of the error budget.
        processes["bug_laws"] = EProcess.of_path(mixed_log_path(list(paths.values())))
        log_e |= {name: float(path[-1]) for name, path in paths.items()}
    uniforms = np.random.default_rng(np.random.SeedSequence([seed, 1])).random(sum(len(e.mass) for e in evidence))
    below, mass, impossible = (
        np.concatenate([getattr(e, part) for e in evidence]) for part in ("below", "mass", "impossible")
    )
    groups = np.concatenate([np.full(len(e.mass), e.index) for e in evidence])
    u = pit_values(below, mass, uniforms)[~impossible]
    pit = _pit_tests(u, groups[~impossible])
    budget = split(false_alarm_rate, [*processes, *(name for name, _, _ in pit)])
    tests = [
        Test(name, process.running_max_log_e, process.rejects(budget[name]), log10_e=process.log10_e)
        for name, process in processes.items()
    ]
    tests += [Test(name, statistic, p_value <= budget[name], p_value=p_value) for name, statistic, p_value in pit]
    tests.append(Test("impossible_token", float(impossible.sum()), bool(impossible.any())))
    leading = f"contamination_{names[0]}"
    law = functools.reduce(lambda one, other: one + other, (e.leading_excess for e in evidence))
    detectable = detectable_contamination(law, len(mass), budget[leading], MISSED_RATE)
    return tests, log_e, detectable


def _eprocess(evidence: list[Evidence], name: str) -> EProcess:
    relative, on_support, max_ratio = (
        np.concatenate([getattr(e.directions[name], part) for e in evidence])
        for part in ("relative", "on_support", "max_ratio")
    )
    # A token outside the support is a violation counted apart; here it is neutral.
    ratio = np.where(np.concatenate([e.impossible for e in evidence]), on_support, relative)
    return log_contamination_eprocess(ratio, on_support, max_ratio)


def _pit_tests(u: np.ndarray, groups: np.ndarray) -> list[tuple[str, float, float]]:
    """Those of the three uniformity tests for which there are enough tokens."""
    results = []
    bins = min(BINS, len(u) // MINIMUM_PER_BIN)
    if bins >= 2:
        results.append(chi_square_uniform(u, bins))
    if len(u) >= MINIMUM_TOKENS_CRAMER_VON_MISES:
        results.append(cramer_von_mises_uniform(u))
    if int((groups[1:] == groups[:-1]).sum()) >= MINIMUM_PAIRS:
        results.append(lag_test(u, groups))
    return [(result.name, result.statistic, result.p_value) for result in results]


def _inconclusive(
    tests: list[Test], detectable: float, noise: Noise, transcripts: Sequence[Transcript], drafter: Drafter | None
) -> str | None:
    """Why nothing can be said, if so: a hard violation is said in any case."""
    if any(test.flagged and test.name in HARD for test in tests):
        return None
    flagged = any(test.flagged for test in tests)
    if flagged and noise.total_variation > 0.01:
        return f"the machine's own noise (total variation {noise.total_variation:.3g}) could be what the tests see"
    if not flagged and not math.isfinite(detectable):
        return "too few tokens: not even an output drawn from the drafter alone would surely have been found"
    rounds = [transcript.rounds for transcript in transcripts if transcript.rounds is not None]
    if drafter is not None and rounds and not any(any(counts) for counts in rounds) and not flagged:
        return "no drafted token was ever accepted, so speculative decoding was not exercised"
    return None


def _cause(flagged: list[Test], log_e: dict[str, float], likelihoods: dict[str, float]) -> dict[str, Any]:
    """The hard violations first, then the cause with the largest e-value, then the uniformity tests.

    Impossible tokens have a cause of their own where one explains them better than chance strays would. What the
    transcripts say of themselves comes last: what was found in them says more.
    """

    def rank(test: Test) -> tuple[bool, bool, float]:
        return test.name != "declared_lossy", test.name in HARD, test.log10_e or 0.0

    first = max(flagged, key=rank)
    if first.name == "impossible_token":
        return named_with_strays(likelihoods)
    return named(log_e) if first.log10_e is not None else named({first.name: 0.0})
