"""From artifacts to the content of report.json: go, no-go or undecided, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specaudit.core.errors import InputError
from specaudit.report import sections
from specaudit.report.gates import gates
from specaudit.report.policy import Policy

EXIT_CODES = {"go": 0, "no-go": 1, "undecided": 3}


def decide(
    *,
    profile: Mapping[str, Any],
    costs: Mapping[str, Any],
    prediction: Mapping[str, Any],
    audit: Mapping[str, Any],
    bench: Mapping[str, Any] | None,
    policy: Policy,
    machine: Mapping[str, Any],
) -> dict[str, Any]:
    """The content of report.json, without its schema and provenance.

    Parameters
    ----------
    profile, costs, prediction, audit : mapping
        The artifacts as ``specaudit.core.artifacts.read_json`` gives them.
    bench : mapping or None
        Measured speedups, if there are any. Only rows at the profile's own sampling temperature are held against the
        prediction.
    policy : Policy
        The thresholds.
    machine : mapping
        The machine that decides, as ``specaudit.core.artifacts.machine`` describes it.

    Returns
    -------
    dict
        ``decision``, ``reasons``, ``target``, ``draft`` and the sections ``lossless``, ``acceptance``, ``cost`` and
        ``speedup``. Any failed gate makes a no-go; else any undecided gate makes it undecided.

    Raises
    ------
    InputError
        If an artifact lacks a field, or the prediction's best k is not among its rows.
    """
    best = sections.best_row(prediction)
    report = {
        "target": profile.get("target"),
        "draft": profile.get("draft"),
        "lossless": sections.lossless(audit, bench),
        "acceptance": sections.acceptance(profile),
        "cost": sections.cost(costs, prediction, best["batch"], machine),
        "speedup": sections.speedup(prediction, best, sections.measured_by_k(bench, profile, best["batch"])),
    }
    return judge(report, policy)


def judge(report: Mapping[str, Any], policy: Policy) -> dict[str, Any]:
    """The same report under this policy: its ``reasons`` and ``decision`` are made anew, the rest is kept.

    Parameters
    ----------
    report : mapping
        The content of report.json, whoever judged it before; so one report can answer to several policies.
    policy : Policy
        The thresholds.

    Returns
    -------
    dict

    Raises
    ------
    InputError
        If the report lacks what the gates read.
    """
    try:
        reasons = gates(report, policy)
    except (KeyError, TypeError, AttributeError) as error:
        problem, remedy = f"lacks what the gates read ({error})", "write it again with specaudit report"
        raise InputError("report", report.get("schema"), problem, remedy) from None
    outcomes = [reason["passed"] for reason in reasons]
    decision = "no-go" if False in outcomes else "undecided" if None in outcomes else "go"
    return {"decision": decision, "reasons": reasons} | {
        key: value for key, value in report.items() if key not in ("decision", "reasons")
    }


def exit_code(decision: str) -> int:
    """0 for go, 1 for no-go, 3 for undecided; 2 is kept for unusable input.

    Raises
    ------
    InputError
        If the decision is none of these.
    """
    if decision not in EXIT_CODES:
        raise InputError("decision", decision, f"must be one of {', '.join(EXIT_CODES)}", "give a report's decision")
    return EXIT_CODES[decision]
