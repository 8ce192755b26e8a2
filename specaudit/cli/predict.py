"""``specaudit predict``: the speedup of every k, from a profile and a cost table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specaudit.cli import options as o


def run(
    profile: Annotated[Path, typer.Option(help="Folder that `specaudit profile` wrote.")],
    costs: Annotated[Path, typer.Option(help="File that `specaudit measure` wrote.")],
    seed: o.Seed = 0,
    out: o.OutFile = None,
    as_json: o.Json = False,
) -> None:
    """Predict S for every k and batch, with intervals and the two formulas that are often used instead."""
    from specaudit.cli.console import show
    from specaudit.core.artifacts import check_writable, provenance, read_json, with_schema, write_json

    if out is not None:
        check_writable("--out", out, folder=False)
    table = read_json("--costs", costs, "costs")
    import numpy as np

    from specaudit.acceptance.profile import read
    from specaudit.cost.predict import predict

    walked, figures = read(profile)
    prediction = predict(walked, figures, table, np.random.default_rng(seed))
    artifact = with_schema(
        "prediction", prediction, provenance(profile=figures["provenance"], costs=table["provenance"], seed=seed)
    )
    if out is not None:
        write_json(out, artifact)
    show(artifact, lambda: print_prediction(prediction), as_json)


def print_prediction(prediction: dict[str, Any]) -> None:
    """The prediction as a table."""
    from specaudit.cli.console import figure, table

    rows = [
        (row["k"], row["batch"], row["tokens_per_round"], row["round_cost"], row["predicted"], row["interval"],
         row["probability_slower"], row["article_formula"], row["leviathan_formula"])
        for row in prediction["rows"]
    ]  # fmt: skip
    columns = ("k", "batch", "tokens/round", "round cost", "S", "95 % interval", "P(slower)", "article", "Leviathan")
    table(f"predicted speedup of {prediction['draft']} for {prediction['target']}", columns, rows)
    best = prediction["best"]
    print(f"best: k = {best['k']} at batch {best['batch']}, S = {figure(best['predicted'])}")
