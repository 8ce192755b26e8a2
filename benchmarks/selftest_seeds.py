"""The selftest under many seeds: the median of the tokens to find each fault, and whether a control is ever flagged.

One file a seed is kept in the folder, and one that is there is not made again: a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from audit_calibration import tabular_pair

from specaudit.audit.faults import CONTROLS, FAULTS
from specaudit.audit.selftest import selftest
from specaudit.cli import app
from specaudit.core.artifacts import provenance, with_schema, write_json
from specaudit.core.types import Limits, SamplingParams
from specaudit.drafters import create_drafter

KINDS = {"faults": FAULTS, "controls": CONTROLS}
NOT_OF_TABLES = ("stale_cache", "cache_off_by_one", "bfloat16_near_ties")  # they have no cache and one precision
K, MAX_NEW_TOKENS, BATCH_SIZE, FALSE_ALARM_RATE = 4, 250, 256, 1e-3


def on_tables(kind: str, seed: int, tokens: int) -> dict[str, Any]:
    """One selftest of a pair of tables, which decode a hundred times as fast as the bundled pair."""
    target, draft, prompts = tabular_pair()
    drafter = create_drafter("draft", target, lambda _: draft)
    only = [case.name for case in KINDS[kind] if case.name not in NOT_OF_TABLES]
    return selftest(
        target, drafter, prompts, SamplingParams(temperature=0.8), Limits(MAX_NEW_TOKENS, target.end_ids), k=K,
        tokens=tokens, control_tokens=tokens, false_alarm_rate=FALSE_ALARM_RATE, seed=seed, batch_size=BATCH_SIZE,
        reload=lambda _dtype: (target, drafter), only=only,
    )  # fmt: skip


def summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of every fault the tokens to find it and how often its cause was right; of every control how often it fell."""
    rows: dict[str, dict[str, Any]] = {"faults": {}, "controls": {}}
    for result in results:
        for kind, of_kind in rows.items():
            for row in result[kind]:
                of_kind.setdefault(row["name"], []).append(row)
    faults = {
        name: {
            "seeds": len(given), "found": sum(row["found"] for row in given),
            "median_tokens": statistics.median(row["tokens"] for row in given),
            "most_tokens": max(row["tokens"] for row in given),
            "cause_right": sum(bool(row["cause_right"]) for row in given) if given[0]["has_law"] else None,
            "causes": sorted({str(row["cause"]) for row in given}),
        }
        for name, given in rows["faults"].items()
    }  # fmt: skip
    controls = {
        name: {
            "seeds": len(given), "flagged": sum(row["flagged"] for row in given),
            "tokens": sum(row["tokens"] for row in given),
        }
        for name, given in rows["controls"].items()
    }  # fmt: skip
    named = [one for one in faults.values() if one["cause_right"] is not None]
    share = sum(one["cause_right"] for one in named) / sum(one["seeds"] for one in named) if named else None
    return {"faults": faults, "controls": controls, "cause_right_share": share}


def _options() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__, epilog="Other options are those of specaudit selftest.")
    parser.add_argument("--folder", type=Path, required=True, help="Results, one a seed; their summary beside it.")
    parser.add_argument("--kind", choices=sorted(KINDS), required=True)
    parser.add_argument("--first", type=int, default=1, help="The first seed.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tables", type=int, metavar="TOKENS", help="On a pair of tables, with so many tokens each.")
    return parser.parse_known_args()


if __name__ == "__main__":
    given, others = _options()
    given.folder.mkdir(parents=True, exist_ok=True)
    only = [word for case in KINDS[given.kind] for word in ("--only", case.name)]
    files = [given.folder / f"seed-{seed}.json" for seed in range(given.first, given.first + given.seeds)]
    for seed, file in enumerate(files, given.first):
        if file.exists():
            continue
        if given.tables:
            write_json(file, with_schema("selftest", on_tables(given.kind, seed, given.tables), provenance(seed=seed)))
        else:
            app(["selftest", "--seed", str(seed), "--out", str(file), *only, *others], standalone_mode=False)
    figures = summary([json.loads(file.read_text(encoding="utf-8")) for file in files])
    figures |= {"first_seed": given.first, "options": others}
    out = given.folder.with_suffix(".json")
    write_json(out, with_schema("benchmark.selftest", figures, provenance(seed=given.first)))
    print(json.dumps(figures, indent=1))
