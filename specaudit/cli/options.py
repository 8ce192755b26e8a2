"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specaudit.core.errors import InputError

# typer raises click's usage errors, from its own copy of click in some releases: reached by the one it exports.
UsageError: Any = typer.BadParameter.__base__

Target = Annotated[str, typer.Option(help="Hub id, folder, FILE.gguf or zoo:tiny.")]
MaybeTarget = Annotated[str | None, typer.Option(help="Hub id, folder, FILE.gguf or zoo:tiny.")]
DRAFTS = "A model as for --target, prompt-lookup[:N], lookahead[:W,N,G], early-exit:M, medusa:DIR or eagle:DIR."
Draft = Annotated[str, typer.Option(help=DRAFTS)]
MaybeDraft = Annotated[str | None, typer.Option(help=DRAFTS)]
VerifierName = Annotated[
    str, typer.Option("--verifier", help="lossless, or typical (Medusa's rule, which changes the output).")
]
Tree = Annotated[str | None, typer.Option(help="Draft a tree (medusa, eagle): widths by level as in 4,2,1, or auto.")]
Dataset = Annotated[
    str, typer.Option(help="zoo:prompts, a hub id, or a .jsonl/.json/.csv/.tsv/.parquet/.txt file (also .gz).")
]
MaybeDataset = Annotated[str | None, typer.Option(help="zoo:prompts, a hub id, or a file (also .gz).")]
Split = Annotated[str | None, typer.Option(help="Split of a hub data set.")]
PromptColumn = Annotated[str | None, typer.Option(help="Column of the prompts; a number in a file without a header.")]
CategoryColumn = Annotated[str | None, typer.Option(help="Column of the categories.")]
Limit = Annotated[int | None, typer.Option(help="At most this many prompts, sampled by --seed.")]
MaxPromptTokens = Annotated[int | None, typer.Option(help="Leave longer prompts out, and count them.")]
Chat = Annotated[
    bool | None, typer.Option("--chat/--no-chat", help="Use the chat template. [default: if there is one]")
]
K = Annotated[int, typer.Option("--k", help="Tokens drafted a round.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="0 is off.")]
TopP = Annotated[float, typer.Option(help="1 is off.")]
MinP = Annotated[float, typer.Option(help="0 is off.")]
RepetitionPenalty = Annotated[float, typer.Option(help="1 is off.")]
MaxNewTokens = Annotated[int, typer.Option(help="Length of each output, at most.")]
BatchSize = Annotated[int, typer.Option(help="Prompts decoded side by side.")]
Seed = Annotated[int, typer.Option(help="Seed of the run; every row gets its own from it.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16. [auto: float32 on a CPU]")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
AllowPickle = Annotated[
    bool, typer.Option("--allow-pickle", help="Load pickled weights where there are no safetensors.")
]
FalseAlarmRate = Annotated[float, typer.Option(help="Chance to call a lossless decoder violated.")]
Json = Annotated[bool, typer.Option("--json", help="Print the artifact as JSON on standard output.")]
OutFile = Annotated[Path | None, typer.Option("--out", help="Also write the artifact to this file.")]
OutFolder = Annotated[Path, typer.Option("--out", help="Folder to write to.")]


def numbers(argument: str, text: str, kind: type[int] | type[float]) -> list[float]:
    """A comma-separated list, for example ``1,2,4``."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise InputError(argument, text, "must be numbers separated by commas", "for example 1,2,4") from None


def integers(argument: str, text: str, least: int = 1) -> list[int]:
    """A comma-separated list of integers."""
    values = [int(value) for value in numbers(argument, text, int)]
    if min(values) < least:
        raise InputError(argument, text, f"must be at least {least}", f"use, for example, {max(4, least)}")
    return values


def check_least(argument: str, value: float | None, least: float) -> None:
    """Raises unless a number is at least ``least``; None passes."""
    if value is not None and value < least:
        raise InputError(argument, value, f"must be at least {least:g}", f"use {least:g} or more")
