"""The outcome of one test of an audit, with weights or without."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

MISSED_RATE = 0.05


@dataclass(frozen=True)
class Test:
    """One test of the audit: a p-value or a log10 e-value, and whether it passed its share of the error budget."""

    name: str
    statistic: float
    flagged: bool
    p_value: float | None = None
    log10_e: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
