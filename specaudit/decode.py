"""The only decode loop. With no drafter it is the baseline: the same loop, one token a round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch

from specaudit.core.errors import NOT_FINITE, InputError
from specaudit.core.protocols import Drafter, Target, Verifier
from specaudit.core.sampling import RowUniforms, row_seed
from specaudit.core.types import Limits, Proposal, Round, SamplingParams, Transcript, Verification

Ids = Sequence[int]
Text = Callable[[Ids], str]


@dataclass(frozen=True)
class Decoded:
    """A batch's transcripts, in the order of its prompts, the rounds it took and the seconds spent on the prompts."""

    transcripts: list[Transcript]
    rounds: list[Round]
    prefill_seconds: float

    @property
    def tokens(self) -> int:
        return sum(len(transcript.output_ids) for transcript in self.transcripts)

    @property
    def decode_seconds(self) -> float:
        return sum(round_.total_seconds for round_ in self.rounds)


@dataclass
class Row:
    """One prompt under way."""

    index: int
    prompt: Ids
    seed: int
    budget: int
    output: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    finish_reason: str | None = None


@torch.inference_mode()
def decode(
    target: Target,
    drafter: Drafter | None,
    verifier: Verifier,
    prompts: Sequence[Ids],
    params: SamplingParams,
    limits: Limits,
    *,
    k: int = 0,
    seeds: Sequence[int] | None = None,
    text: Text | None = None,
) -> Decoded:
    """Decodes one batch; rows advance by what each accepts and leave the batch when they end.

    Parameters
    ----------
    prompts : sequence of token id sequences
        Each of at least one token.
    k : int
        The most tokens drafted a row and round; ignored without a drafter.
    seeds : sequence of int, optional
        A seed a row; a row's output depends on it and on the prompt alone. Made from ``params.seed`` by default.
    text : callable, optional
        Ids to text, needed for stop strings.

    Raises
    ------
    InputError
        If a prompt is empty or leaves no room in the target's context, ``k`` is below one with a drafter, or a model
        gives probabilities that are not numbers.
    """
    k = _checked(target, drafter, prompts, limits, k, text)
    seeds = [row_seed(params.seed, row) for row in range(len(prompts))] if seeds is None else seeds
    rows = [
        Row(index, prompt, seed, min(limits.max_new_tokens, target.max_context - len(prompt)))
        for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
    ]
    everyone = list(rows)
    clock = _clock(target.device)
    started = clock()
    nodes, width = drafter.room(k) if drafter is not None else (0, 0)
    capacity = max(len(row.prompt) + row.budget for row in rows) + width + 1
    target.start(prompts, params, capacity, drafter.hidden_layers if drafter is not None else ())
    if drafter is not None:
        drafter.start(prompts, params, capacity, target)
    streams, rounds = RowUniforms(seeds), []
    prefill_seconds = clock() - started
    while rows:
        begin = clock()
        uniforms = streams.draw(2 * nodes + 1, target.device)
        room = [min(k, row.budget - len(row.output) - 1) for row in rows]
        proposal = drafter.propose(room, uniforms[:, :nodes]) if drafter is not None else None
        proposed = clock()
        target_probs = target.score(proposal)
        scored = clock()
        verification = verifier(target_probs, proposal, uniforms[:, nodes:])
        _check_numbers(target_probs, proposal)
        paths, emitted = _emitted(verification, proposal.tokens if proposal is not None else None)
        verified = clock()
        for row, path, tokens in zip(rows, paths, emitted, strict=True):
            _append(row, len(path), tokens, limits, text)
        target.commit(paths, emitted)
        if drafter is not None:
            drafter.observe(emitted)
        depths = proposal.depths if proposal is not None else (0,) * len(rows)
        ids, counts = tuple(row.index for row in rows), tuple(len(tokens) for tokens in emitted)
        rows = _continue(rows, target, drafter, streams)
        rounds.append(
            Round(ids, depths, counts, proposed - begin, scored - proposed, verified - scored, clock() - begin)
        )
    engine = _engine(drafter, verifier, limits, k)
    return Decoded([_transcript(row, params, engine) for row in everyone], rounds, prefill_seconds)


def decode_batches(
    target: Target, drafter: Drafter | None, verifier: Verifier, prompts: Sequence[Ids], params: SamplingParams,
    limits: Limits, *, k: int = 0, batch_size: int = 1, text: Text | None = None, first: int = 0,
) -> Iterator[tuple[list[int], Decoded]]:  # fmt: skip
    """Decodes all prompts, ``batch_size`` of like length at a time, so that little of a batch is padding.

    Parameters
    ----------
    first : int
        Place of the first prompt among those of several calls: a row's seed comes from its place among all of them.

    Yields
    ------
    indexes : list of int
        Which prompts the batch holds.
    decoded : Decoded
    """
    order = sorted(range(len(prompts)), key=lambda index: (len(prompts[index]), index))
    for start in range(0, len(prompts), batch_size):
        indexes = order[start : start + batch_size]
        seeds = [row_seed(params.seed, first + index) for index in indexes]
        batch = [prompts[index] for index in indexes]
        yield indexes, decode(target, drafter, verifier, batch, params, limits, k=k, seeds=seeds, text=text)


