"""``specaudit profile``: acceptance on a data set, for every k, from one scoring pass."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specaudit.cli import options as o
from specaudit.core.errors import InputError

if TYPE_CHECKING:
    from specaudit.acceptance.pair import PromptSet
    from specaudit.core.types import SamplingParams


def run(
    target: o.Target,
    draft: o.Draft,
    out: o.OutFolder,
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

    What is done is kept beside OUT, in OUT.profiling: a run that was interrupted goes on where it was.
    """
    from specaudit.cli import setting
    from specaudit.cli.console import note, progress, show
    from specaudit.core.artifacts import check_writable, with_schema

    params = setting.sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed
    )
    for argument, value in (("--max-new-tokens", max_new_tokens), ("--batch-size", batch_size)):
        o.check_least(argument, value, 1)
    if (dataset is None) == (transcripts is None):
        given = "neither" if dataset is None else "both"
        raise InputError("--dataset, --transcripts", given, "a profile needs one of them", "give prompts or outputs")
    check_writable("--out", out, folder=True)
    workload, logged = None, None
    if dataset is not None:
        workload = setting.workload(
            dataset, split=split, prompt_column=prompt_column, category_column=category_column, limit=limit, seed=seed,
            max_prompt_tokens=max_prompt_tokens,
        )  # fmt: skip
    else:
        assert transcripts is not None
        logged = _Logged.read(transcripts)  # before the models: a bad file should cost no loading
    pair = setting.load(target, draft, dtype, device, allow_pickle, tree)
    from specaudit.acceptance import pieces
    from specaudit.acceptance.pair import limits_of
    from specaudit.acceptance.profile import from_tokens, profile_figures, write
    from specaudit.acceptance.shards import Shards

    chosen, budget = None, None
    if workload is not None:
        chosen = setting.prompts(pair, workload, chat=chat, max_prompt_tokens=max_prompt_tokens)
        source = pieces.of_prompts(pair, chosen, params, limits_of(pair.target, max_new_tokens), batch_size)
        key = {"prompts": _hash_of(chosen), "max_new_tokens": max_new_tokens, "batch_size": batch_size}
        count, budget = len(chosen.ids), max_new_tokens
    else:
        assert logged is not None and transcripts is not None
        source, count, budget = pieces.of_transcripts(transcripts), logged.count, logged.max_new_tokens
        params, key = dataclasses.replace(logged.params, seed=seed), {"transcripts": logged.content}
        if logged.empty:
            note(f"left out {logged.empty} transcripts of {transcripts}: no output token")
    shards = Shards(Path(f"{out}.profiling"), {**pair.facts, "tree": tree, "sampling": params.as_dict(), **key})
    for name in shards.damaged:
        note(f"{shards.folder / name} is gone or not what was written: its piece is scored again")
    for _ in progress("profile")(pieces.score_pieces(pair, source, shards), 2 * count):
        pass
    assert pair.drafter is not None
    profile = from_tokens(shards.tokens())
    found = profile_figures(pair.target, pair.drafter, profile, params, budget, seed)
    facts = {"batch_size": batch_size} if chosen else {"transcripts_file": str(transcripts)}
    where_from = setting.provenance(pair, chosen, params, max_new_tokens=budget, **facts)
    write(out, profile, found, where_from)
    shards.remove()
    if figures:
        from specaudit.report.rendering import draw_profile

        draw_profile(found, out / "figures")
    show(with_schema("profile", found, where_from), lambda: print_profile(found), as_json)


@dataclasses.dataclass(frozen=True)
class _Logged:
    """What a file of transcripts holds, as far as it is needed before any is scored."""

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
            kinds.setdefault(dataclasses.replace(transcript.sampling, seed=0), transcript)
            budgets.add(transcript.engine.get("max_new_tokens"))
            count += bool(transcript.output_ids)
            empty += not transcript.output_ids
        params = one_setting(list(kinds.values()), "--transcripts", tokens_needed=False)
        if not count:
            raise InputError("--transcripts", path, "holds no output token", "give outputs of at least one token")
        budget = budgets.pop() if len(budgets) == 1 else None
        return cls(count, empty, params, budget if isinstance(budget, int) else None, content_hash(path))


def _hash_of(prompts: PromptSet) -> str:
    return hashlib.sha256(json.dumps([prompts.ids, prompts.categories]).encode()).hexdigest()[:16]


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
