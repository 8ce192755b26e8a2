"""The sections of report.json, each taken from one artifact."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from specaudit.core.errors import InputError
from specaudit.report.wording import finite

Artifact = Mapping[str, Any]
Row = Mapping[str, Any]

VERDICTS = ("no_violation_found", "violated", "inconclusive")
MACHINE_FIELDS = ("processor", "cores", "accelerator", "threads", "system")
_STAGES = {"profile": "profile", "costs": "measure", "prediction": "predict", "audit": "audit", "bench": "bench"}


def lossless(audit: Artifact, bench: Artifact | None = None) -> dict[str, Any]:
    """What the audit found, whether the verifier that it ran preserves the target, and what the drafter declares.

    ``declares_lossy`` is what the drafter's published configuration asks of a server that would change the output: a
    finding about the own decoder, which does not do it, says nothing of one that does.
    """
    verdict = _need("audit", audit, "verdict")
    if verdict not in VERDICTS:
        problem = f"must be one of {', '.join(VERDICTS)}"
        raise InputError("the audit's verdict", verdict, problem, "write it again with specaudit audit")
    keys = ("verdict", "tokens", "false_alarm_rate", "log10_e", "detectable_contamination", "cause")
    # None: the rule of somebody else's engine may be unknown, which is no reason to call it lossy.
    return _take("audit", audit, *keys) | {
        "preserves_target": audit.get("preserves_target"),
        "declares_lossy": _declared(audit) or _declared(bench),
    }


def _declared(artifact: Artifact | None) -> str | None:
    return ((artifact or {}).get("provenance") or {}).get("declares_lossy")


def acceptance(profile: Artifact) -> dict[str, Any]:
    """How many draft tokens the target takes, by depth, category and k."""
    keys = ("alpha", "alpha_interval", "alpha_by_depth", "by_category", "tokens_per_round")
    return _take("profile", profile, *keys)


def cost(costs: Artifact, prediction: Artifact, batch: int, machine: Artifact) -> dict[str, Any]:
    """The costs at the decided batch, by k, and in what the measured machine differs from ``machine``."""
    rows = [row for row in _need("prediction", prediction, "rows") if row["batch"] == batch]
    recorded = costs.get("machine")
    return {
        "draft_cost_ratio": _need("costs", costs, "draft_cost_ratio"),
        "round_cost": {str(row["k"]): row.get("round_cost") for row in sorted(rows, key=lambda row: row["k"])},
        "verify_ratio": _need("costs", costs, "verify_ratio"),
        "mode": costs.get("mode"),
        "machine_differences": machine_differences(recorded, machine) if recorded else None,
    }


def machine_differences(recorded: Artifact, machine: Artifact) -> list[str]:
    """Names of the fields in which two descriptions of a machine differ."""
    return [name for name in MACHINE_FIELDS if recorded.get(name) != machine.get(name)]


def best_row(prediction: Artifact) -> Row:
    """The predicted row at the best k and batch.

    Raises
    ------
    InputError
        If there is no such row.
    """
    best, rows = _need("prediction", prediction, "best"), _need("prediction", prediction, "rows")
    if best:
        for row in rows:
            if (row["k"], row["batch"]) == (best["k"], best["batch"]):
                return row
    raise InputError("the prediction's best", best, "is not among its rows", "write it again with specaudit predict")


def sampling_temperature(profile: Artifact) -> float | None:
    """The temperature at which the profiled tokens were drawn, or None where the profile does not say."""
    return (profile.get("sampling") or {}).get("temperature")


def measured_by_k(bench: Artifact | None, profile: Artifact, batch: int) -> dict[int, Row]:
    """Measured rows of the profile's drafter at its temperature, where the target accepts as it did, and this batch."""
    temperature = sampling_temperature(profile)
    if bench is None or temperature is None:
        return {}
    found: dict[int, Row] = {}
    for row in _need("bench", bench, "rows"):
        same = finite(row.get("temperature")) and math.isclose(row["temperature"], temperature, abs_tol=1e-9)
        same = same and row.get("draft", profile.get("draft")) == profile.get("draft")
        if same and row["batch"] == batch and finite(row.get("speedup")):
            found.setdefault(row["k"], row)
    return found


def speedup(prediction: Artifact, best: Row, measured: Mapping[int, Row]) -> dict[str, Any]:
    """The best row, what was measured there, and every k at its batch."""
    here: Row = measured.get(best["k"], {})
    rows = sorted((row for row in prediction["rows"] if row["batch"] == best["batch"]), key=lambda row: row["k"])
    return {
        "k": best["k"],
        "batch": best["batch"],
        **_take("prediction", best, "predicted", "interval"),
        "measured": here.get("speedup"),
        "measured_interval": here.get("speedup_interval"),
        "relative_error": here.get("relative_error"),
        **_take("prediction", best, "probability_slower", "article_formula", "leviathan_formula"),
        "break_even_k_range": [row["k"] for row in rows if finite(row["predicted"]) and row["predicted"] >= 1],
        "by_k": {
            str(row["k"]): {
                "predicted": row["predicted"],
                "interval": row.get("interval"),
                "measured": measured.get(row["k"], {}).get("speedup"),
            }
            for row in rows
        },
    }


def _take(name: str, artifact: Artifact, *keys: str) -> dict[str, Any]:
    return {key: _need(name, artifact, key) for key in keys}


def _need(name: str, artifact: Artifact, key: str) -> Any:
    if key not in artifact:
        stage = _STAGES[name]
        raise InputError(f"the {name}", sorted(artifact), f"has no field {key!r}", f"write it with specaudit {stage}")
    return artifact[key]
