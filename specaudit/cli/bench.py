"""``specaudit bench``: measured speedup beside the predicted one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from specaudit.cli import options as o
from specaudit.core.errors import InputError

if TYPE_CHECKING:
    from specaudit.acceptance.pair import Pair
    from specaudit.core.protocols import Drafter
    from specaudit.cost.bench import Known

# What each preset puts in place of options that were not given.
PRESETS: dict[str, dict[str, Any]] = {
    "article": {
        "--target": "gpt2", "--draft": ["sshleifer/tiny-gpt2", "early-exit:3", "early-exit:10"],
        "--dataset": "zoo:prompts", "--k": "1,2,3", "--temperature": "0.8", "--chart": Path("article.svg"),
    },
}  # fmt: skip
DEFAULTS: dict[str, Any] = {"--k": "4", "--temperature": "0", "--chart": None}


def run(
    context: typer.Context,
    target: Annotated[str | None, typer.Option(help="Hub id, folder, FILE.gguf or zoo:tiny.")] = None,
    draft: Annotated[list[str] | None, typer.Option(help=f"{o.DRAFTS} Several, each with its own --draft.")] = None,
    dataset: o.MaybeDataset = None,
    split: o.Split = None,
    prompt_column: o.PromptColumn = None,
    category_column: o.CategoryColumn = None,
    limit: o.Limit = None,
    max_prompt_tokens: o.MaxPromptTokens = None,
    chat: o.Chat = None,
    k: Annotated[str | None, typer.Option("--k", help="Tokens drafted a round, as in 1,2,4. [default: 4]")] = None,
    temperature: Annotated[
        str | None, typer.Option(help="Temperatures, as in 0,0.8; 0 is greedy. [default: 0]")
    ] = None,
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
    sweeps: Annotated[
        int, typer.Option(help="Paired runs of every width that its costs are measured with; fewer are less exact.")
    ] = 9,
    seed: o.Seed = 0,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    tree: o.Tree = None,
    allow_pickle: o.AllowPickle = False,
    preset: Annotated[
        str | None,
        typer.Option(
            help="article: gpt2 with sshleifer/tiny-gpt2 and early exits 3 and 10 at k 1 to 3, T = 0.8, where "
            "--target, --draft, --dataset, --k, --temperature and --chart do not say otherwise."
        ),
    ] = None,
    chart: Annotated[Path | None, typer.Option(help="Also draw S by k, measured and predicted, to this .svg.")] = None,
    out: o.OutFile = None,
    as_json: o.Json = False,
) -> None:
    """Decode every prompt without and with each drafter, in turn, and compare."""
    from specaudit.cli import setting
    from specaudit.cli.console import note, progress, show
    from specaudit.core.artifacts import with_schema, write_json
    from specaudit.cost.timing import bind_threads

    bind_threads()
    given = with_preset(context, preset, {
        "--target": target, "--draft": draft, "--dataset": dataset, "--k": k, "--temperature": temperature,
        "--chart": chart,
    })  # fmt: skip
    chart, drafts = given["--chart"], given["--draft"]
    ks = sorted({int(value) for value in o.integers("--k", given["--k"])})
    settings = [
        setting.sampling(
            temperature=t, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed
        )
        for t in o.numbers("--temperature", given["--temperature"], float)
    ]
    for argument, value, least in (("--max-new-tokens", max_new_tokens, 1), ("--batch-size", batch_size, 1),
                                   ("--sweeps", sweeps, 2)):  # fmt: skip
        o.check_least(argument, value, least)
    check_written(out, chart)
    known = read_known(profile, costs, batch_size, drafts)
    workload = setting.workload(
        given["--dataset"], split=split, prompt_column=prompt_column, category_column=category_column, limit=limit,
        seed=seed, max_prompt_tokens=max_prompt_tokens,
    )  # fmt: skip
    pairs = setting.load_each(given["--target"], drafts, dtype, device, allow_pickle, tree)
    if known is not None:
        check_known(known, pairs[0])
    from specaudit.acceptance.pair import limits_of
    from specaudit.cost.bench import bench_with_prediction

    model = pairs[0].target
    chosen = setting.prompts(pairs[0], workload, chat=chat, max_prompt_tokens=max_prompt_tokens)
    if batch_size > len(chosen.ids):
        raise InputError("--batch-size", batch_size, f"there are {len(chosen.ids)} prompts", "lower it, or add prompts")
    drafters, limits = [cast("Drafter", pair.drafter) for pair in pairs], limits_of(model, max_new_tokens)
    rows: list[dict[str, Any]] = []
    for drafter in drafters:
        rows += bench_with_prediction(
            model, drafter, chosen.ids, settings, limits, ks, batch_size, known, sweeps, progress
        )[0]  # fmt: skip
    names = ", ".join(dict.fromkeys(row["draft"] for row in rows))
    figures: dict[str, Any] = {"target": model.name, "draft": names, "mode": "eager", "rows": rows}
    facts = {"settings": [dataclasses.asdict(params) for params in settings], "max_new_tokens": max_new_tokens}
    artifact = with_schema("bench", figures, setting.provenance(pairs[0], chosen, None, seed=seed, **facts,
                                                                **facts_of_drafts(pairs)))  # fmt: skip
    if out is not None:
        write_json(out, artifact)
    if chart is not None:
        from specaudit.report import draw_bench

        draw_bench(figures, chart)
        note(f"the chart is {chart}")
    show(artifact, lambda: print_bench(figures), as_json)


def with_preset(context: typer.Context, preset: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """The options, each as given, else as the preset has it, else by default."""
    if preset is not None and preset not in PRESETS:
        raise InputError("--preset", preset, "is not known", f"use {' or '.join(PRESETS)}")
    usual = {**DEFAULTS, **(PRESETS[preset] if preset is not None else {})}
    chosen = {name: usual.get(name) if value in (None, []) else value for name, value in given.items()}
    if preset is not None and given["--target"] and not given["--draft"]:
        raise InputError("--preset", preset, "has drafts for its own target alone", "name drafts with --draft")
    for name in ("--target", "--draft", "--dataset"):
        if not chosen[name]:
            raise o.UsageError(f"Missing option '{name}'", ctx=context)
    return chosen


def check_known(known: Known, pair: Pair) -> None:
    """Raises unless the pair that is benched is the one that was profiled."""
    assert pair.drafter is not None
    for name, loaded in (("target", pair.target.name), ("draft", pair.drafter.name)):
        if known.figures[name] != loaded:
            problem, remedy = f"the profile's {name} is {known.figures[name]!r}", "profile the pair that is benched"
            raise InputError(f"--{name}", loaded, problem, remedy)


def facts_of_drafts(pairs: list[Pair]) -> dict[str, Any]:
    """What provenance says of one drafter as it is, of several as lists; a lossy declaration of any is kept."""
    if len(pairs) == 1:
        return {}
    facts: dict[str, Any] = {name: [pair.facts[name] for pair in pairs] for name in ("draft", "draft_content")}
    return {**facts, "declares_lossy": next(filter(None, (pair.facts["declares_lossy"] for pair in pairs)), None)}


def check_written(out: Path | None, chart: Path | None) -> None:
    """Raises unless both files can be written."""
    from specaudit.core.artifacts import check_writable

    if chart is not None and chart.suffix != ".svg":
        raise InputError("--chart", chart, "is drawn as SVG", "name a file that ends in .svg")
    for argument, file in (("--out", out), ("--chart", chart)):
        if file is not None:
            check_writable(argument, file, folder=False)


def read_known(profile: Path | None, costs: Path | None, batch_size: int, drafts: list[str]) -> Known | None:
    """What to predict from, tried out at once: parts that do not fit each other should not cost a whole run."""
    if profile is None and costs is None:
        return None
    if profile is None or costs is None:
        raise InputError("--profile, --costs", profile or costs, "a prediction needs both", "give both or neither")
    if len(drafts) > 1:
        problem = "a profile and a cost table are of one pair"
        raise InputError("--draft", ", ".join(drafts), problem, "give one --draft, or no --profile and --costs")
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
    """Measured beside predicted, and beside what the two formulas make of alpha and c."""
    from specaudit.cli.console import table

    rows = [
        (row["draft"], row["k"], row["batch"], row["temperature"], row["alpha"], row["draft_cost_ratio"],
         row["tokens_per_round"], row["baseline_tokens_per_second"], row["tokens_per_second"], row["speedup"],
         row["speedup_interval"], row["predicted"], row["relative_error"], row["article_formula"],
         row["leviathan_formula"])
        for row in figures["rows"]
    ]  # fmt: skip
    columns = (
        "draft", "k", "batch", "T", "alpha", "c", "tokens/round", "baseline tok/s", "tok/s", "S", "95 % interval",
        "predicted S", "error", "article", "Leviathan",
    )  # fmt: skip
    first = 0 if len({row["draft"] for row in figures["rows"]}) > 1 else 1  # the title names one draft
    title = f"measured speedup of {figures['draft']} for {figures['target']}"
    table(title, columns[first:], [row[first:] for row in rows])
