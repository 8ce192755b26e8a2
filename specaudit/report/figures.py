"""Figures of a report, each as a matplotlib Figure of its own; pyplot's state is not touched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specaudit.report.sections import measured_by_k
from specaudit.report.svg import BLUE, GREEN, INK, ORANGE, PAPER, PURPLE, house_style
from specaudit.report.wording import between, bounds, finite, number

Artifact = Mapping[str, Any]
Points = list[tuple[float, float, tuple[float, float] | None]]

MAXIMUM_CATEGORIES = 24
WIDTH_INCHES, HEIGHT_INCHES = 6.4, 3.9


def speedup_by_k(prediction: Artifact, profile: Artifact, bench: Artifact | None) -> Figure:
    """Predicted speedup at the best batch with its interval, both formulas, and what was measured."""
    batch = prediction["best"]["batch"]
    rows = sorted((row for row in prediction["rows"] if row["batch"] == batch), key=lambda row: row["k"])
    predicted = _points((row["k"], row["predicted"], row.get("interval")) for row in rows)
    measured = measured_by_k(bench, profile, batch)
    best = prediction["best"]
    description = f"Predicted speedup by k at batch {batch}; best {number(best['predicted'])} at k = {best['k']}."
    with _axes(f"draft tokens a round, k (batch {batch})", "speedup over the baseline (×)", description) as (
        figure,
        axes,
    ):
        _line(axes, predicted, "predicted, with interval", BLUE)
        for key, name, colour in (
            ("article_formula", "(1 + kα) / (1 + kc)", ORANGE),
            ("leviathan_formula", "Leviathan's formula", PURPLE),
        ):
            _dashed(axes, _points((row["k"], row.get(key), None) for row in rows), name, colour)
        points = _points((k, row["speedup"], row.get("speedup_interval")) for k, row in sorted(measured.items()))
        _error_bars(axes, points, "measured", GREEN)
        axes.axhline(1.0, color=INK, linewidth=1.2, linestyle=":", label="break-even")
        low, high = axes.get_ylim()
        tallest = max((ends[1] if ends else y for _, y, ends in [*predicted, *points]), default=high)
        # A formula that ignores what rounds cost grows without end; it leaves the frame before it flattens the rest.
        axes.set_ylim(min(low, 0.9), min(high, max(1.6 * tallest, 1.2)))
        _finish(axes, [row["k"] for row in rows])
        return figure


def acceptance_by_depth(profile: Artifact) -> Figure:
    """Acceptance of a draft token by its depth in the round; depths that were never reached are left out."""
    alphas = profile["alpha_by_depth"] or []
    intervals = profile.get("alpha_by_depth_interval") or []
    padded = [*intervals, *[None] * len(alphas)]
    points = _points((depth, alpha, padded[depth - 1]) for depth, alpha in enumerate(alphas, start=1))
    description = "Acceptance by draft depth: " + "; ".join(f"depth {x:.0f}, {number(y)}" for x, y, _ in points) + "."
    with _axes("depth in the round (tokens)", "acceptance probability α", description) as (figure, axes):
        _line(axes, points, "α at this depth, with interval", BLUE)
        _dashed_level(axes, profile.get("alpha"), "α over all depths")
        axes.set_ylim(0, 1.02)
        _finish(axes, range(1, len(alphas) + 1))
        return figure


def survival_by_depth(profile: Artifact) -> Figure:
    """The share of rounds in which every drafted token up to a depth was accepted."""
    shares = profile["survival_by_depth"]
    intervals = profile.get("survival_by_depth_interval") or [None] * len(shares)
    points = _points((depth, share, intervals[depth - 1]) for depth, share in enumerate(shares, start=1))
    description = "Rounds accepted up to a depth: " + "; ".join(f"depth {x:.0f}, {number(y)}" for x, y, _ in points)
    with _axes("depth in the round (tokens)", "share of rounds accepted so far", description) as (figure, axes):
        _line(axes, points, f"walk at k = {len(shares)}, with interval", BLUE)
        axes.set_ylim(0, 1.02)
        _finish(axes, range(1, len(shares) + 1))
        return figure


def acceptance_by_entropy(profile: Artifact) -> Figure:
    """Acceptance against the entropy of the target's distribution, a point for each tenth of the tokens."""
    rows = profile["views"]["entropy_decile"]
    points = _points(((row["from"] + row["to"]) / 2, row["alpha"], row["alpha_interval"]) for row in rows)
    description = "Acceptance by the target's entropy: " + "; ".join(
        f"{number(x)} nats, {number(y)}" for x, y, _ in points
    )
    with _axes("entropy of the target (nats, middle of each tenth)", "acceptance probability α", description) as (
        figure,
        axes,
    ):
        _line(axes, points, "α, with interval", BLUE)
        _dashed_level(axes, profile.get("alpha"), "α over all tokens")
        axes.set_ylim(0, 1.02)
        axes.legend(frameon=False, fontsize=9.5)
        return figure


