"""``specaudit selftest``: which planted faults would an audit of this pair catch, and at how many tokens?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from specaudit.cli import options as o
from specaudit.core.errors import InputError

if TYPE_CHECKING:
    from specaudit.core.protocols import CausalModel, Drafter


def run(
    target: Annotated[str, typer.Option(help="Model: hub id, folder, .gguf file or zoo:tiny.")] = "zoo:tiny",
    draft: Annotated[str, typer.Option(help="Its draft.")] = "zoo:tiny",
    dataset: Annotated[str, typer.Option(help="Prompts: zoo:prompts, hub id or file.")] = "zoo:prompts",
    only: Annotated[list[str] | None, typer.Option(help="A fault or control; may be repeated. [default: all]")] = None,
    split: o.Split = None,
    prompt_column: o.PromptColumn = None,
    limit: o.Limit = None,
    max_prompt_tokens: o.MaxPromptTokens = None,
    chat: o.Chat = None,
    k: o.K = 4,
    temperature: o.Temperature = 0.8,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    min_p: o.MinP = 0.0,
    max_new_tokens: o.MaxNewTokens = 64,
    batch_size: o.BatchSize = 32,
    tokens: Annotated[int, typer.Option(help="The most tokens that are decoded for a fault.")] = 100_000,
    control_tokens: Annotated[int, typer.Option(help="Tokens that are decoded for a control.")] = 10_000,
    false_alarm_rate: o.FalseAlarmRate = 1e-3,
    seed: o.Seed = 0,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    tree: o.Tree = None,
    allow_pickle: o.AllowPickle = False,
    out: o.OutFile = None,
    as_json: o.Json = False,
) -> int:
    """Plant known faults in the decoder, one by one, and audit its outputs until they are found."""
    from specaudit.cli import setting
    from specaudit.cli.console import progress, show
    from specaudit.core.artifacts import check_writable, with_schema, write_json

    numbers = {
        "--k": k, "--max-new-tokens": max_new_tokens, "--batch-size": batch_size, "--tokens": tokens,
        "--control-tokens": control_tokens,
    }  # fmt: skip
    for argument, value in numbers.items():
        o.check_least(argument, value, 1)
    if not 0 < false_alarm_rate <= 0.5:
        raise InputError("--false-alarm-rate", false_alarm_rate, "must be above 0 and at most 0.5", "use 0.001")
    if out is not None:
        check_writable("--out", out, folder=False)
    params = setting.sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    workload = setting.workload(
        dataset, split=split, prompt_column=prompt_column, limit=limit, seed=seed, max_prompt_tokens=max_prompt_tokens
    )
    pair = setting.load(target, draft, dtype, device, allow_pickle, tree)
    chosen = setting.prompts(pair, workload, chat=chat, max_prompt_tokens=max_prompt_tokens)
    from specaudit.acceptance.pair import limits_of
    from specaudit.audit.selftest import selftest

    def reload(other: str) -> tuple[CausalModel, Drafter]:
        loaded = setting.load(target, draft, other, device, allow_pickle, tree)
        assert loaded.drafter is not None
        return loaded.target, loaded.drafter

    assert pair.drafter is not None
    result = selftest(
        pair.target, pair.drafter, chosen.ids, params, limits_of(pair.target, max_new_tokens), k=k, tokens=tokens,
        control_tokens=control_tokens, false_alarm_rate=false_alarm_rate, seed=seed, batch_size=batch_size,
        reload=reload, only=only or (), progress=progress("selftest"),
    )  # fmt: skip
    artifact = with_schema("selftest", result, setting.provenance(pair, chosen, params))
    if out is not None:
        write_json(out, artifact)
    show(artifact, lambda: print_selftest(artifact), as_json)
    if any(control["flagged"] for control in result["controls"]):
        return 1
    return 0 if all(fault["found"] for fault in result["faults"]) else 3


def print_selftest(result: dict[str, Any]) -> None:
    """The matrix of faults, and the controls."""
    from specaudit.cli.console import table

    rows = [
        (f["name"], "yes" if f["found"] else "NO", f["tokens"], f["cause"], _right(f["cause_right"], f["has_law"]))
        for f in result["faults"]
    ]
    if rows:
        title = f"planted faults, at most {result['token_budget']} tokens each, k = {result['k']}"
        table(title, ("fault", "found", "tokens", "named cause", "cause right"), rows)
    if result["controls"]:
        controls = [(c["name"], "YES" if c["flagged"] else "no", c["tokens"], c["verdict"]) for c in result["controls"]]
        table("right decoders", ("control", "flagged", "tokens", "verdict"), controls)
    if result["skipped"]:
        print(f"left out, since this draft draws no chain from a dense law: {', '.join(result['skipped'])}")


def _right(right: bool | None, has_law: bool) -> str:
    if not has_law:
        return "no law"
    return "-" if right is None else "yes" if right else "NO"
