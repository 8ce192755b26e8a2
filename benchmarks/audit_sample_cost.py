"""How many tokens it takes to find that a share of the output came from the draft, by the audit and by other tests."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from methods import FALSE_ALARM_RATE, OneSample, TwoSample
from numpy.typing import NDArray
from pool import read_or_make
from power import WANTED_POWER, curve, needed, order
from rivals import FirstTokens, chi_square_flags
from scored import score

from specaudit.acceptance.pair import encode
from specaudit.acceptance.workloads import load_workload
from specaudit.core.artifacts import provenance, with_schema, write_json
from specaudit.core.types import SamplingParams, Transcript
from specaudit.drafters import create_drafter
from specaudit.models.loading import load_model

LARGEST_FIRST_TOKENS = 1 << 24


def one_sample_rows(
    tests: OneSample, prompts: int, grid: Sequence[int], options: argparse.Namespace, *, whole: bool
) -> dict[str, Any]:
    """Every one-sample test on the same orders."""
    each = len(tests.scored) // prompts
    lengths = np.array([len(one.u) for one in tests.scored])
    flags: dict[str, list[list[bool]]] = {}
    tokens = np.zeros(len(grid))
    for number in range(options.resamples):
        chosen = order(np.random.default_rng([options.seed, number]), prompts, each)
        tokens += np.cumsum(lengths[chosen])[np.array(grid) - 1] / options.resamples
        found = {
            "contamination_draft, at its share of a whole audit": tests.eprocess(chosen, grid, tests.share),
            "contamination_draft, alone": tests.eprocess(chosen, grid, FALSE_ALARM_RATE),
            "PIT chi-square": tests.pit_chi_square(chosen, grid),
            "pooled chi-square": tests.binned_chi_square(chosen, grid),
        }
        if whole and number < options.audit_resamples:
            found["whole audit"] = tests.whole_audit(chosen, grid)
        for name, values in found.items():
            flags.setdefault(name, []).append(values)
    return {name: _row(np.array(values), grid, tokens) for name, values in flags.items()}


def _row(flags: NDArray[np.bool_], grid: Sequence[int], tokens: Sequence[float]) -> dict[str, Any]:
    points = curve(flags, grid, tokens)
    found = {axis: needed(points, axis, len(flags)) for axis in ("tokens", "outputs")}
    return {
        "tokens_to_power": found["tokens"], "outputs_to_power": found["outputs"],
        "more_than_tokens": points[-1]["tokens"] if found["tokens"] is None else None,
        "resamples": len(flags), "curve": points,
    }  # fmt: skip


def mmd_rows(
    name: str, engine: Sequence[Transcript], baseline: Sequence[Transcript], prompts: int, grid: Sequence[int],
    options: argparse.Namespace,
) -> dict[str, Any]:  # fmt: skip
    """Tokens are the engine's; the baseline's, as many again, are not counted."""
    test = TwoSample(engine, baseline, options.max_new_tokens)
    lengths = np.array([len(one.output_ids) for one in engine])
    flags: dict[str, list[list[bool]]] = {}
    tokens = np.zeros(len(grid))
    for number in range(options.mmd_resamples):
        generator = np.random.default_rng([options.seed, number, 1])
        chosen = order(generator, prompts, len(engine) // prompts)
        others = order(generator, prompts, len(baseline) // prompts)
        tokens += np.cumsum(lengths[chosen])[np.array(grid) - 1] / options.mmd_resamples
        for kind, values in test.mmd(chosen, others, grid, options.permutations, generator).items():
            flags.setdefault(name + kind, []).append(values)
    return {kind: _row(np.array(values), grid, tokens) for kind, values in flags.items()}


def first_token_rows(
    target: Any, drafter: Any, prompts: Sequence[Sequence[int]], mean_length: float, options: argparse.Namespace
) -> dict[str, Any]:
    """The first-token test on one prompt, for each of them, and on all with the outputs shared equally."""
    params = SamplingParams(temperature=options.temperature)
    pairs = [(prompt, [0]) for prompt in prompts]
    p = {index: law[0].double().numpy() for index, law in target.conditionals(pairs, params)}
    q = {index: one.probs[0].double().numpy() for index, one in drafter.replay(pairs, params, 1)}
    share = options.contamination
    laws = [FirstTokens(p[i] / p[i].sum(), (1 - share) * p[i] + share * q[i]) for i in range(len(prompts))]
    single = [_first_token(laws[place : place + 1], options, place) for place in range(len(laws))]
    reached = sorted(row["outputs_to_power"] or np.inf for row in single)
    rows = {"first-token chi-square, all prompts": _first_token(laws, options, len(laws))}
    for name, outputs in (("median", float(np.median(reached))), ("best", reached[0])):
        found = outputs if np.isfinite(outputs) else None
        row = {"outputs_to_power": found, "more_than_tokens": None if found else LARGEST_FIRST_TOKENS}
        rows[f"first-token chi-square, the {name} of the prompts"] = row
    rows["first-token chi-square, the median of the prompts"] |= {
        "outputs_to_power_by_prompt": [row["outputs_to_power"] for row in single],
        "total_variation_by_prompt": [float(np.abs(p[i] - q[i]).sum() / 2) for i in range(len(prompts))],
    }
    for row in rows.values():
        outputs = row["outputs_to_power"]
        row["tokens_to_power"] = outputs
        row["tokens_to_power_in_whole_outputs"] = None if outputs is None else outputs * mean_length
    return rows


def _first_token(laws: Sequence[FirstTokens], options: argparse.Namespace, stream: int) -> dict[str, Any]:
    generator = np.random.default_rng([options.seed, stream, 2])
    points, each = [], 16
    while each * len(laws) <= LARGEST_FIRST_TOKENS:
        drawn = [law.statistics(generator, each, options.first_token_samples) for law in laws]
        total, degrees = sum(statistic for statistic, _ in drawn), sum(degree for _, degree in drawn)
        flags = chi_square_flags(np.asarray(total), degrees, FALSE_ALARM_RATE)
        points += curve(flags[:, None], [each * len(laws)], [each * len(laws)])
        if points[-1]["power"] >= 0.995:
            break
        each *= 2
    outputs = needed(points, "outputs", options.first_token_samples)
    return {
        "outputs_to_power": outputs, "more_than_tokens": points[-1]["tokens"] if outputs is None else None,
        "resamples": options.first_token_samples, "curve": points,
    }  # fmt: skip


def two_sample_rows(
    pool: dict[float, list[Transcript]], prompts: int, grid: Sequence[int], options: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The MMD test's power, its power where the draft wrote everything, and its false alarms on the lossless halves."""
    each, baseline = options.outputs, pool[0.0]
    halves = [[one for i, one in enumerate(baseline) if (i % each < each // 2) is side] for side in (True, False)]
    samples = {
        "MMD-Hamming": (pool[options.contamination], baseline),
        "MMD-Hamming of the draft alone": (pool[1.0], baseline),
        "MMD-Hamming of the lossless": halves,
    }
    rows = []
    for name, (engine, other) in samples.items():
        within = [outputs for outputs in grid if outputs <= min(len(engine), len(other)) // 2]
        rows.append(mmd_rows(name, engine, other, prompts, within, options))
    return rows[0] | rows[1], rows[2]


def measured(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """All figures, and where they come from."""
    started = time.process_time()
    target, draft = (load_model("zoo:tiny", role=role, dtype="float32", device="cpu") for role in ("target", "draft"))
    drafter = create_drafter("zoo:tiny", target, lambda _: draft)
    workload = encode(load_workload("zoo:prompts"), target, chat=None)
    prompts = workload.ids[:: len(workload.ids) // options.prompts][: options.prompts]
    share, params = options.contamination, SamplingParams(temperature=options.temperature)
    counts = {share: options.outputs, 0.0: options.outputs, 1.0: options.draft_outputs}
    pool = read_or_make(
        options.pool, target, draft, prompts, counts, options.temperature, options.max_new_tokens, options.seed
    )
    _say("outputs made or read", started)
    # Nearer to the whole pool, the samples drawn from it would be the same.
    half = options.outputs * len(prompts) // 2
    grid = [half >> step for step in reversed(range(half.bit_length())) if half >> step >= 8]
    rows: list[dict[str, Any]] = []
    for outputs in (pool[share], pool[0.0]):
        tests = OneSample(score(target, drafter, outputs, params), target, drafter, params)
        rows.append(one_sample_rows(tests, len(prompts), grid, options, whole=not rows))
        _say(f"{len(outputs)} outputs scored and tested", started)
    methods, lossless = rows
    found, alarms = two_sample_rows(pool, len(prompts), grid, options)
    lossless |= alarms
    _say("MMD tested", started)
    mean_length = float(np.mean([len(one.output_ids) for one in pool[share]]))
    methods |= found | first_token_rows(target, drafter, prompts, mean_length, options)
    figures = {
        "contamination": share, "false_alarm_rate": FALSE_ALARM_RATE, "power": WANTED_POWER,
        "temperature": options.temperature, "prompts": len(prompts), "mean_output_tokens": mean_length,
        "pool_tokens": {f"{key:g}": sum(len(one.output_ids) for one in outputs) for key, outputs in pool.items()},
        "share_of_contamination_draft": tests.share, "methods": methods,
        "flagged_of_lossless": {name: _false_alarms(row) for name, row in lossless.items()},
        "processor_seconds": time.process_time() - started,
    }  # fmt: skip
    facts = {
        "target": target.name, "target_content": target.content, "draft_content": draft.content,
        "dataset": workload.name, "dataset_fingerprint": workload.fingerprint, "seed": options.seed,
    }  # fmt: skip
    return figures, facts


def _false_alarms(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"tokens": point["tokens"], "flagged": round(point["power"] * row["resamples"]), "of": row["resamples"]}
        for point in row["curve"]
    ]


def _print(figures: dict[str, Any]) -> None:
    print(f"{'test':52} {'tokens':>10} {'outputs':>10}   to power 0.9 at a false-alarm rate of 0.001")
    for name, row in figures["methods"].items():
        if row["tokens_to_power"] is None:
            print(f"{name:52} {'> ' + format(row['more_than_tokens'], '.0f'):>10}")
        else:
            print(f"{name:52} {row['tokens_to_power']:10.0f} {row['outputs_to_power']:10.0f}")


def _say(text: str, started: float) -> None:
    print(f"{text}, {time.process_time() - started:.0f} s of processor so far", file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", type=Path, required=True, help="Outputs to resample: made if there is no such file.")
    parser.add_argument("--out", type=Path, required=True, help="Figures, as JSON.")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--contamination", type=float, default=0.05)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--outputs", type=int, default=50, help="Of each prompt, contaminated and as many lossless.")
    parser.add_argument("--draft-outputs", type=int, default=50, help="Of each prompt, by the draft alone.")
    parser.add_argument("--max-new-tokens", type=int, default=50)
    parser.add_argument("--resamples", type=int, default=400)
    parser.add_argument("--audit-resamples", type=int, default=200)
    parser.add_argument("--mmd-resamples", type=int, default=200)
    parser.add_argument("--permutations", type=int, default=1999)
    parser.add_argument("--first-token-samples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    given = _options()
    result, sources = measured(given)
    write_json(given.out, with_schema("benchmark.audit_sample_cost", result, provenance(**sources)))
    _print(result)
