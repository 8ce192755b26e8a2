"""Whether the audit accuses a lossless decoder no more often than it says, and whether its p-values are uniform."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import torch

from specaudit.acceptance.pair import encode
from specaudit.acceptance.workloads import load_workload
from specaudit.audit.lossless import FIXED_SAMPLE, audit
from specaudit.core.artifacts import provenance, with_schema, write_json
from specaudit.core.protocols import CausalModel
from specaudit.core.sampling import processed_probs
from specaudit.core.types import Limits, SamplingParams, Transcript
from specaudit.decode import decode_batches
from specaudit.drafters import create_drafter
from specaudit.models.loading import load_model
from specaudit.models.tabular import TabularModel
from specaudit.models.target import ModelTarget
from specaudit.stats import split
from specaudit.verify import RejectionVerifier

K = 4
FALSE_ALARM_RATE = 0.05
UNIFORMITY_RATE = 1e-3  # of all Kolmogorov-Smirnov tests together
SETTINGS = (SamplingParams(temperature=1.0), SamplingParams(temperature=0.8, top_p=0.9))
VOCABULARY = 128
END = 0


def tabular_pair() -> tuple[CausalModel, CausalModel, list[list[int]]]:
    """A target and a draft over 128 tokens, and prompts of one token each.

    Each row falls off as a power of the rank: some rows are all but sure of a token, some are flat. The draft's logits
    are the target's with noise. Every thirtieth token may be followed by the end of the output.
    """
    generator = torch.Generator().manual_seed(41)
    ranks = torch.stack([torch.randperm(VOCABULARY, generator=generator) for _ in range(VOCABULARY)])
    steepness = 0.7 + 1.6 * torch.rand(VOCABULARY, 1, generator=generator, dtype=torch.float64)
    logits = -steepness * (1.0 + ranks.double()).log()
    logits += 0.3 * torch.randn(VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64)
    may_end = torch.arange(VOCABULARY) % 30 == 7
    logits[:, END] = torch.where(may_end, logits.logsumexp(-1) - 3.0, -torch.inf)
    noise = 1.2 * torch.randn(VOCABULARY, VOCABULARY, generator=generator, dtype=torch.float64)
    target = TabularModel(logits, "tabular target", (END,))
    return target, TabularModel(logits + noise, "tabular draft", (END,)), [[token] for token in range(1, VOCABULARY)]


def zoo_pair() -> tuple[CausalModel, CausalModel, list[list[int]]]:
    """The bundled models and prompts."""
    target, draft = (load_model("zoo:tiny", role=role, dtype="float32", device="cpu") for role in ("target", "draft"))
    return target, draft, encode(load_workload("zoo:prompts"), target, chat=None).ids


UNIFORM = tuple(name for name in FIXED_SAMPLE if name != "repeated_output")  # whose p-value is a bound, mostly one
PAIRS = {"tabular": tabular_pair, "zoo": zoo_pair}


def decoded(
    target: CausalModel, drafter: Any, prompts: Sequence[list[int]], params: SamplingParams, options: argparse.Namespace
) -> list[list[Transcript]]:
    """Every audit's outputs: of randomly chosen prompts, each under a seed of its own."""
    wanted = options.audits * options.outputs
    chosen = np.random.default_rng([params.seed, 3]).integers(len(prompts), size=wanted)
    batches = decode_batches(
        ModelTarget(target), drafter, RejectionVerifier(), [prompts[place] for place in chosen], params,
        Limits(options.max_new_tokens, target.end_ids), k=K, batch_size=options.batch_size,
    )  # fmt: skip
    made: dict[int, Transcript] = {}
    for indexes, batch in batches:
        made.update(zip(indexes, batch.transcripts, strict=True))
    return [[made[start + place] for place in range(options.outputs)] for start in range(0, wanted, options.outputs)]


def figures_of(
    groups: Sequence[Sequence[Transcript]], target: CausalModel, drafter: Any, params: SamplingParams, share: float
) -> dict[str, Any]:
    """Audits one group after another, and counts what they found; ``share`` is that of one Kolmogorov-Smirnov test."""
    flagged, alone, verdicts, largest = Counter(), Counter(), Counter(), -math.inf
    p_values: dict[str, list[float]] = {name: [] for name in FIXED_SAMPLE}
    for number, group in enumerate(groups):
        result = audit(target, drafter, group, false_alarm_rate=FALSE_ALARM_RATE, seed=number)
        verdicts[result["verdict"]] += 1
        largest = max(largest, result["log10_e"])
        for test in result["tests"]:
            flagged[test["name"]] += test["flagged"]
            if "p_value" in test:
                p_values[test["name"]].append(test["p_value"])
            elif "log10_e" in test:
                alone[test["name"]] += test["statistic"] >= -math.log(FALSE_ALARM_RATE)
    tokens = [sum(len(one.output_ids) for one in group) for group in groups]
    rounds = sum(len(one.rounds or ()) for group in groups for one in group)
    return {
        "temperature": params.temperature, "top_p": params.top_p, "audits": len(groups),
        "tokens_of_an_audit": {"least": min(tokens), "mean": float(np.mean(tokens)), "most": max(tokens)},
        "tokens_per_round": sum(tokens) / rounds,
        "verdicts": dict(verdicts),
        "violated": verdicts["violated"], "allowed": allowed(len(groups)),
        "passed": verdicts["violated"] <= allowed(len(groups)),
        "flagged_by_test": dict(flagged),
        "flagged_by_an_e_process_given_the_whole_rate": dict(alone),
        "largest_log10_e": largest,
        "uniformity": {name: uniformity(p_values[name], share) for name in UNIFORM},
    }  # fmt: skip


