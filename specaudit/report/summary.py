"""The report in short: for a pull request, and for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from specaudit.report.wording import MARKS, MISSING, between, label, number, verdict_clause

Report = Mapping[str, Any]

_SIGNS = {True: "✅", False: "❌", None: "❔"}


def headline(report: Report, times: str = "×") -> str:
    """One sentence with the speedup, where it is reached, and what the audit says."""
    speedup, lossless = report["speedup"], report["lossless"]
    interval = f" ({between(speedup['interval'], times)})" if speedup["interval"] else ""
    measured = f", {number(speedup['measured'])}{times} measured" if speedup["measured"] is not None else ""
    return (
        f"{number(speedup['predicted'])}{times} predicted{interval}{measured} at k = {speedup['k']} "
        f"and batch {speedup['batch']}; {verdict_clause(lossless)}."
    )


def summary_text(report: Report) -> str:
    """Lines for a terminal: the decision, the headline, and each gate with its reason."""
    lines = [f"{report['decision'].upper()}: {headline(report, 'x')}"]
    width = max(len(label(reason["gate"])) for reason in report["reasons"])
    for reason in report["reasons"]:
        mark = MARKS[reason["passed"]]
        lines.append(f"  {mark:<9}  {label(reason['gate']):<{width}}  {reason['text']}")
    return "\n".join(lines)


def summary_markdown(report: Report) -> str:
    """A short comment for a pull request: the decision, the gates and the speedup of every k."""
    by_k, acceptance, cost = report["speedup"]["by_k"], report["acceptance"], report["cost"]
    gates = [
        (f"{_SIGNS[reason['passed']]} {MARKS[reason['passed']]}", label(reason["gate"]), reason["text"])
        for reason in report["reasons"]
    ]
    speedups = [
        (
            f"**{k}**" if k == str(report["speedup"]["k"]) else k,
            number((acceptance["tokens_per_round"] or {}).get(k)),
            number((cost["round_cost"] or {}).get(k)),
            f"{number(row['predicted'])}×",
            between(row["interval"], "×"),
            f"{number(row['measured'])}×" if row["measured"] is not None else MISSING,
        )
        for k, row in by_k.items()
    ]
    columns = ("k", "tokens per round", "round cost", "predicted speedup", "interval", "measured")
    parts = [
        f"## Speculative decoding: {report['decision']}",
        f"{_code(report['draft'])} drafts for {_code(report['target'])}. {_escaped(headline(report))}",
        _table(("Result", "Gate", "Why"), gates),
        f"Speedup by k at batch {report['speedup']['batch']} (one baseline step costs 1):",
        _table(columns, speedups, right=True),
    ]
    return "\n\n".join(parts) + "\n"


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]], *, right: bool = False) -> str:
    columns = list(columns)
    rule = ["---:" if right else "---"] * len(columns)
    # A bold mark is the table's own; everything else comes from artifacts.
    cells = [[cell if cell.startswith("**") else _escaped(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in [columns, rule, *cells])


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no links, no images, one table cell."""
    text = re.sub(r"([\\`*\[\]|~])", r"\\\1", " ".join(text.split()))
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _code(name: object) -> str:
    text = " ".join(str(name).replace("`", "'").split()) if name else ""
    return f"`{text}`" if text else "An unnamed model"
