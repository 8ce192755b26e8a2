"""``specaudit measure``: what a round costs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specaudit.cli import options as o
from specaudit.core.errors import InputError


def run(
    target: o.Target,
    draft: o.Draft,
    out: Annotated[Path, typer.Option(help="File to write, for example costs.json.")],
    dataset: o.Dataset = "zoo:prompts",
    prompt_column: o.PromptColumn = None,
    k: Annotated[int, typer.Option("--k", help="Measure rounds of 0 to k drafted tokens.")] = 8,
    batch_size: Annotated[str, typer.Option(help="Batch sizes, for example 1,8.")] = "1",
    contexts: Annotated[str, typer.Option(help="Context lengths in tokens, for example 128,1024.")] = "128",
    rounds: Annotated[int, typer.Option(help="Rounds in a run.")] = 16,
    pairs: Annotated[int, typer.Option(help="Pairs of round run and baseline run.")] = 9,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    repetition_penalty: o.RepetitionPenalty = 1.0,
    seed: o.Seed = 0,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    tree: o.Tree = None,
    allow_pickle: o.AllowPickle = False,
    as_json: o.Json = False,
) -> None:
    """Measure the cost table, with acceptance forced to every count in turn."""
    from specaudit.cli import setting
    from specaudit.cli.console import progress, show
    from specaudit.core.artifacts import check_writable, with_schema, write_json
    from specaudit.cost.timing import bind_threads

    bind_threads()
    params = setting.sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed
    )
    for argument, value, least in (("--k", k, 1), ("--rounds", rounds, 4), ("--pairs", pairs, 2)):
        o.check_least(argument, value, least)
    batches, lengths = o.integers("--batch-size", batch_size), o.integers("--contexts", contexts)
    check_writable("--out", out, folder=False)
    workload = setting.workload(dataset, prompt_column=prompt_column, seed=seed)
    pair = setting.load(target, draft, dtype, device, allow_pickle, tree)
    from specaudit.cost.measure import Plan, measure

    room = pair.target.max_context - (rounds + 4) * (k + 2)
    if max(lengths) > room:
        raise InputError(
            "--contexts", contexts, f"with these rounds {pair.target.name} has room for {room}", "shorten it"
        )
    chosen = setting.prompts(pair, workload, chat=False, max_prompt_tokens=pair.target.max_context - 1)
    plan = Plan(k=k, batches=tuple(batches), contexts=tuple(lengths), rounds=rounds, pairs=pairs)
    assert pair.drafter is not None
    costs = measure(pair.target, pair.drafter, chosen.ids, params, plan, progress("measure"))
    artifact = with_schema("costs", costs, setting.provenance(pair, chosen, params, rounds=rounds, pairs=pairs))
    write_json(out, artifact)
    show(artifact, lambda: print_costs(costs), as_json)


def print_costs(costs: dict[str, Any]) -> None:
    """The cost table."""
    from specaudit.cli.console import figure, table

    print(f"{costs['draft']} for {costs['target']}, {costs['mode']} mode")
    print(f"one baseline step: {costs['baseline_seconds'] * 1000:.3g} ms")
    print(f"one draft step over one baseline step: c = {figure(costs['draft_cost_ratio'])}")
    rows = [
        (
            row["k"],
            row["width"],
            row["batch"],
            row["context"],
            row["round_cost"],
            row["interval"],
            row["seconds"] * 1000,
        )
        for row in costs["rows"]
    ]
    table("rounds", ("drafted", "width", "batch", "context", "cost in steps", "95 % interval", "ms"), rows)
