"""``specaudit bench``: measured speedup beside the predicted one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specaudit.cli import options as o
from specaudit.core.errors import InputError

if TYPE_CHECKING:
    from specaudit.cost.bench import Known


def run(
    target: o.Target,
    draft: o.Draft,
    dataset: o.Dataset,
    split: o.Split = None,
    prompt_column: o.PromptColumn = None,
    category_column: o.CategoryColumn = None,
    limit: o.Limit = None,
    max_prompt_tokens: o.MaxPromptTokens = None,
    chat: o.Chat = None,
    k: Annotated[str, typer.Option("--k", help="Tokens drafted a round, for example 1,2,4.")] = "4",
    temperature: Annotated[str, typer.Option(help="Temperatures, for example 0,0.8; 0 is greedy.")] = "0",
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    repetition_penalty: o.RepetitionPenalty = 1.0,
    max_new_tokens: o.MaxNewTokens = 64,
    batch_size: o.BatchSize = 1,
    profile: Annotated[
        Path | None, typer.Option(help="Predict from this profile, where its sampling is the same.")
    ] = None,
    costs: Annotated[Path | None, typer.Option(help="Predict from this cost table.")] = None,
    seed: o.Seed = 0,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    tree: o.Tree = None,
    allow_pickle: o.AllowPickle = False,
    out: o.OutFile = None,
    as_json: o.Json = False,
) -> None:
    """Decode every prompt without and with the drafter, in turn, and compare."""
    from specaudit.cli import setting
    from specaudit.cli.console import progress, show
    from specaudit.core.artifacts import check_writable, with_schema, write_json
    from specaudit.cost.timing import bind_threads

    bind_threads()
    ks = sorted({int(value) for value in o.integers("--k", k)})
    settings = [
        setting.sampling(
            temperature=t, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed
        )
        for t in o.numbers("--temperature", temperature, float)
    ]
    for argument, value in (("--max-new-tokens", max_new_tokens), ("--batch-size", batch_size)):
        o.check_least(argument, value, 1)
    if (profile is None) != (costs is None):
        raise InputError("--profile, --costs", profile or costs, "a prediction needs both", "give both or neither")
    if out is not None:
        check_writable("--out", out, folder=False)
    known = read_known(profile, costs, batch_size) if profile is not None and costs is not None else None
    workload = setting.workload(
        dataset, split=split, prompt_column=prompt_column, category_column=category_column, limit=limit, seed=seed,
        max_prompt_tokens=max_prompt_tokens,
    )  # fmt: skip
    pair = setting.load(target, draft, dtype, device, allow_pickle, tree)
    assert pair.drafter is not None
    for name, loaded in (("target", pair.target.name), ("draft", pair.drafter.name)):
        if known is not None and known.figures[name] != loaded:
            problem, remedy = f"the profile's {name} is {known.figures[name]!r}", "profile the pair that is benched"
            raise InputError(f"--{name}", loaded, problem, remedy)
    from specaudit.acceptance.pair import limits_of
    from specaudit.cost.bench import bench_with_prediction

    chosen = setting.prompts(pair, workload, chat=chat, max_prompt_tokens=max_prompt_tokens)
    if batch_size > len(chosen.ids):
        raise InputError("--batch-size", batch_size, f"there are {len(chosen.ids)} prompts", "lower it, or add prompts")
    rows, _ = bench_with_prediction(
        pair.target, pair.drafter, chosen.ids, settings, limits_of(pair.target, max_new_tokens), ks, batch_size, known,
        progress,
    )  # fmt: skip
    figures: dict[str, Any] = {"target": pair.target.name, "draft": pair.drafter.name, "mode": "eager", "rows": rows}
    facts = {"settings": [dataclasses.asdict(params) for params in settings], "max_new_tokens": max_new_tokens}
    artifact = with_schema("bench", figures, setting.provenance(pair, chosen, None, seed=seed, **facts))
    if out is not None:
        write_json(out, artifact)
    show(artifact, lambda: print_bench(figures), as_json)


def read_known(profile: Path, costs: Path, batch_size: int) -> Known:
    """What to predict from, tried out at once: parts that do not fit each other should not cost a whole run."""
    import numpy as np

    from specaudit.acceptance.profile import read
    from specaudit.core.artifacts import read_json
    from specaudit.cost.bench import Known
    from specaudit.cost.predict import RoundCosts, predict

    known = Known(*read(profile), read_json("--costs", costs, "costs"))
    RoundCosts(known.costs, batch_size, known.figures["mean_context"])
    predict(known.profile, known.figures, known.costs, np.random.default_rng(0))
    return known


def print_bench(figures: dict[str, Any]) -> None:
    """Measured beside predicted."""
    from specaudit.cli.console import table

    rows = [
        (row["k"], row["batch"], row["temperature"], row["baseline_tokens_per_second"], row["tokens_per_second"],
         row["tokens_per_round"], row["speedup"], row["speedup_interval"], row["predicted"], row["relative_error"])
        for row in figures["rows"]
    ]  # fmt: skip
    columns = (
        "k", "batch", "T", "baseline tok/s", "tok/s", "tokens/round", "S", "95 % interval", "predicted S", "error",
    )  # fmt: skip
    table(f"measured speedup of {figures['draft']} for {figures['target']}", columns, rows)