def allowed(audits: int) -> int:
    """As many accusations as the promised rate and three standard errors make."""
    error = math.sqrt(FALSE_ALARM_RATE * (1.0 - FALSE_ALARM_RATE) / audits)
    return math.floor(audits * (FALSE_ALARM_RATE + 3.0 * error))


def uniformity(p_values: Sequence[float], share: float) -> dict[str, Any]:
    """The Kolmogorov-Smirnov test of p-values of independent audits."""
    result = scipy.stats.kstest(p_values, "uniform")
    return {
        "ks_statistic": float(result.statistic), "ks_p_value": float(result.pvalue), "share": share,
        "passed": bool(result.pvalue > share), "tenths": np.histogram(p_values, bins=10, range=(0.0, 1.0))[0].tolist(),
        "below_0.05": sum(p <= 0.05 for p in p_values), "below_0.01": sum(p <= 0.01 for p in p_values),
    }  # fmt: skip


def overlap(target: CausalModel, draft: CausalModel, groups: Sequence[Sequence[Transcript]], params: Any) -> float:
    """The mean of sum min(p, q) over the tokens of the first audit: how close the pair is."""
    pairs = [(one.prompt_ids, one.output_ids) for one in groups[0]]
    rows = [
        torch.minimum(*(processed_probs(logits, params) for logits in both)).sum(-1)
        for both in zip(*([x for _, x in model.output_logits(pairs)] for model in (target, draft)), strict=True)
    ]
    return float(torch.cat(rows).mean())


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """The figures of every setting."""
    target, draft, prompts = PAIRS[options.pair]()
    drafter = create_drafter("draft", target, lambda _: draft)
    names = [f"{test}, setting {place}" for place in range(len(SETTINGS)) for test in UNIFORM]
    share = split(UNIFORMITY_RATE, names)[names[0]]
    rows = []
    for place, setting in enumerate(SETTINGS):
        params = SamplingParams(setting.temperature, top_p=setting.top_p, seed=options.seed + place)
        started = time.process_time()
        groups = decoded(target, drafter, prompts, params, options)
        half = time.process_time()
        print(f"decoded in {half - started:.0f} s of processor", file=sys.stderr)
        row = figures_of(groups, target, drafter, params, share)
        row["overlap"] = overlap(target, draft, groups, params)
        row["processor_seconds"] = {"decode": half - started, "audit": time.process_time() - half}
        rows.append(row)
        print(_line(row), file=sys.stderr)
    return {
        "pair": options.pair, "k": K, "false_alarm_rate": FALSE_ALARM_RATE, "uniformity_rate": UNIFORMITY_RATE,
        "outputs_of_an_audit": options.outputs, "max_new_tokens": options.max_new_tokens, "settings": rows,
    }  # fmt: skip


def _line(row: dict[str, Any]) -> str:
    tokens, by_test = (
        row["tokens_of_an_audit"],
        {name: count for name, count in row["flagged_by_test"].items() if count},
    )
    uniform = ", ".join(f"{name} {one['ks_p_value']:.3g}" for name, one in row["uniformity"].items())
    return (
        f"T={row['temperature']:g} top_p={row['top_p']:g}: {row['violated']} of {row['audits']} audits of "
        f"{tokens['least']} to {tokens['most']} tokens (mean {tokens['mean']:.0f}) violated, {row['allowed']} allowed; "
        f"by test {by_test}; KS p-values: {uniform} (each above {row['uniformity']['pit_lag']['share']:.3g})"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", choices=sorted(PAIRS), default="tabular")
    parser.add_argument("--out", type=Path, required=True, help="Figures, as JSON.")
    parser.add_argument("--audits", type=int, default=400, help="Of each setting.")
    parser.add_argument("--outputs", type=int, default=26, help="Of each audit.")
    parser.add_argument("--max-new-tokens", type=int, default=250)
    parser.add_argument("--batch-size", type=int, default=10_000, help="Use some 50 with --pair zoo.")
    parser.add_argument("--seed", type=int, default=1000)
    return parser.parse_args()


if __name__ == "__main__":
    given = _options()
    result = measured(given)
    write_json(given.out, with_schema("benchmark.audit_calibration", result, provenance(seed=given.seed)))
    for setting_row in result["settings"]:
        print(_line(setting_row))
