"""Tokens per round from one scoring pass beside the decoder's own, for every drafter of the bundled pair.

A cell (drafter, temperature, k) whose file is in the folder is not decoded again: a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specaudit.acceptance.pair import Pair, PromptSet, decode_prompts, encode, limits_of, load_pair
from specaudit.acceptance.profile import profile_outputs
from specaudit.acceptance.workloads import load_workload
from specaudit.core.artifacts import provenance, with_schema, write_json
from specaudit.core.types import SamplingParams, Transcript
from specaudit.stats import ratio_bootstrap

CHAINS = ("zoo:tiny", "prompt-lookup", "lookahead:6,4,4", "early-exit:3", "medusa:zoo:tiny", "eagle:zoo:tiny")
TREES = (
    ("medusa:zoo:tiny", "4,2,1"), ("medusa:zoo:tiny", "auto"),
    ("eagle:zoo:tiny", "4,2,1,1"), ("eagle:zoo:tiny", "auto"),
)  # fmt: skip
TEMPERATURES = (0.0, 0.8, 1.0)
KS = (1, 2, 4, 8)
TREE_K = 4
WALK_SEED = 1000  # the decoder's outputs are others than those that are walked


def outputs_of(
    pair: Pair, prompts: PromptSet, params: SamplingParams, options: argparse.Namespace, k: int = 0
) -> list[Transcript]:
    """Outputs of every prompt, as often as is asked: once where they are all the same."""
    repeats = 1 if params.greedy else options.repeats
    every = PromptSet(
        prompts.ids * repeats, prompts.categories * repeats, prompts.name, prompts.fingerprint, prompts.skipped
    )
    limits = limits_of(pair.target, options.max_new_tokens)
    return decode_prompts(pair, every, params, limits, k=k, batch_size=options.batch_size)


def decoded_figures(outputs: Sequence[Transcript]) -> dict[str, Any]:
    """Tokens per round, and its standard error, by output: the prompts are those that are walked."""
    tokens = np.array([len(one.output_ids) for one in outputs], dtype=float)
    rounds = np.array([len(one.rounds or ()) for one in outputs], dtype=float)
    spread = ratio_bootstrap(tokens, rounds, 2000, np.random.default_rng(0)).std()
    per_round = float(tokens.sum() / rounds.sum())
    return {"decoded": per_round, "standard_error": float(spread) / per_round, "tokens": int(tokens.sum())}


def cells_of(
    pair: Pair, prompts: PromptSet, walked: Sequence[Transcript], ks: Sequence[int], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """One drafter at one temperature."""
    params = walked[0].sampling
    assert pair.drafter is not None
    _, figures = profile_outputs(pair.target, pair.drafter, walked, options.max_new_tokens)
    rows = []
    for k in ks:
        made = SamplingParams(params.temperature, seed=k)
        row = decoded_figures(outputs_of(pair, prompts, made, options, k))
        walk, interval = figures["tokens_per_round"][str(k)], figures["tokens_per_round_interval"][str(k)]
        covered = interval[0] <= row["decoded"] <= interval[1]
        rows.append({
            "k": k, "walked": walk, "interval": interval, **row, "relative_error": walk / row["decoded"] - 1.0,
            "covered": bool(covered),
        })  # fmt: skip
    return rows


def measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every cell, as it is read or made."""
    target = load_pair("zoo:tiny", None).target
    prompts = encode(load_workload("zoo:prompts"), target, chat=None)
    settings = [*((name, None, KS) for name in CHAINS), *((name, tree, (TREE_K,)) for name, tree in TREES)]
    rows = []
    for temperature in TEMPERATURES:
        params = SamplingParams(temperature, seed=WALK_SEED)
        walked: list[Transcript] = []
        for name, tree, ks in settings:
            file = options.folder / f"{name}-{tree}-{temperature}.json".replace(":", "_")
            if not file.exists():
                walked = walked or outputs_of(Pair(target, None, {}), prompts, params, options)
                cells = cells_of(load_pair(target, name, tree=tree), prompts, walked, ks, options)
                shown = {"drafter": name, "tree": tree, "temperature": temperature}
                write_json(file, {"cells": [{**shown, **cell} for cell in cells]})
            rows += json.loads(file.read_text(encoding="utf-8"))["cells"]
    return rows


def _line(row: dict[str, Any]) -> str:
    name = row["drafter"] + (f" --tree {row['tree']}" if row["tree"] else "")
    low, high = row["interval"]
    walked = f"{row['walked']:.3f} ({low:.3f} .. {high:.3f})"
    decoded = f"{row['decoded']:.3f} | {row['standard_error']:.2%}"
    return f"| `{name}` | {row['temperature']:g} | {row['k']} | {walked} | {decoded} | {row['relative_error']:+.2%} |"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="Cells; their summary is written beside it.")
    parser.add_argument("--repeats", type=int, default=2, help="Outputs of each prompt where they are drawn.")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=40)
    return parser.parse_args()


if __name__ == "__main__":
    given = _options()
    given.folder.mkdir(parents=True, exist_ok=True)
    found = measured(given)
    chains, trees = ([row for row in found if bool(row["tree"]) == tree] for tree in (False, True))
    figures = {
        "cells": found,
        "largest_error_of_chains": max(abs(row["relative_error"]) for row in chains),
        "largest_error_of_trees": max(abs(row["relative_error"]) for row in trees),
        "covered": sum(row["covered"] for row in found) / len(found),
    }
    write_json(given.folder.with_suffix(".json"), with_schema("benchmark.walk_accuracy", figures, provenance(seed=0)))
    for row in found:
        print(_line(row))
    print({name: value for name, value in figures.items() if name != "cells"})
