"""The audit's own test: which planted faults it finds, at how many tokens, and whether controls stay unaccused."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from specaudit.audit.faults import CONTROLS, FAULTS, Control, Fault, Setup
from specaudit.audit.faults.drafters import Hands
from specaudit.audit.lossless import Audit
from specaudit.audit.sequential import audit_until_decided
from specaudit.core.errors import InputError
from specaudit.core.protocols import CausalModel, Drafter
from specaudit.core.types import Limits, Proposal, SamplingParams, Transcript
from specaudit.models.target import ModelTarget
from specaudit.verify import lossless_verifier

SLOW_SHARE = 20  # of a control's tokens one in so many is decoded in half precision, which processors do slowly
Prompts = Sequence[Sequence[int]]
Reload = Callable[[str], tuple[CausalModel, Drafter]]


def selftest(
    model: CausalModel, drafter: Drafter, prompts: Prompts, params: SamplingParams, limits: Limits, *, k: int,
    tokens: int, control_tokens: int, false_alarm_rate: float, seed: int, batch_size: int, reload: Reload,
    only: Sequence[str] = (), progress: Callable[[Iterable[Any], int], Iterable[Any]] = lambda items, _total: items,
) -> dict[str, Any]:  # fmt: skip
    """Plants each fault in the decoder and audits its outputs as they come, until it is found or out of tokens.

    Parameters
    ----------
    params : SamplingParams
        Not greedy; each fault switches on what it needs beside them.
    tokens, control_tokens : int
        The most that are decoded for a fault, and what is decoded for a control.
    false_alarm_rate : float
        Of each audit.
    reload : callable
        The pair in another dtype, for controls that ask for one.
    only : sequence of str
        Names of faults and controls; all, where it is empty.

    Returns
    -------
    dict
        ``faults`` with name, found, tokens, cause, cause_right (None where no law describes the fault) and ``controls``
        with name, flagged and tokens, and ``skipped`` names that need a draft of another kind.

    Raises
    ------
    InputError
        If a name is unknown, or the parameters are greedy.
    """
    chosen = _chosen(only)
    if params.greedy:
        raise InputError("--temperature", 0, "most faults need sampled output", "use, for example, 0.8")
    right = Setup(model, ModelTarget(model), drafter, lossless_verifier(params), params, limits, k, believed=drafter)
    draws = _draws(right, prompts)
    found: dict[str, list[Any]] = {"faults": [], "controls": [], "skipped": []}
    for case in progress(chosen, len(chosen)):
        if case.draws and not draws:
            found["skipped"].append(case.name)
            continue
        budget = tokens if isinstance(case, Fault) else control_tokens
        setup = right
        if isinstance(case, Control) and case.dtype is not None:
            setup, budget = _reloaded(right, *reload(case.dtype)), max(1, control_tokens // SLOW_SHARE)
        row = _audited(case, setup, prompts, budget, false_alarm_rate, seed, batch_size)
        found["faults" if isinstance(case, Fault) else "controls"].append(row)
    return {"k": k, "false_alarm_rate": false_alarm_rate, "token_budget": tokens, **found}


def _chosen(only: Sequence[str]) -> list[Fault | Control]:
    known: list[Fault | Control] = [*FAULTS, *CONTROLS]
    unknown = sorted(set(only) - {case.name for case in known})
    if unknown:
        names = ", ".join(case.name for case in known)
        raise InputError("--only", unknown[0], "there is no such fault or control", f"use some of {names}")
    return [case for case in known if not only or case.name in only]


def _reloaded(right: Setup, model: CausalModel, drafter: Drafter) -> Setup:
    return dataclasses.replace(right, model=model, target=ModelTarget(model), drafter=drafter, believed=drafter)


def _draws(right: Setup, prompts: Prompts) -> bool:
    """Whether the draft proposes chains that are drawn from dense laws, as far as one batch shows."""
    seen: list[Proposal] = []

    def note(proposal: Proposal) -> Proposal:
        seen.append(proposal)
        return proposal

    short = Limits(8, right.limits.end_ids)
    next(dataclasses.replace(right, drafter=Hands(right.drafter, note), limits=short).outputs(prompts, 8, 0))
    return any(one.tree is None and not isinstance(one.draft_probs, str) for one in seen)


def _audited(
    case: Fault | Control, right: Setup, prompts: Prompts, budget: int, false_alarm_rate: float, seed: int,
    batch_size: int,
) -> dict[str, Any]:  # fmt: skip
    started = time.perf_counter()
    setup = case.planted(right)
    whole = Audit(setup.model, setup.believed, false_alarm_rate=false_alarm_rate, seed=seed, looks=True)
    result = audit_until_decided(whole, _within(setup.outputs(prompts, batch_size, seed), budget), wanted=None)
    flagged, cause = result["verdict"] == "violated", result["cause"]
    row = {"name": case.name, "text": case.text, "tokens": result["tokens"]}
    if isinstance(case, Fault):
        named = cause["name"] if cause else None
        right_name = named in case.causes if flagged and case.causes else None
        row |= {"found": flagged, "cause": named, "cause_right": right_name, "has_law": bool(case.causes)}
        row |= {"close": cause["close"] if cause else []}
    else:
        row |= {"flagged": flagged, "verdict": result["verdict"], "cause": cause["name"] if cause else None}
    tests = [test["name"] for test in result["tests"] if test["flagged"]]
    return {**row, "flagged_tests": tests, "seconds": time.perf_counter() - started}


def _within(pieces: Iterator[list[Transcript]], budget: int) -> Iterator[list[Transcript]]:
    """Pieces until they hold the budget's tokens; the last is whole."""
    held = 0
    while held < budget:
        piece = next(pieces)
        held += sum(len(one.output_ids) for one in piece)
        yield piece