def _emitted(verification: Verification, tokens: torch.Tensor | None) -> tuple[list[list[int]], list[list[int]]]:
    """Each row's accepted path, and the tokens of its round: those on the path, then the extra one."""
    paths = [verification.path(row, count) for row, count in enumerate(verification.accepted.tolist())]
    extra = verification.extra_token.tolist()
    proposed = tokens.tolist() if tokens is not None else [[]] * len(paths)
    emitted = [[*(ids[node] for node in path), last] for ids, path, last in zip(proposed, paths, extra, strict=True)]
    return paths, emitted


def _check_numbers(target_probs: torch.Tensor, proposal: Proposal | None) -> None:
    """Raises where a model gave something that is no number: what was drawn from it means nothing."""
    drafted = proposal.draft_probs if proposal is not None and proposal.width else "point_mass"
    for model, probs in (("target", target_probs), ("draft", drafted)):
        # Of probabilities or logits: a nan wins over everything, and no row may be minus infinity alone.
        if not isinstance(probs, str) and not bool(probs.amax(-1).isfinite().all()):
            raise InputError(model, "nan", "it gives probabilities that are not numbers", NOT_FINITE)


def _append(row: Row, accepted: int, tokens: list[int], limits: Limits, text: Text | None) -> None:
    """Adds a round's tokens to a row and ends it where its rules say so, in mid-round if need be."""
    before = len(row.output)
    for token in tokens:
        row.output.append(token)
        if token in limits.end_ids or (limits.stop_strings and _stopped(row.output, limits.stop_strings, text)):
            row.finish_reason = "stop"
            break
        if len(row.output) == row.budget:
            row.finish_reason = "length"
            break
    row.accepted.append(min(accepted, len(row.output) - before))


def _stopped(output: list[int], stop_strings: Iterable[str], text: Text | None) -> bool:
    assert text is not None
    # A string of n bytes spans at most n tokens; a few more keep a tokenizer's leading space out of the way.
    longest = max(len(string.encode()) for string in stop_strings)
    tail = text(output[-(longest + 4) :])
    return any(string in tail for string in stop_strings)


def _continue(rows: list[Row], target: Target, drafter: Drafter | None, streams: RowUniforms) -> list[Row]:
    live = [position for position, row in enumerate(rows) if row.finish_reason is None]
    if live and len(live) < len(rows):
        target.keep(live)
        streams.keep(live)
        if drafter is not None:
            drafter.keep(live)
    return [rows[position] for position in live]


def _engine(drafter: Drafter | None, verifier: Verifier, limits: Limits, k: int) -> dict[str, Any]:
    """What made a batch, as its transcripts say it."""
    return {
        "name": "specaudit", "version": version("specaudit"), "k": k,
        "method": drafter.name if drafter is not None else "baseline",
        "verifier": verifier.name, "preserves_target": verifier.preserves_target,
        "end_ids": sorted(limits.end_ids), "stop_strings": list(limits.stop_strings),
    }  # fmt: skip


def _transcript(row: Row, params: SamplingParams, engine: dict[str, Any]) -> Transcript:
    return Transcript(
        prompt_ids=tuple(row.prompt), output_ids=tuple(row.output),
        sampling=SamplingParams(**{**params.as_dict(), "seed": row.seed}),
        rounds=tuple(row.accepted), engine={**engine, "max_new_tokens": row.budget}, finish_reason=row.finish_reason,
    )  # fmt: skip


def _clock(device: torch.device | str) -> Callable[[], float]:
    """Seconds, after all queued work of a GPU is done."""
    if torch.device(device).type != "cuda":
        return time.perf_counter

    def synchronized() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return synchronized


def _checked(
    target: Target, drafter: Drafter | None, prompts: Sequence[Ids], limits: Limits, k: int, text: Text | None
) -> int:
    if not prompts:
        raise InputError("prompts", 0, "there are no prompts", "give at least one")
    for index, prompt in enumerate(prompts):
        if not len(prompt):
            raise InputError("prompts", f"prompt {index}", "has no tokens", "leave it out, or start it with a token")
        if len(prompt) >= target.max_context:
            raise InputError(
                "prompts", f"prompt {index} of {len(prompt)} tokens", f"the context holds {target.max_context}",
                "shorten it, or use a model with a longer context",
            )  # fmt: skip
    if limits.stop_strings and text is None:
        raise InputError("text", None, "stop strings need a function from ids to text", "pass the tokenizer's decode")
    if drafter is not None and k < 1:
        raise InputError("k", k, "must be at least 1 with a drafter", "use, for example, 4, or no drafter")
    return k if drafter is not None else 0
