"""``specaudit gate``: a written report against a policy, for a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specaudit.cli import options as o


def run(
    report: Annotated[Path, typer.Argument(help="report.json")],
    policy: Annotated[Path | None, typer.Option(help="Thresholds, as TOML.")] = None,
    as_json: o.Json = False,
) -> int:
    """Judge a report again, under this policy: exit 0 for go, 1 for no-go, 3 for undecided."""
    from specaudit.cli.console import show
    from specaudit.core.artifacts import read_json
    from specaudit.report import exit_code, judge, load_policy, summary_text

    judged = judge(read_json("REPORT", report, "report"), load_policy(policy))
    show(judged, lambda: print(summary_text(judged)), as_json)
    return exit_code(judged["decision"])
