"""Numbers in words: the digits that are worth reading, the same in every output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

MISSING = "–"
MARKS = {True: "pass", False: "fail", None: "undecided"}
GATES = {
    "lossless": "Lossless",
    "audit_power": "Audit power",
    "same_machine": "Same machine",
    "speedup": "Speedup",
    "probability_slower": "Risk of being slower",
    "prediction_error": "Prediction error",
}


def finite(value: object) -> TypeGuard[float]:
    """Whether this is a number that can be shown, compared and drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(value: float | None, digits: int = 3) -> str:
    """``digits`` significant digits with thousands separators; whole numbers in full, and a dash for none."""
    if not finite(value):
        return MISSING
    if value == 0 or isinstance(value, int):
        return f"{value:,.0f}"
    magnitude = math.floor(math.log10(abs(value)))
    if not -4 <= magnitude < 9:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(digits - 1 - magnitude, 0)}f}"


def beside(value: float, threshold: float) -> str:
    """The number with as many digits as it takes to show on which side of the threshold it lies."""
    side = (value > threshold) - (value < threshold)
    for digits in range(3, 17):
        text = number(value, digits)
        shown = float(text.replace(",", ""))
        if (shown > threshold) - (shown < threshold) == side:
            return text
    return repr(value)


def bounds(interval: object) -> tuple[float, float] | None:
    """Both ends of an interval, or None where either is missing."""
    if not isinstance(interval, Sequence) or isinstance(interval, str) or len(interval) != 2:
        return None
    low, high = interval
    return (low, high) if finite(low) and finite(high) else None


def between(interval: object, unit: str = "") -> str:
    """An interval as ``low to high``, or a dash."""
    ends = bounds(interval)
    return f"{number(ends[0])}{unit} to {number(ends[1])}{unit}" if ends else MISSING


def percent(value: float | None) -> str:
    """A share in [0, 1] as a percentage, or a dash."""
    return f"{plain(number(100.0 * value))}%" if finite(value) else MISSING


def plain(text: str) -> str:
    """A number's text without the zeros at its end that say nothing outside a column: ``40``, not ``40.0``."""
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def verdict_clause(section: Mapping[str, Any]) -> str:
    """What the audit says, as a clause with its tokens."""
    tokens = number(section["tokens"])
    clauses = {
        "violated": f"a violation was found in {tokens} tokens",
        "no_violation_found": f"no violation was found in {tokens} tokens",
    }
    return clauses.get(section["verdict"], f"the audit of {tokens} tokens is inconclusive")


def label(name: str) -> str:
    """A gate's name as a heading."""
    return GATES.get(name, name.replace("_", " ").capitalize())
