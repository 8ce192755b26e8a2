"""The cost table: seconds of one round over the seconds of one baseline step, both through the same loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specaudit.core.artifacts import machine
from specaudit.core.protocols import CausalModel, Drafter
from specaudit.core.types import Limits, Round, SamplingParams
from specaudit.cost.forced import FixedWidthDrafter, ForcedVerifier
from specaudit.cost.timing import collector_paused
from specaudit.decode import decode
from specaudit.models.target import ModelTarget
from specaudit.stats import percentile_interval, ratio_bootstrap
from specaudit.verify import lossless_verifier

WARM_UP_ROUNDS = 3
CONFIDENCE = 0.95
RESAMPLES = 1000
TRIMMED, LEAST_TRIMMED = 10, 6  # one pair in ten at either end, where there are as many as six


@dataclass(frozen=True)
class Plan:
    """What to measure: drafted tokens a round (0..k), batch sizes, context lengths, rounds a run and paired runs."""

    k: int = 8
    batches: tuple[int, ...] = (1,)
    contexts: tuple[int, ...] = (128,)
    rounds: int = 16
    pairs: int = 9


@dataclass(frozen=True)
class Run:
    """Means of one run's full rounds, in seconds: what a user waits for is a sum, so its odd slow round counts."""

    total: float
    propose: float
    score: float


class CostMeter:
    """Paired runs at one batch and context, taken whenever ``sweep`` is called.

    A machine's speed drifts within minutes, so sweeps that lie between the runs of a bench share its conditions.
    """

    def __init__(
        self, model: CausalModel, drafter: Drafter, prompts: Sequence[Sequence[int]], params: SamplingParams,
        plan: Plan, batch: int, context: int,
    ) -> None:  # fmt: skip
        self.model, self.drafter, self.params, self.plan = model, drafter, params, plan
        self.batch, self.context = batch, context
        length = min(context, model.max_context - plan.rounds * (plan.k + 1) - 2)
        self.filled = [_filled(prompts, row, length) for row in range(batch)]
        self.pairs: dict[int, list[tuple[Run, Run]]] = {drafted: [] for drafted in range(plan.k + 1)}
        _run(model, drafter, self.filled, params, plan.k, WARM_UP_ROUNDS + 1)

    def sweep(self) -> None:
        """One pair of baseline run and round run for every drafted width."""
        for drafted, pairs in self.pairs.items():
            baseline = _run(self.model, None, self.filled, self.params, 0, self.plan.rounds)
            pairs.append(
                (_run(self.model, self.drafter, self.filled, self.params, drafted, self.plan.rounds), baseline)
            )


def measure(
    model: CausalModel, drafter: Drafter, prompts: Sequence[Sequence[int]], params: SamplingParams, plan: Plan,
    progress: Callable[[Iterable[Any], int], Iterable[Any]] = lambda items, _total: items,
) -> dict[str, Any]:  # fmt: skip
    """Measures C(w, B, L) for every drafted width 0..k, batch and context, in pairs of round run and baseline run.

    Parameters
    ----------
    prompts : sequence of token id sequences
        Text to fill the contexts with; repeated as often as it takes.
    progress : callable
        Wraps the sweeps, to show how far it is.

    Returns
    -------
    dict
        The figures of ``costs.json``, see ``cost_table``.
    """
    cells = list(itertools.product(plan.batches, plan.contexts))
    meters: list[CostMeter] = []
    for (batch, context), turn in progress(itertools.product(cells, range(plan.pairs)), len(cells) * plan.pairs):
        if turn == 0:
            meters.append(CostMeter(model, drafter, prompts, params, plan, batch, context))
        meters[-1].sweep()
    return cost_table(meters)


