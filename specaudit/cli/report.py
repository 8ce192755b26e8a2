"""``specaudit report``: from artifacts to a decision."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specaudit.cli import options as o
from specaudit.core.errors import InputError


def run(
    profile: Annotated[Path, typer.Option(help="Folder that `specaudit profile` wrote.")],
    costs: Annotated[Path, typer.Option(help="File that `specaudit measure` wrote.")],
    audit: Annotated[Path, typer.Option(help="File that `specaudit audit --out` wrote.")],
    out: o.OutFolder,
    bench: Annotated[Path | None, typer.Option(help="File that `specaudit bench --out` wrote.")] = None,
    policy: Annotated[Path | None, typer.Option(help="Thresholds, as TOML.")] = None,
    seed: o.Seed = 0,
    as_json: o.Json = False,
) -> int:
    """Decide, and write index.html, report.json, summary.md and junit.xml."""
    from specaudit.cli.console import show
    from specaudit.core.artifacts import check_writable, machine, provenance, read_json, with_schema
    from specaudit.report import decide, exit_code, load_policy, render, summary_text

    check_writable("--out", out, folder=True)
    rules = load_policy(policy)
    table, audited = read_json("--costs", costs, "costs"), read_json("--audit", audit, "audit")
    measured = read_json("--bench", bench, "bench") if bench is not None else None
    import numpy as np
    import torch  # noqa: F401  (machine() reads the threads and the accelerator from it)

    from specaudit.acceptance.profile import read
    from specaudit.cost.predict import predict

    walked, figures = read(profile)
    check_same_pair(figures, {"--audit": audited, **({"--bench": measured} if measured else {})})
    prediction = predict(walked, figures, table, np.random.default_rng(seed))
    decision = decide(
        profile=figures,
        costs=table,
        prediction=prediction,
        audit=audited,
        bench=measured,
        policy=rules,
        machine=machine(),
    )
    sources = {"profile": figures, "costs": table, "audit": audited, **({"bench": measured} if measured else {})}
    where_from = provenance(seed=seed, **{name: source["provenance"] for name, source in sources.items()})
    decision = {**decision, "provenance": where_from}
    render(decision, profile=figures, costs=table, prediction=prediction, audit=audited, bench=measured, out=out)
    show(with_schema("report", decision, where_from), lambda: print(summary_text(decision)), as_json)
    return exit_code(decision["decision"])


def check_same_pair(figures: dict[str, Any], artifacts: dict[str, dict[str, Any]]) -> None:
    """Raises unless every artifact is of the profile's pair; an audit without a draft is of its target alone."""
    for argument, artifact in artifacts.items():
        for name in ("target", "draft"):
            found = artifact.get(name)
            if found is not None and found != figures[name]:
                problem = f"the profile's {name} is {figures[name]!r}"
                raise InputError(argument, found, problem, "give artifacts of one pair")
