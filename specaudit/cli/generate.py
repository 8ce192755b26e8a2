"""``specaudit generate``: text by the target, with or without a drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specaudit.cli import options as o
from specaudit.core.errors import InputError


def run(
    target: o.Target,
    draft: o.MaybeDraft = None,
    prompt: Annotated[str | None, typer.Option(help="One prompt.")] = None,
    dataset: o.MaybeDataset = None,
    split: o.Split = None,
    prompt_column: o.PromptColumn = None,
    category_column: o.CategoryColumn = None,
    limit: o.Limit = None,
    max_prompt_tokens: o.MaxPromptTokens = None,
    chat: o.Chat = None,
    k: o.K = 4,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    repetition_penalty: o.RepetitionPenalty = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="End an output at this text; may be given again.")] = None,
    max_new_tokens: o.MaxNewTokens = 64,
    batch_size: o.BatchSize = 1,
    seed: o.Seed = 0,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    tree: o.Tree = None,
    verifier: o.VerifierName = "lossless",
    allow_pickle: o.AllowPickle = False,
    out: Annotated[Path | None, typer.Option(help="Write transcripts.jsonl here.")] = None,
    as_json: o.Json = False,
) -> None:
    """Generate text, and transcripts that other engines' output can be compared with."""
    from specaudit.cli import setting
    from specaudit.cli.console import note, progress
    from specaudit.core.artifacts import check_writable

    params = setting.sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed
    )
    if (prompt is None) == (dataset is None):
        given = "both" if prompt is not None else "neither"
        raise InputError("--prompt, --dataset", given, "exactly one is needed", "give one of them")
    for argument, value in (("--k", k), ("--max-new-tokens", max_new_tokens), ("--batch-size", batch_size)):
        o.check_least(argument, value, 1)
    if out is not None:
        check_writable("--out", out, folder=False)
    workload = None
    if dataset is not None:
        workload = setting.workload(
            dataset, split=split, prompt_column=prompt_column, category_column=category_column, limit=limit, seed=seed,
            max_prompt_tokens=max_prompt_tokens,
        )  # fmt: skip
    pair = setting.load(target, draft, dtype, device, allow_pickle, tree)
    from specaudit.acceptance.pair import decode_prompts, limits_of
    from specaudit.engines import transcripts as files

    if workload is not None:
        chosen = setting.prompts(pair, workload, chat=chat, max_prompt_tokens=max_prompt_tokens)
    else:
        assert prompt is not None
        chosen = setting.one_prompt(pair, prompt, chat)
    limits = limits_of(pair.target, max_new_tokens, stop or ())
    outputs = decode_prompts(
        pair, chosen, params, limits, k=k if draft else 0, batch_size=batch_size, verifier=verifier,
        progress=progress("generate"),
    )  # fmt: skip
    if out is not None:
        files.write(out, outputs)
    for transcript in outputs:
        if as_json:
            print(files.to_line(transcript))
        elif out is None:
            print(pair.target.tokenizer.decode(transcript.output_ids, skip_special_tokens=True))
    tokens = sum(len(transcript.output_ids) for transcript in outputs)
    rounds = sum(len(transcript.rounds or ()) for transcript in outputs)
    note(
        f"{len(outputs)} outputs, {tokens} tokens, {tokens / rounds:.3g} tokens a round"
        + (f", in {out}" if out else "")
    )
