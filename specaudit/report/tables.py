"""The tables of the page, as text in cells; the template only lays them out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specaudit.report.wording import MISSING, between, number, percent

Artifact = Mapping[str, Any]


Columns = tuple[tuple[str, bool], ...]


@dataclass(frozen=True)
class Table:
    """A caption, columns as (heading, whether it holds numbers), and rows of text.

    ``chosen`` is the row to point out, if any; ``folded`` tables open on demand.
    """

    caption: str
    columns: Columns
    rows: tuple[tuple[str, ...], ...]
    chosen: int | None = None
    folded: bool = False


def _numeric(*names: str) -> Columns:
    return tuple((name, True) for name in names)


_PREDICTED_COLUMNS = _numeric(
    "k", "batch", "tokens per round", "round cost", "speedup", "interval", "P(slower)", "(1 + kα)/(1 + kc)", "Leviathan"
)


def predictions(prediction: Artifact) -> list[Table]:
    """Every predicted row: a table for the best batch, its best row pointed out, and one for the other batches."""
    best = prediction["best"]
    rows = sorted(prediction["rows"], key=lambda row: (row["batch"], row["k"]))
    here = [row for row in rows if row["batch"] == best["batch"]]
    chosen = [row["k"] for row in here].index(best["k"])
    note = "round cost in baseline steps; the last two columns are formulas to compare with"
    caption = f"Predicted speedup of every k at batch {number(best['batch'])}; {note}"
    others = tuple(_predicted_cells(row) for row in rows if row["batch"] != best["batch"])
    return [
        Table(caption, _PREDICTED_COLUMNS, tuple(map(_predicted_cells, here)), chosen),
        Table("Predicted speedup at other batches", _PREDICTED_COLUMNS, others, folded=True),
    ]


def _predicted_cells(row: Artifact) -> tuple[str, ...]:
    return (
        number(row["k"]),
        number(row["batch"]),
        number(row.get("tokens_per_round")),
        number(row.get("round_cost")),
        _times(row["predicted"]),
        between(row.get("interval")),
        percent(row.get("probability_slower")),
        _times(row.get("article_formula")),
        _times(row.get("leviathan_formula")),
    )


def measurements(bench: Artifact) -> Table:
    """Every measured row, whatever its temperature."""
    names = ("k", "batch", "temperature", "baseline tokens/s", "tokens/s", "speedup", "interval", "predicted", "error")
    cells = tuple(
        (
            number(row["k"]),
            number(row["batch"]),
            number(row.get("temperature"), 2),
            number(row.get("baseline_tokens_per_second")),
            number(row.get("tokens_per_second")),
            _times(row.get("speedup")),
            between(row.get("speedup_interval")),
            _times(row.get("predicted")),
            percent(row.get("relative_error")),
        )
        for row in sorted(bench["rows"], key=lambda row: (row["batch"], row.get("temperature") or 0.0, row["k"]))
    )
    return Table("Measured speedup, baseline and speculative runs through the same loop", _numeric(*names), cells)


def audit_tests(audit: Artifact) -> Table:
    """Every test of the audit."""
    columns = (("test", False), ("statistic", True), ("p-value", True), ("log10 e", True), ("flagged", False))
    cells = tuple(
        (
            str(test["name"]).replace("_", " "),
            number(test.get("statistic")),
            number(test.get("p_value")),
            number(test.get("log10_e")),
            "yes" if test.get("flagged") else "no",
        )
        for test in audit.get("tests") or []
    )
    return Table("Tests of the audit; the verdict rests on all of them at one false-alarm rate", columns, cells)


def categories(profile: Artifact, k: int) -> Table:
    """Every category, highest acceptance first, with its tokens per round at this k."""
    columns = (("category", False), *_numeric("prompts", "tokens", "α", "interval", f"tokens per round at k = {k}"))
    found = sorted((profile["by_category"] or {}).items(), key=lambda item: -(item[1].get("alpha") or 0.0))
    cells = tuple(
        (
            str(name),
            number(row.get("prompts")),
            number(row.get("tokens")),
            number(row.get("alpha")),
            between(row.get("alpha_interval")),
            number((row.get("tokens_per_round") or {}).get(str(k))),
        )
        for name, row in found
    )
    return Table("Acceptance by category of prompts", columns, cells)


def costs_table(costs: Artifact) -> Table:
    """Every measured cost."""
    verify_ratio = costs.get("verify_ratio") or {}
    names = ("rows a sequence", "k", "batch", "context", "round cost", "interval", "ms a round", "verify pass")
    cells = tuple(
        (
            number(row["width"]),
            number(row.get("k")),
            number(row["batch"]),
            number(row.get("context")),
            number(row["round_cost"]),
            between(row.get("interval")),
            number(1000 * row["seconds"]) if row.get("seconds") is not None else MISSING,
            number(verify_ratio.get(str(row["width"]))),
        )
        for row in costs["rows"]
    )
    return Table(
        "Measured cost of a round, and of its verify pass alone, in baseline steps",
        _numeric(*names),
        cells,
        folded=True,
    )


def facts(name: str, artifact: Artifact) -> Table:
    """An artifact's provenance, nested names joined by dots."""
    rows = tuple(_flat(artifact.get("provenance") or {"provenance": "not recorded"}))
    return Table(f"{name} ({artifact.get('schema', 'no schema')})", (("field", False), ("value", False)), rows)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, str):
        yield name, value
    else:
        yield name, json.dumps(value, ensure_ascii=False, default=str)


def _times(value: float | None) -> str:
    text = number(value)
    return text if text == MISSING else f"{text}×"