def cost_table(meters: Sequence[CostMeter]) -> dict[str, Any]:
    """The figures of ``costs.json`` from what the meters have taken so far, at least two sweeps each.

    Returns
    -------
    dict
        Rows with width (tokens a sequence in the verify pass, k + 1), batch, context, ``round_cost`` in baseline steps
        with its interval, ``seconds``; ``baseline_seconds`` (one step at the first batch and context),
        ``draft_cost_ratio`` (one draft step over one baseline step) and ``verify_ratio`` by width.
    """
    first = meters[0]
    generator = np.random.default_rng(first.params.seed)
    k = first.plan.k
    return {
        "target": first.model.name,
        "draft": first.drafter.name,
        "mode": "eager",
        "machine": machine(),
        "baseline_seconds": float(np.median([base.total for runs in first.pairs.values() for _, base in runs])),
        "draft_cost_ratio": _median_ratio(first.pairs[k], lambda run: run.propose / k, lambda base: base.total),
        "verify_ratio": {
            str(drafted + 1): _median_ratio(runs, lambda run: run.score, lambda base: base.score)
            for drafted, runs in first.pairs.items()
            if drafted
        },
        "rows": [
            _row(drafted, meter.batch, meter.context, runs, generator)
            for meter in meters
            for drafted, runs in meter.pairs.items()
        ],
    }


def _run(
    model: CausalModel, drafter: Drafter | None, prompts: Sequence[Sequence[int]], params: SamplingParams, drafted: int,
    rounds: int,
) -> Run:  # fmt: skip
    """One decode of about ``rounds`` rounds; only those count that drafted ``drafted`` tokens in every row."""
    verifier = lossless_verifier(params)
    forced = None if drafter is None else FixedWidthDrafter(drafter, drafted)
    tokens = (WARM_UP_ROUNDS + rounds) * (drafted + 2) // 2 + drafted + 1
    with collector_paused():
        decoded = decode(
            ModelTarget(model), forced, verifier if drafter is None else ForcedVerifier(verifier), prompts, params,
            Limits(max_new_tokens=tokens), k=max(1, drafted),
        )  # fmt: skip
    whole = [r for r in decoded.rounds[WARM_UP_ROUNDS:] if len(r.rows) == len(prompts)]
    # Lookahead finds trees of any depth: all of its rounds count but the last, which may have had no room.
    full = [r for r in whole if r.proposed == (drafted,) * len(prompts)] or whole[:-1]
    return Run(*(_mean(full, part) for part in ("total_seconds", "propose_seconds", "score_seconds")))


def _mean(rounds: Sequence[Round], part: str) -> float:
    return float(np.mean([getattr(round_, part) for round_ in rounds]))


def _median_ratio(runs: list[tuple[Run, Run]], top: Callable[[Run], float], bottom: Callable[[Run], float]) -> float:
    return float(np.median([top(run) / bottom(base) for run, base in runs]))


def _row(
    drafted: int, batch: int, context: int, runs: list[tuple[Run, Run]], generator: np.random.Generator
) -> dict[str, Any]:
    rounds, baselines = _steady(np.array([[run.total, base.total] for run, base in runs])).T
    samples = ratio_bootstrap(rounds, baselines, RESAMPLES, generator)
    low, high = percentile_interval(samples, CONFIDENCE)
    return {
        "width": drafted + 1, "k": drafted, "batch": batch, "context": context,
        "round_cost": float(rounds.sum() / baselines.sum()), "interval": [float(low), float(high)],
        "seconds": float(rounds.mean()), "baseline_seconds": float(baselines.mean()),
    }  # fmt: skip


def _steady(pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pairs of a round run and the baseline run beside it, without the tenth of largest and of smallest ratio.

    What is left is summed up, as a bench sums: a machine with a fast and a slow state then counts as its mixture, where
    a median would pick one of the two.
    """
    cut = -(-len(pairs) // TRIMMED) if len(pairs) >= LEAST_TRIMMED else 0
    order = np.argsort(pairs[:, 0] / pairs[:, 1], kind="stable")
    return pairs[order[cut : len(pairs) - cut]]


def _filled(prompts: Sequence[Sequence[int]], offset: int, length: int) -> list[int]:
    """``length`` tokens of running text, begun at another prompt for each row."""
    text: list[int] = []
    for turn in itertools.count(offset):
        text.extend(prompts[turn % len(prompts)])
        if len(text) >= length:
            return text[: max(1, length)]
    raise AssertionError("count() never ends")
