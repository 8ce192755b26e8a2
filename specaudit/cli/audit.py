"""``specaudit audit``: is the output the target's own distribution?"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specaudit.cli import options as o
from specaudit.core.errors import InputError

if TYPE_CHECKING:
    from specaudit.acceptance.pair import Pair
    from specaudit.audit.lossless import Audit
    from specaudit.core.types import Transcript

EXIT_CODES = {"no_violation_found": 0, "violated": 1, "inconclusive": 3}


def run(
    target: o.MaybeTarget = None,
    draft: o.MaybeDraft = None,
    dataset: o.MaybeDataset = None,
    transcripts: Annotated[Path | None, typer.Option(help="Audit these outputs instead of decoding.")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Compare the transcripts with these, of the same prompts; needs no target.")
    ] = None,
    split: o.Split = None,
    prompt_column: o.PromptColumn = None,
    category_column: o.CategoryColumn = None,
    limit: o.Limit = None,
    max_prompt_tokens: o.MaxPromptTokens = None,
    chat: o.Chat = None,
    k: o.K = 4,
    temperature: o.Temperature = 0.8,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    repetition_penalty: o.RepetitionPenalty = 1.0,
    max_new_tokens: o.MaxNewTokens = 64,
    batch_size: o.BatchSize = 8,
    false_alarm_rate: o.FalseAlarmRate = 1e-3,
    seed: o.Seed = 0,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    tree: o.Tree = None,
    verifier: o.VerifierName = "lossless",
    allow_pickle: o.AllowPickle = False,
    until_decided: Annotated[
        bool, typer.Option("--until-decided", help="Stop at a violation, or once --exclude is excluded.")
    ] = False,
    exclude: Annotated[float, typer.Option(help="Contamination by the draft to exclude with --until-decided.")] = 0.05,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Keep what was scored in this file, and go on from it: for long --transcripts.")
    ] = None,
    out: o.OutFile = None,
    as_json: o.Json = False,
) -> int:
    """Audit the own decoder on a data set, or anybody's transcripts against the target's weights or a baseline's."""
    from specaudit.cli import setting
    from specaudit.cli.console import progress
    from specaudit.core.artifacts import check_writable, with_schema

    params = setting.sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty, seed=seed
    )
    _check_sources(target, draft, dataset, transcripts, baseline, checkpoint)
    _check_numbers(false_alarm_rate, exclude, k, max_new_tokens, batch_size)
    for argument, path in (("--out", out), ("--checkpoint", checkpoint)):
        if path is not None:
            check_writable(argument, path, folder=False)
    if baseline is not None:
        assert transcripts is not None
        return _black_boxes(transcripts, baseline, false_alarm_rate, seed, out, as_json)
    assert target is not None
    workload, count = None, 0
    if transcripts is not None:
        from specaudit.engines.transcripts import in_pieces, read

        count = sum(1 for _ in read(transcripts))  # before the models: a bad file should cost no loading
    elif dataset is not None:
        workload = setting.workload(
            dataset, split=split, prompt_column=prompt_column, category_column=category_column, limit=limit, seed=seed,
            max_prompt_tokens=max_prompt_tokens,
        )  # fmt: skip
    pair = setting.load(target, draft, dtype, device, allow_pickle, tree)
    from specaudit.audit.lossless import PIECE, Audit
    from specaudit.audit.sequential import audit_until_decided

    whole = Audit(pair.target, pair.drafter, false_alarm_rate=false_alarm_rate, seed=seed, looks=until_decided)
    facts: dict[str, Any] = {"transcripts_file": str(transcripts) if transcripts else None}
    size, chosen = PIECE, None
    if transcripts is not None:
        pieces = _resumed(whole, pair, transcripts, checkpoint) if checkpoint else in_pieces(read(transcripts), PIECE)
    else:
        from specaudit.acceptance.pair import decode_pieces, limits_of

        assert workload is not None
        chosen = setting.prompts(pair, workload, chat=chat, max_prompt_tokens=max_prompt_tokens)
        count, facts["k"] = len(chosen.ids), k
        size = batch_size if until_decided else max(batch_size, PIECE)
        pieces = decode_pieces(
            pair, chosen, params, limits_of(pair.target, max_new_tokens), size=size, k=k, batch_size=batch_size,
            verifier=verifier,
        )  # fmt: skip
    shown = progress("audit")(pieces, -(-(count - whole.transcripts) // size))
    if until_decided:
        result = audit_until_decided(whole, shown, exclude)
    else:
        for piece in shown:
            whole.add(piece)
        result = whole.result()
    assert whole.params is not None
    made_with = dataclasses.replace(whole.params, seed=seed)  # a transcript's own seed is its row's
    artifact = with_schema("audit", result, setting.provenance(pair, chosen, made_with, **facts))
    return _finished(artifact, out, as_json)


def _resumed(whole: Audit, pair: Pair, transcripts: Path, file: Path) -> Iterable[Sequence[Transcript]]:
    """The pieces that are still to be scored, after those that the file's audit had scored."""
    from specaudit.audit import checkpoint
    from specaudit.audit.lossless import PIECE
    from specaudit.core.artifacts import content_hash
    from specaudit.engines.transcripts import in_pieces, read

    settings = {name: getattr(whole, name) for name in ("false_alarm_rate", "seed", "looks")}
    key = {**pair.facts, **settings, "transcripts_content": content_hash(transcripts)}
    if file.exists():
        checkpoint.load(file, whole, key)
    rest = itertools.islice(read(transcripts), whole.transcripts, None)
    return checkpoint.kept(in_pieces(rest, PIECE), file, whole, key)


def _check_numbers(false_alarm_rate: float, exclude: float, k: int, max_new_tokens: int, batch_size: int) -> None:
    if not 0 < false_alarm_rate <= 0.5:
        raise InputError("--false-alarm-rate", false_alarm_rate, "must be above 0 and at most 0.5", "use 0.001")
    if not 0 < exclude <= 1:
        raise InputError("--exclude", exclude, "must be above 0 and at most 1", "use 0.05")
    for argument, value in (("--k", k), ("--max-new-tokens", max_new_tokens), ("--batch-size", batch_size)):
        o.check_least(argument, value, 1)


def _check_sources(
    target: str | None, draft: str | None, dataset: str | None, transcripts: Path | None, baseline: Path | None,
    checkpoint: Path | None,
) -> None:  # fmt: skip
    """Raises unless one thing is audited, against the target's weights or a baseline's transcripts."""
    if baseline is not None:
        if transcripts is None:
            raise InputError("--transcripts", None, "--baseline is compared with transcripts", "give both files")
        given = {"--target": target, "--draft": draft, "--dataset": dataset, "--checkpoint": checkpoint}
        for argument, value in given.items():
            if value is not None:
                remedy = "leave it out, or leave out --baseline to score with the target's weights"
                raise InputError(argument, value, "--baseline compares transcripts alone", remedy)
        return
    if target is None:
        remedy = "name the target, or compare --transcripts with a --baseline"
        raise InputError("--target", None, "an audit needs the target's weights or a baseline", remedy)
    if (transcripts is None) == (dataset is None):
        given = "both" if dataset is not None else "neither"
        raise InputError("--dataset, --transcripts", given, "exactly one is needed", "give one of them")
    if checkpoint is not None and transcripts is None:
        raise InputError("--checkpoint", checkpoint, "keeps what was scored of --transcripts", "give transcripts")
    if dataset is not None and draft is None:
        raise InputError("--draft", None, "the own decoder needs a drafter", "give one, or --transcripts")


def _black_boxes(
    transcripts: Path, baseline: Path, false_alarm_rate: float, seed: int, out: Path | None, as_json: bool
) -> int:
    """Two files of transcripts beside each other; loads no model library."""
    from specaudit.audit.black_box import compare
    from specaudit.cli.console import progress
    from specaudit.core.artifacts import content_hash, provenance, with_schema
    from specaudit.engines.transcripts import read

    outputs, expected = list(read(transcripts)), list(read(baseline, "--baseline"))
    result = compare(outputs, expected, false_alarm_rate=false_alarm_rate, seed=seed, progress=progress("permutations"))
    facts = {
        "transcripts_file": str(transcripts), "transcripts_content": content_hash(transcripts),
        "baseline_file": str(baseline), "baseline_content": content_hash(baseline),
        "sampling": dataclasses.asdict(dataclasses.replace(outputs[0].sampling, seed=seed)), "seed": seed,
    }  # fmt: skip
    return _finished(with_schema("audit", result, provenance(**facts)), out, as_json)


def _finished(artifact: dict[str, Any], out: Path | None, as_json: bool) -> int:
    from specaudit.cli.console import show
    from specaudit.core.artifacts import write_json

    if out is not None:
        write_json(out, artifact)
    show(artifact, lambda: print_audit(artifact), as_json)
    return EXIT_CODES[artifact["verdict"]]


def print_audit(result: dict[str, Any]) -> None:
    """Tests, verdict and cause."""
    from specaudit.cli.console import figure, table

    columns = ("test", "statistic", "p-value", "log10 e", "flagged")
    rows = [
        (t["name"], t["statistic"], t.get("p_value"), t.get("log10_e"), "yes" if t["flagged"] else "no")
        for t in result["tests"]
    ]
    table(f"audit of {result['tokens']} tokens", columns, rows)
    print(f"verdict: {result['verdict']} (false-alarm rate {result['false_alarm_rate']:g})")
    if result["inconclusive_because"]:
        print(f"because: {result['inconclusive_because']}")
    if result["cause"]:
        print(f"likely cause: {result['cause']['text']}")
        if result["cause"].get("seen"):
            print(f"reported before: {result['cause']['seen']}")
    if "contamination_bound" in result:
        print(f"contamination of the output, at most: {figure(result['contamination_bound'])} (confidence 0.95)")
    print(f"smallest contamination these tokens would have shown: {figure(result['detectable_contamination'])}")
    if "greedy" in result:
        details = result["greedy"]
        print(f"near ties: {details['near_ties']}, defects: {details['defects']}", end=", ")
        print(f"noise margin {details['noise_margin']:.3g}")
        for d in details["divergences"]:
            place = f"transcript {d['transcript']} position {d['position']}"
            tokens = f"emitted {d['emitted']}, argmax {d['argmax']}"
            print(f"  {d['kind']} at {place}: {tokens}, margin {d['margin']:.4g} nats")
    for d in result.get("differences", []):
        emitted, expected = ("the end" if d[side] is None else d[side] for side in ("emitted", "baseline"))
        print(f"  transcript {d['transcript']} position {d['position']}: emitted {emitted}, baseline {expected}")