def tokens_by_k(profile: Artifact, bench: Artifact | None = None, batch: int = 1) -> Figure:
    """Tokens per round by k: the walk, the estimates that are biased, and the decoder's own where measured."""
    walked, intervals = profile["tokens_per_round"] or {}, profile.get("tokens_per_round_interval") or {}
    points = _points((int(k), value, intervals.get(k)) for k, value in sorted(walked.items(), key=_by_k))
    biased = profile.get("biased_estimates") or {}
    names = {"uniform_starts": "uniform starts (biased)", "geometric": "geometric in mean α (biased)"}
    description = "Tokens per round by k: " + "; ".join(f"k = {x:.0f}, {number(y)}" for x, y, _ in points) + "."
    with _axes("draft tokens a round, k", "tokens emitted per round", description) as (figure, axes):
        _line(axes, points, "exact walk, with interval", BLUE)
        for (key, values), colour in zip(biased.items(), (ORANGE, PURPLE, GREEN), strict=False):
            estimate = _points((int(k), value, None) for k, value in sorted((values or {}).items(), key=_by_k))
            _dashed(axes, estimate, names.get(key, f"{_short(key)} (biased)"), colour)
        measured = sorted(measured_by_k(bench, profile, batch).items())
        _error_bars(
            axes, _points((k, row.get("tokens_per_round"), None) for k, row in measured), "the decoder's", GREEN
        )
        axes.set_ylim(bottom=min(1.0, axes.get_ylim()[0]))
        _finish(axes, [int(k) for k in walked])
        return figure


def acceptance_by_category(profile: Artifact) -> Figure:
    """Acceptance of each category of prompts, highest first; of very many, those with the most tokens."""
    rows = [(name, row) for name, row in (profile["by_category"] or {}).items() if finite(row.get("alpha"))]
    everything = len(rows)
    rows = sorted(rows, key=lambda item: -(item[1].get("tokens") or 0))[:MAXIMUM_CATEGORIES]
    selection = f"\n(the {len(rows)} largest of {everything} categories)" if len(rows) < everything else ""
    rows.sort(key=lambda item: item[1]["alpha"])
    description = "Acceptance by category: " + "; ".join(
        f"{name} {number(row['alpha'])} ({between(row.get('alpha_interval'))})" for name, row in reversed(rows)
    )
    height = 1.5 + 0.3 * max(len(rows), 2)
    with _axes(f"acceptance probability α{selection}", "", description, height_inches=height) as (figure, axes):
        for place, (_, row) in enumerate(rows):
            ends = bounds(row.get("alpha_interval"))
            if ends:
                axes.plot(ends, (place, place), color=BLUE, linewidth=2.2, alpha=0.55, solid_capstyle="round")
        alphas = [row["alpha"] for _, row in rows]
        sns.scatterplot(
            x=alphas, y=range(len(rows)), ax=axes, color=BLUE, s=46, label="α, with interval", legend=False, zorder=3
        )
        if finite(profile.get("alpha")):
            axes.axvline(profile["alpha"], color=ORANGE, linestyle="--", linewidth=1.4, label="α over all prompts")
        axes.set_yticks(range(len(rows)), [_short(name) for name, _ in rows])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.grid(visible=False, axis="y")
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9.5)
        return figure


