"""The predicted speedup: tokens per round from the walk over the cost of the rounds that the walk expects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specaudit.acceptance.profile import AcceptanceProfile
from specaudit.core.errors import InputError
from specaudit.stats import percentile_interval, ratio_bootstrap

RESAMPLES = 2000
CONFIDENCE = 0.95

Floats = NDArray[np.float64]


def article_formula(alpha: float, draft_cost_ratio: float, k: int) -> float:
    """``S = (1 + k alpha) / (1 + k c)``, often quoted; alpha is taken as the share of drafted tokens accepted."""
    return (1 + k * alpha) / (1 + k * draft_cost_ratio)


def leviathan_formula(alpha: float, draft_cost_ratio: float, k: int) -> float:
    """``S = (1 - alpha^(k+1)) / ((1 - alpha) (k c + 1))`` (Leviathan et al. arXiv:2211.17192, theorem 3.8)."""
    return float(sum(alpha**i for i in range(k + 1))) / (k * draft_cost_ratio + 1)


class RoundCosts:
    """C by drafted tokens at one batch size and context, from the rows of a cost table.

    Contexts and widths between measured ones are interpolated linearly; beyond them the nearest one holds.
    """

    def __init__(self, costs: dict[str, Any], batch: int, context: float) -> None:
        rows = [row for row in costs["rows"] if row["batch"] == batch]
        if not rows:
            known = sorted({row["batch"] for row in costs["rows"]})
            raise InputError("--batch-size", batch, f"the cost table has batches {known}", "measure that batch size")
        contexts = sorted({row["context"] for row in rows})
        self.drafted = np.array(sorted({row["k"] for row in rows}))
        by_cell = {(row["k"], row["context"]): row for row in rows}
        self.cost = np.array([self._at(by_cell, n, contexts, context, lambda r: r["round_cost"]) for n in self.drafted])
        # A percentile interval of a ratio, read as 3.92 standard errors of its logarithm.
        self.log_error = np.array(
            [
                self._at(by_cell, n, contexts, context, lambda r: np.log(r["interval"][1] / r["interval"][0]) / 3.92)
                for n in self.drafted
            ]
        )

    @staticmethod
    def _at(by_cell: Any, drafted: int, contexts: Sequence[int], context: float, part: Any) -> float:
        return float(np.interp(context, contexts, [part(by_cell[drafted, c]) for c in contexts]))

    @property
    def k_max(self) -> int:
        return int(self.drafted.max())

    def of(self, drafted: Any) -> Floats:
        return np.interp(drafted, self.drafted, self.cost)

    def error_of(self, drafted: float) -> float:
        return float(np.interp(drafted, self.drafted, self.log_error))


def predict(
    profile: AcceptanceProfile, figures: dict[str, Any], costs: dict[str, Any], generator: np.random.Generator,
    ks: Sequence[int] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The figures of a prediction for every k that both the profile and the cost table know, and every batch.

    ``S = tokens / sum over rounds of C(width)``: rounds of every width are weighed as the walk expects them, so a
    drafter that proposes less than k (prompt lookup, or the end of an output) is charged for what it does. A batch is
    taken to stay full, each of its rounds as wide as its widest row, rows being independent.

    Parameters
    ----------
    figures : dict
        ``profile.json``.
    costs : dict
        ``costs.json``.
    ks : sequence of int, optional
        What the best k is chosen from, for example those that were benched; every k by default.

    Raises
    ------
    InputError
        If the two are of different pairs.
    """
    for name in ("target", "draft"):
        if figures[name] != costs[name]:
            raise InputError(
                "--costs",
                costs[name],
                f"the profile's {name} is {figures[name]!r}",
                "measure the pair that was profiled",
            )
    rows = []
    for batch in sorted({row["batch"] for row in costs["rows"]}):
        table = RoundCosts(costs, batch, figures["mean_context"])
        for k in range(1, min(table.k_max, figures["k_max"]) + 1):
            rows.append(_row(profile, figures, costs["draft_cost_ratio"], table, k, batch, generator))
    best = max((row for row in rows if ks is None or row["k"] in ks), key=lambda row: row["predicted"])
    return {
        "target": figures["target"],
        "draft": figures["draft"],
        "rows": rows,
        "best": {name: best[name] for name in ("k", "batch", "predicted")},
    }


def _row(
    profile: AcceptanceProfile, figures: dict[str, Any], ratio: float, table: RoundCosts, k: int, batch: int,
    generator: np.random.Generator,
) -> dict[str, Any]:  # fmt: skip
    by_width = profile.walk.rounds_by_width[:, k - 1, : k + 1]
    weights = widest_of(by_width.sum(0) / by_width.sum(), batch)
    cost = float(weights @ table.of(np.arange(k + 1)))
    tokens, rounds = profile.lengths.astype(float), profile.walk.rounds[:, k - 1]
    per_round = tokens.sum() / rounds.sum()
    samples = _per_round_samples(tokens, rounds, generator) / cost
    samples = samples * np.exp(generator.normal(0.0, table.error_of(float(weights @ np.arange(k + 1))), len(samples)))
    low, high = percentile_interval(samples, CONFIDENCE)
    return {
        "k": k, "batch": batch, "tokens_per_round": float(per_round), "round_cost": cost,
        "predicted": float(per_round / cost), "interval": [float(low), float(high)],
        "probability_slower": float(np.mean(samples < 1)),
        "article_formula": article_formula(figures["alpha"], ratio, k),
        "leviathan_formula": leviathan_formula(figures["alpha"], ratio, k),
    }  # fmt: skip


def _per_round_samples(tokens: Floats, rounds: Floats, generator: np.random.Generator) -> Floats:
    if len(tokens) < 2:  # one prompt says nothing about others: no spread can be estimated from it
        return np.full(RESAMPLES, tokens.sum() / rounds.sum())
    return ratio_bootstrap(tokens, rounds, RESAMPLES, generator)


def widest_of(shares: Floats, batch: int) -> Floats:
    """The law of the widest of ``batch`` independent rounds, from the law of one."""
    below = np.clip(np.cumsum(shares), 0.0, 1.0) ** batch
    return np.diff(below, prepend=0.0)
