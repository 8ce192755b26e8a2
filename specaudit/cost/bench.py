"""Measured speed: baseline and speculative decoding of the same prompts, in turn, through the same loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specaudit.acceptance.profile import AcceptanceProfile, profile_outputs
from specaudit.core.protocols import CausalModel, Drafter
from specaudit.core.sampling import row_seed
from specaudit.core.types import Limits, SamplingParams, Transcript
from specaudit.cost.measure import CostMeter, Plan, cost_table
from specaudit.cost.predict import predict
from specaudit.cost.timing import collector_paused
from specaudit.decode import Decoded, decode
from specaudit.models.target import ModelTarget
from specaudit.stats import percentile_interval, ratio_bootstrap
from specaudit.verify import lossless_verifier

Progress = Callable[[Iterable[Any], int], Iterable[Any]]
CONFIDENCE = 0.95
RESAMPLES = 2000
FORECAST = ("predicted", "round_cost", "article_formula", "leviathan_formula")


@dataclass
class Speed:
    """Tokens, rounds and seconds of full rounds, a number a prompt batch, for one k (0 is the baseline)."""

    tokens: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    wall_seconds: list[float] = field(default_factory=list)
    all_tokens: list[float] = field(default_factory=list)

    def add(self, decoded: Decoded, batch: int) -> None:
        # A round counts while its batch is full: the steady state of an engine that refills its batch.
        full = [round_ for round_ in decoded.rounds if len(round_.rows) == batch]
        self.tokens.append(float(sum(sum(round_.emitted) for round_ in full)))
        self.rounds.append(float(sum(len(round_.rows) for round_ in full)))
        self.seconds.append(sum(round_.total_seconds for round_ in full))
        self.wall_seconds.append(decoded.prefill_seconds + decoded.decode_seconds)
        self.all_tokens.append(float(decoded.tokens))

    @property
    def rate(self) -> float:
        return sum(self.tokens) / sum(self.seconds)

    @property
    def wall_rate(self) -> float:
        return sum(self.all_tokens) / sum(self.wall_seconds)


def bench(
    model: CausalModel, drafter: Drafter, prompts: Sequence[Sequence[int]], params: SamplingParams, limits: Limits,
    ks: Sequence[int], batch: int, progress: Progress = lambda items, _total: items, meter: CostMeter | None = None,
) -> tuple[list[dict[str, Any]], list[Transcript]]:  # fmt: skip
    """Decodes every prompt batch without and with the drafter, in turn, and compares their speed.

    Parameters
    ----------
    meter : CostMeter, optional
        Takes its ``plan.pairs`` sweeps between prompt batches, spread evenly, so that costs and speeds meet the same
        conditions of the machine.

    Returns
    -------
    rows : list of dict
        For each k: ``baseline_tokens_per_second``, ``tokens_per_second`` and ``speedup`` of decoding, with an interval
        bootstrapped by prompt batch (pairs stay together); ``wall_speedup`` includes reading the prompts.
    transcripts : list of Transcript
        The baseline's outputs.
    """
    starts = range(0, len(prompts) - batch + 1, batch)
    speeds = {k: Speed() for k in (0, *ks)}
    transcripts: list[Transcript] = []
    sweeps = meter.plan.pairs if meter is not None else 0
    _decode(model, drafter, prompts[:batch], params, Limits(min(8, limits.max_new_tokens)), max(ks), 0)  # warm-up
    for turn, start in enumerate(progress(starts, len(starts))):
        for _ in range(turn * sweeps // len(starts), (turn + 1) * sweeps // len(starts)):
            assert meter is not None
            meter.sweep()
        group = prompts[start : start + batch]
        for k in (0, *ks) if turn % 2 == 0 else (*reversed(ks), 0):
            decoded = _decode(model, drafter if k else None, group, params, limits, k, start)
            speeds[k].add(decoded, batch)
            if not k:
                transcripts.extend(decoded.transcripts)
    return [_row(speeds[0], speeds[k], k, batch, params) for k in ks], transcripts


def _decode(
    model: CausalModel, drafter: Drafter | None, prompts: Sequence[Sequence[int]], params: SamplingParams,
    limits: Limits, k: int, start: int,
) -> Decoded:  # fmt: skip
    seeds = [row_seed(params.seed, start + row) for row in range(len(prompts))]
    verifier = lossless_verifier(params)
    with collector_paused():
        return decode(ModelTarget(model), drafter, verifier, prompts, params, limits, k=k, seeds=seeds)


def _row(base: Speed, spec: Speed, k: int, batch: int, params: SamplingParams) -> dict[str, Any]:
    return {
        "k": k, "batch": batch, "temperature": params.temperature,
        "baseline_tokens_per_second": base.rate, "tokens_per_second": spec.rate,
        "speedup": spec.rate / base.rate, "speedup_interval": _interval(base, spec, params.seed),
        "wall_speedup": spec.wall_rate / base.wall_rate,
        "tokens_per_round": sum(spec.tokens) / sum(spec.rounds),
    }  # fmt: skip


def _interval(base: Speed, spec: Speed, seed: int) -> list[float | None]:
    if len(base.tokens) < 2:
        return [None, None]
    generator = np.random.default_rng(seed)
    # One multinomial draw serves all four sums, so each resample keeps a prompt's two runs together.
    columns = np.column_stack([spec.tokens, base.seconds, base.tokens])
    shares = ratio_bootstrap(columns, np.array(spec.seconds), RESAMPLES, generator)
    low, high = percentile_interval(shares[:, 0] * shares[:, 1] / shares[:, 2], CONFIDENCE)
    return [float(low), float(high)]


def bench_with_prediction(
    model: CausalModel, drafter: Drafter, prompts: Sequence[Sequence[int]], settings: Sequence[SamplingParams],
    limits: Limits, ks: Sequence[int], batch: int, known: Known | None = None, sweeps: int = Plan.pairs,
    progress: Callable[[str], Progress] = lambda _title: lambda items, _total: items,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:  # fmt: skip
    """Measured beside predicted, for every setting of the sampling parameters.

    The prediction of a setting comes from ``known`` where that is a profile under the same setting. Otherwise the
    baseline's own outputs are scored. Without ``known`` the costs of a setting are measured between its prompts, in
    ``sweeps`` paired runs of every width.

    Returns
    -------
    rows, costs
    """
    rows: list[dict[str, Any]] = []
    costs = known.costs if known is not None else {}
    for params in settings:
        meter = None if known is not None else _meter(model, drafter, prompts, params, limits, max(ks), batch, sweeps)
        title = f"bench {drafter.name} at temperature {params.temperature:g}"
        measured, transcripts = bench(model, drafter, prompts, params, limits, ks, batch, progress(title), meter)
        if meter is not None:
            costs = cost_table([meter])
        if known is not None and known.covers(params):
            profile, figures = known.profile, known.figures
        else:
            profile, figures = profile_outputs(
                model, drafter, transcripts, limits.max_new_tokens, k_max=max(ks), seed=params.seed
            )
        forecast = predict(profile, figures, costs, np.random.default_rng(params.seed))
        about = {"draft": drafter.name, "draft_cost_ratio": costs["draft_cost_ratio"]}
        about |= {name: figures.get(name) for name in ("alpha", "alpha_by_depth")}
        rows += [{**about, **row} for row in with_prediction(measured, forecast)]
    return rows, costs


def _meter(
    model: CausalModel, drafter: Drafter, prompts: Sequence[Sequence[int]], params: SamplingParams, limits: Limits,
    k: int, batch: int, sweeps: int,
) -> CostMeter:  # fmt: skip
    context = int(np.mean([len(ids) for ids in prompts])) + limits.max_new_tokens // 2
    plan = Plan(k=k, batches=(batch,), contexts=(context,), pairs=sweeps)
    return CostMeter(model, drafter, prompts, params, plan, batch, context)


@dataclass(frozen=True)
class Known:
    """A profile and a cost table that were measured before."""

    profile: AcceptanceProfile
    figures: dict[str, Any]
    costs: dict[str, Any]

    def covers(self, params: SamplingParams) -> bool:
        own = {name: value for name, value in self.figures["sampling"].items() if name != "seed"}
        return own == {name: value for name, value in params.as_dict().items() if name != "seed"}


def with_prediction(rows: list[dict[str, Any]], prediction: dict[str, Any]) -> list[dict[str, Any]]:
    """Adds what was predicted, None where nothing was, and ``relative_error`` = predicted / measured - 1."""
    by_cell = {(row["k"], row["batch"]): row for row in prediction["rows"]}
    out = []
    for row in rows:
        forecast = by_cell.get((row["k"], row["batch"]), {})
        added = {name: forecast.get(name) for name in FORECAST}
        error = added["predicted"] / row["speedup"] - 1 if added["predicted"] is not None else None
        out.append({**row, **added, "relative_error": error})
    return out