def speedups_measured(bench: Artifact) -> Figure:
    """Measured speedup by k beside what was predicted (dashed), a colour for each drafter, temperature and batch."""
    named = {"temperature": "T", "batch": "batch"}
    several = {key: name for key, name in named.items() if len({row[key] for row in bench["rows"]}) > 1}
    series: dict[str, list[Any]] = {}
    for row in sorted(bench["rows"], key=lambda row: row["k"]):
        setting = "".join(f", {name} {row[key]:g}" for key, name in several.items())
        series.setdefault(row["draft"] + setting, []).append(row)
    description = f"Measured speedup over {bench['target']} by k: " + "; ".join(
        f"{name}, k = {row['k']}, {number(row['speedup'])}" for name, rows in series.items() for row in rows
    )
    with _axes("draft tokens a round, k", "speedup over the baseline (×)", description) as (figure, axes):
        for (name, rows), colour in zip(series.items(), sns.color_palette("colorblind", len(series)), strict=True):
            label = _short(name, 40)
            _error_bars(axes, _points((r["k"], r["speedup"], r["speedup_interval"]) for r in rows), label, colour)
            _dashed(axes, _points((r["k"], r["predicted"], None) for r in rows), f"{label}: predicted", colour)
        axes.axhline(1.0, color=INK, linewidth=1.2, linestyle=":", label="break-even")
        _finish(axes, sorted({row["k"] for row in bench["rows"]}))
        return figure


@contextlib.contextmanager
def _axes(
    x_label: str, y_label: str, description: str, height_inches: float = HEIGHT_INCHES
) -> Iterator[tuple[Figure, Axes]]:
    with house_style():
        figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        figure.set_label(description)
        axes = figure.subplots()
        axes.set(xlabel=x_label, ylabel=y_label)
        yield figure, axes


def _points(rows: Any) -> Points:
    return [(x, y, bounds(interval)) for x, y, interval in rows if finite(y)]


def _by_k(item: tuple[str, Any]) -> int:
    return int(item[0])


def _line(axes: Axes, points: Points, name: str, colour: str) -> None:
    x, y = [point[0] for point in points], [point[1] for point in points]
    sns.lineplot(
        x=x,
        y=y,
        ax=axes,
        color=colour,
        marker="o",
        markersize=5.5,
        markeredgecolor=PAPER,
        linewidth=2.0,
        label=name,
        estimator=None,
        errorbar=None,
        zorder=3,
    )
    low = [point[2][0] if point[2] else np.nan for point in points]
    high = [point[2][1] if point[2] else np.nan for point in points]
    axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    if len(points) == 1 and points[0][2]:
        # A band over one point has no width.
        axes.plot((x[0], x[0]), points[0][2], color=colour, alpha=0.5, linewidth=2.2)


def _dashed(axes: Axes, points: Points, name: str, colour: Any) -> None:
    if points:
        x, y = [point[0] for point in points], [point[1] for point in points]
        marker = "s" if len(points) == 1 else ""
        axes.plot(x, y, color=colour, linestyle="--", linewidth=1.5, marker=marker, markersize=4, label=name)


def _dashed_level(axes: Axes, value: float | None, name: str) -> None:
    if finite(value):
        axes.axhline(value, color=ORANGE, linestyle="--", linewidth=1.4, label=name)


def _error_bars(axes: Axes, points: Points, name: str, colour: Any) -> None:
    if not points:
        return
    below = [max(y - ends[0], 0.0) if ends else 0.0 for _, y, ends in points]
    above = [max(ends[1] - y, 0.0) if ends else 0.0 for _, y, ends in points]
    axes.errorbar(
        [point[0] for point in points],
        [point[1] for point in points],
        yerr=(below, above),
        fmt="D",
        color=colour,
        markersize=5.5,
        markeredgecolor=PAPER,
        elinewidth=1.6,
        capsize=3.5,
        label=name,
        zorder=4,
    )


def _finish(axes: Axes, places: Sequence[int] | range) -> None:
    if places:
        axes.set_xticks(sorted(places)[:: 1 + len(places) // 17])
        axes.set_xlim(min(places) - 0.4, max(places) + 0.4)
    axes.legend(frameon=False, fontsize=9.5)


def _short(name: str, limit: int = 28) -> str:
    name = " ".join("".join(character if character.isprintable() else " " for character in str(name)).split())
    return name if len(name) <= limit else name[: limit - 1] + "…"
