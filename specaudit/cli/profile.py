"""``specaudit profile``: acceptance on a data set, for every k, from one scoring pass."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specaudit.cli import options as o
from specaudit.core.errors import InputError

if TYPE_CHECKING:
    from specaudit.acceptance.pair import Pair, PromptSet
    from specaudit.acceptance.pieces import Piece
    from specaudit.acceptance.profile import AcceptanceProfile
    from specaudit.core.types import SamplingParams


def run(
    context: typer.Context,
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[PROFILE]...", help="Instead: show these profiles side by side.")
    ] = None,
    target: o.MaybeTarget = None,
    draft: o.MaybeDraft = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write to.")] = None,
    dataset: o.MaybeDataset = None,
    transcripts: Annotated[
        Path | None, typer.Option(help="Profile these outputs of the target instead of decoding.")
    ] = None,
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
    """Generate with the target, score with target and drafter, and walk the rounds of every k.

    What is done is kept beside OUT, in OUT.profiling: a run that was interrupted goes on where it was. With the folders
    of finished profiles instead of a pair it shows these side by side.
    """
    from specaudit.cli import setting
    from specaudit.cli.console import show
    from specaudit.core.artifacts import check_writable, with_schema

    if folders:
        _check_alone(folders, target, draft, dataset, transcripts, out)
        return _side_by_side(folders, seed, as_json)
    for name, given in (("--target", target), ("--draft", draft), ("--out", out)):
        if given is None:
            raise o.UsageError(f"Missing option '{name}'", ctx=context)
    assert target is not None and draft is not None and out is not None
    params = setting.sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed
    )
    for argument, value in (("--max-new-tokens", max_new_tokens), ("--batch-size", batch_size)):
        o.check_least(argument, value, 1)
    if (dataset is None) == (transcripts is None):
        named = "neither" if dataset is None else "both"
        raise InputError("--dataset, --transcripts", named, "a profile needs one of them", "give prompts or outputs")
    check_writable("--out", out, folder=True)
    # The data before the models: a bad file should cost no loading.
    logged = _Logged.read(transcripts) if transcripts is not None else None
    workload = None
    if dataset is not None:
        workload = setting.workload(
            dataset, split=split, prompt_column=prompt_column, category_column=category_column, limit=limit, seed=seed,
            max_prompt_tokens=max_prompt_tokens,
        )  # fmt: skip
    pair = setting.load(target, draft, dtype, device, allow_pickle, tree)
    if workload is not None:
        chosen = setting.prompts(pair, workload, chat=chat, max_prompt_tokens=max_prompt_tokens)
        source = _of_prompts(pair, chosen, params, max_new_tokens, batch_size)
    else:
        assert logged is not None
        source = _of_transcripts(logged, seed)
    from specaudit.acceptance.profile import write

    profile, found, where_from = _profiled(pair, source, Path(f"{out}.profiling"), tree, seed)
    write(out, profile, found, where_from)
    shutil.rmtree(f"{out}.profiling")
    if figures:
        from specaudit.report.rendering import draw_profile

        draw_profile(found, out / "figures")
    show(with_schema("profile", found, where_from), lambda: print_profile(found), as_json)


@dataclass(frozen=True)
class _Source:
    """What is profiled: ``key`` says which outputs these are, and ``facts`` go into the provenance."""

    pieces: Iterable[Piece]
    count: int
    params: SamplingParams
    max_new_tokens: int | None
    key: dict[str, Any]
    facts: dict[str, Any]
    prompts: PromptSet | None = None


def _of_prompts(pair: Pair, chosen: PromptSet, params: SamplingParams, max_new_tokens: int, batch_size: int) -> _Source:
    from specaudit.acceptance.pair import limits_of
    from specaudit.acceptance.pieces import of_prompts

    digest = hashlib.sha256(json.dumps([chosen.ids, chosen.categories]).encode()).hexdigest()[:16]
    key = {"prompts": digest, "max_new_tokens": max_new_tokens, "batch_size": batch_size}
    pieces = of_prompts(pair, chosen, params, limits_of(pair.target, max_new_tokens), batch_size)
    return _Source(pieces, len(chosen.ids), params, max_new_tokens, key, {"batch_size": batch_size}, chosen)


def _of_transcripts(logged: _Logged, seed: int) -> _Source:
    from specaudit.acceptance.pieces import of_transcripts
    from specaudit.cli.console import note

    if logged.empty:
        note(f"left out {logged.empty} transcripts of {logged.path}: no output token")
    params = replace(logged.params, seed=seed)
    facts = {"transcripts_file": str(logged.path), "transcripts_content": logged.content}
    key = {"transcripts": logged.content}
    return _Source(of_transcripts(logged.path), logged.count, params, logged.max_new_tokens, key, facts)


def _profiled(
    pair: Pair, source: _Source, folder: Path, tree: str | None, seed: int
) -> tuple[AcceptanceProfile, dict[str, Any], dict[str, Any]]:
    """The profile, its figures and where they come from; ``folder`` keeps what an interrupted run has done."""
    from specaudit.acceptance.pieces import score_pieces
    from specaudit.acceptance.profile import from_tokens, profile_figures
    from specaudit.acceptance.shards import Shards
    from specaudit.cli import setting
    from specaudit.cli.console import note, progress

    assert pair.drafter is not None
    shards = Shards(folder, {**pair.facts, "tree": tree, "sampling": source.params.as_dict(), **source.key})
    for name in shards.damaged:
        note(f"{folder / name} is gone or not what was written: its piece is scored again")
    for _ in progress("profile")(score_pieces(pair, source.pieces, shards), 2 * source.count):
        pass
    profile = from_tokens(shards.tokens())
    found = profile_figures(pair.target, pair.drafter, profile, source.params, source.max_new_tokens, seed)
    facts = {"max_new_tokens": source.max_new_tokens, **source.facts}
    return profile, found, setting.provenance(pair, source.prompts, source.params, **facts)


def _check_alone(folders: list[Path], *others: str | Path | None) -> None:
    if any(other is not None for other in others):
        problem = "finished profiles are shown side by side, without a pair, data or --out"
        raise InputError("PROFILE", folders[0], problem, "leave out the one or the other")


def _side_by_side(folders: list[Path], seed: int, as_json: bool) -> None:
    from specaudit.acceptance.comparison import compare
    from specaudit.cli.console import note, show
    from specaudit.core.artifacts import provenance, with_schema

    figures = compare(folders, seed)
    for row in figures["profiles"]:
        if row["differs"]:
            note(f"{row['profile']} differs from {folders[0]} in {', '.join(row['differs'])}: no ratio is given")
    show(with_schema("comparison", figures, provenance(seed=seed)), lambda: print_comparison(figures), as_json)


def print_comparison(figures: dict[str, Any]) -> None:
    """Tokens per round of several profiles, by k and by category."""
    from specaudit.cli.console import figure, table

    rows = figures["profiles"]
    about = [(r["profile"], r["draft"], r["prompts"], r["tokens"], r["alpha"], r["alpha_interval"]) for r in rows]
    table("profiles side by side", ("profile", "draft", "prompts", "tokens", "alpha", "95 % interval"), about)

    def cell(row: dict[str, Any], k: str) -> str:
        shown = figure(row["tokens_per_round"].get(k))
        over = (row["over_first"] or {}).get(k)
        return shown if over is None else f"{shown} (x {figure(over['ratio'])}, {figure(over['interval'])})"

    names = [row["profile"] for row in rows]
    ks = rows[0]["tokens_per_round"]
    title = "tokens a round; in brackets over the first, with its 95 % interval by prompt"
    table(title, ("k", *names), [(k, *(cell(row, k) for row in rows)) for k in ks])
    categories = sorted({category for row in rows for category in row["by_category"]})
    alphas = [(one, *(row["by_category"].get(one, {}).get("alpha") for row in rows)) for one in categories]
    if alphas:
        table("alpha by category", ("category", *names), alphas)


@dataclass(frozen=True)
class _Logged:
    """What a file of transcripts holds, as far as it is needed before any is scored."""

    path: Path
    count: int
    empty: int
    params: SamplingParams
    max_new_tokens: int | None
    content: str

    @classmethod
    def read(cls, path: Path) -> _Logged:
        from specaudit.core.artifacts import content_hash
        from specaudit.engines.checks import one_setting
        from specaudit.engines.transcripts import read

        kinds, budgets, count, empty = {}, set(), 0, 0
        for transcript in read(path):
            kinds.setdefault(replace(transcript.sampling, seed=0), transcript)
            budgets.add(transcript.engine.get("max_new_tokens"))
            count += bool(transcript.output_ids)
            empty += not transcript.output_ids
        params = one_setting(list(kinds.values()), "--transcripts", tokens_needed=False)
        if not count:
            raise InputError("--transcripts", path, "holds no output token", "give outputs of at least one token")
        budget = budgets.pop() if len(budgets) == 1 else None
        return cls(path, count, empty, params, budget if isinstance(budget, int) else None, content_hash(path))


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
