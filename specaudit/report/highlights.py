"""What the page says in words: the headline numbers, and a sentence or two above each section's tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specaudit.report.wording import MISSING, between, finite, number, percent, plain, verdict_clause

Artifact = Mapping[str, Any]


def headline_facts(report: Artifact) -> list[tuple[str, str, str]]:
    """Term, value and detail of the numbers on the first screen."""
    speedup, lossless, acceptance = report["speedup"], report["lossless"], report["acceptance"]
    measured, verdict = speedup["measured"] is not None, lossless["verdict"]
    smallest = percent(lossless["detectable_contamination"])
    power = "" if verdict == "violated" else f", which would show {smallest} of contamination"
    return [
        ("Predicted speedup", _times(speedup["predicted"]), between(speedup["interval"], "×")),
        (
            "Measured speedup",
            _times(speedup["measured"]) if measured else "not measured",
            between(speedup["measured_interval"], "×") if measured else "no benchmark at this k and temperature",
        ),
        ("Best k", number(speedup["k"]), f"batch {number(speedup['batch'])}"),
        (
            "Output",
            {"violated": "violation found", "no_violation_found": "no violation found"}.get(verdict, verdict),
            f"in {number(lossless['tokens'])} tokens{power}",
        ),
        ("Acceptance α", number(acceptance["alpha"]), between(acceptance["alpha_interval"])),
    ]


def notes(report: Artifact, artifacts: Mapping[str, Artifact]) -> dict[str, str]:
    """A paragraph for each section of the page."""
    return {
        "speedup": _speedup_note(report["speedup"]),
        "acceptance": _acceptance_note(artifacts["profile"]),
        "lossless": _lossless_note(report["lossless"]),
        "cost": _cost_note(artifacts["costs"]),
    }


def _speedup_note(section: Artifact) -> str:
    ks = section["break_even_k_range"]
    pays = f"is at or above break-even for k = {ranges(ks)}" if ks else "is below break-even for every k"
    slower = percent(section["probability_slower"])
    return (
        f"At batch {number(section['batch'])} the predicted speedup {pays}. The best k is {number(section['k'])}, "
        f"where the probability of being slower than the baseline is {slower}."
    )


def _acceptance_note(profile: Artifact) -> str:
    sampling = ", ".join(
        f"{str(key).replace('_', ' ')} {value}" for key, value in (profile.get("sampling") or {}).items()
    )
    drawn = f", sampled with {sampling}" if sampling else ""
    return f"Profiled on {number(profile.get('prompts'))} prompts and {number(profile.get('tokens'))} tokens{drawn}."


def _lossless_note(section: Artifact) -> str:
    preserves = section.get("preserves_target")
    rule = "is not known to preserve" if preserves is None else "preserves" if preserves else "does not preserve"
    cause = section["cause"] or {}
    likely = f" Most likely cause: {cause.get('name')} ({cause.get('text')})." if cause else ""
    declared = section.get("declares_lossy")
    declares = f" The drafter's configuration asks a server for lossy acceptance: {declared}." if declared else ""
    power, alarm = percent(section["detectable_contamination"]), plain(number(section["false_alarm_rate"]))
    clause = verdict_clause(section)
    return (
        f"{clause[0].upper()}{clause[1:]}, at a false-alarm rate of {alarm}; log10 of the e-value is "
        f"{plain(number(section['log10_e']))}. These tokens would have found a contamination of {power}. "
        f"The verifier {rule} the target.{declares}{likely}"
    )


def _cost_note(costs: Artifact) -> str:
    baseline = costs.get("baseline_seconds")
    step = f"; a baseline step takes {plain(number(1000 * baseline))} ms" if finite(baseline) else ""
    machine = ", ".join(f"{key} {value}" for key, value in (costs.get("machine") or {}).items() if value is not None)
    ratio = plain(number(costs.get("draft_cost_ratio")))
    where = f" Measured on: {machine}." if machine else ""
    return f"A draft step costs c = {ratio} baseline steps{step}. Mode: {costs.get('mode', MISSING)}.{where}"


def ranges(numbers: Sequence[int]) -> str:
    """``1 to 4, 8`` for 1, 2, 3, 4, 8."""
    runs: list[list[int]] = []
    for value in sorted(numbers):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)


def _times(value: float | None) -> str:
    return f"{number(value)}×" if finite(value) else MISSING
