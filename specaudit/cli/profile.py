"""``specaudit profile``: acceptance on a data set, for every k, from one scoring pass."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from specaudit.cli import options as o


def run(
    target: o.Target,
    draft: o.Draft,
    dataset: o.Dataset,
    out: o.OutFolder,
    split: o.Split = None,
    prompt_column: o.PromptColumn = None,
    category_column: o.CategoryColumn = None,
    limit: o.Limit = None,
    max_prompt_tokens: o.MaxPromptTokens = None,
    chat: o.Chat = None,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    repetition_penalty: o.RepetitionPenalty = 1.0,
    max_new_tokens: o.MaxNewTokens = 64,
    batch_size: o.BatchSize = 8,
    seed: o.Seed = 0,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    tree: o.Tree = None,
    allow_pickle: o.AllowPickle = False,
    figures: Annotated[bool, typer.Option("--figures", help="Also draw them as SVG, into OUT/figures.")] = False,
    as_json: o.Json = False,
) -> None:
    """Generate with the target, score with target and drafter, and walk the rounds of every k."""
    from specaudit.cli import setting
    from specaudit.cli.console import progress, show
    from specaudit.core.artifacts import check_writable, with_schema

    params = setting.sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed
    )
    for argument, value in (("--max-new-tokens", max_new_tokens), ("--batch-size", batch_size)):
        o.check_least(argument, value, 1)
    check_writable("--out", out, folder=True)
    workload = setting.workload(
        dataset, split=split, prompt_column=prompt_column, category_column=category_column, limit=limit, seed=seed,
        max_prompt_tokens=max_prompt_tokens,
    )  # fmt: skip
    pair = setting.load(target, draft, dtype, device, allow_pickle, tree)
    from specaudit.acceptance.pair import decode_prompts, limits_of
    from specaudit.acceptance.profile import profile_outputs, write

    chosen = setting.prompts(pair, workload, chat=chat, max_prompt_tokens=max_prompt_tokens)
    limits = limits_of(pair.target, max_new_tokens)
    outputs = decode_prompts(pair, chosen, params, limits, batch_size=batch_size, progress=progress("generate"))
    assert pair.drafter is not None
    profile, found = profile_outputs(
        pair.target, pair.drafter, outputs, max_new_tokens, seed=seed, progress=progress("score")
    )
    where_from = setting.provenance(pair, chosen, params, max_new_tokens=max_new_tokens, batch_size=batch_size)
    write(out, profile, found, where_from)
    if figures:
        from specaudit.report.rendering import draw_profile

        draw_profile(found, out / "figures")
    show(with_schema("profile", found, where_from), lambda: print_profile(found), as_json)


def print_profile(figures: dict[str, Any]) -> None:
    """The profile as tables."""
    from specaudit.cli.console import figure, table

    print(f"{figures['draft']} for {figures['target']}: {figures['prompts']} prompts, {figures['tokens']} tokens")
    print(f"alpha {figure(figures['alpha'])} ({figure(figures['alpha_interval'])})")
    biased = figures["biased_estimates"]
    rows = [
        (k, figures["alpha_by_depth"][int(k) - 1], value, figures["tokens_per_round_interval"][k],
         biased["uniform_starts"][k], biased["geometric"][k])
        for k, value in figures["tokens_per_round"].items()
    ]  # fmt: skip
    columns = ("k", "alpha at depth", "tokens a round", "95 % interval", "biased: uniform starts", "biased: geometric")
    table("the walk", columns, rows)
    categories = [
        (name, row["prompts"], row["tokens"], row["alpha"], row["alpha_interval"], row["tokens_per_round"]["4"])
        for name, row in figures["by_category"].items()
        if "4" in row["tokens_per_round"]
    ]
    if categories:
        table(
            "by category",
            ("category", "prompts", "tokens", "alpha", "95 % interval", "tokens a round, k = 4"),
            categories,
        )
    print_views(figures["views"])


def print_views(views: dict[str, Any]) -> None:
    """Where the draft is accepted and where it is not."""
    from specaudit.cli.console import figure, table

    titles = {
        "entropy_decile": ("by the target's entropy, in tenths of the tokens", "nats"),
        "position": ("by the place in the answer", "tokens"),
        "prompt_tokens": ("by the prompt's length", "tokens"),
    }
    for name, (title, unit) in titles.items():
        rows = [
            (figure([row["from"], row["to"]]), row["prompts"], row["tokens"], row["alpha"], row["alpha_interval"])
            for row in views[name]
        ]
        table(title, (unit, "prompts", "tokens", "alpha", "95 % interval"), rows)
    worst = [
        (str(row["prompt"]), row["category"], row["tokens"], row["alpha"], row["tokens_per_round"])
        for row in views["worst_prompts"]
    ]
    table("prompts that accept worst", ("prompt", "category", "tokens", "alpha", "tokens a round"), worst)
