"""How fast transcripts are audited beside how fast the target decoded them, in one process and the same dtype."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from specaudit.acceptance.pair import decode_prompts, encode, limits_of, load_pair
from specaudit.acceptance.workloads import load_workload
from specaudit.audit.lossless import audit
from specaudit.core.artifacts import provenance, with_schema, write_json
from specaudit.core.types import SamplingParams


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of both, without loading; the audit's own measurement of the machine's noise is part of its time."""
    pair = load_pair(options.target, None, dtype=options.dtype)
    prompts = encode(load_workload(options.dataset, limit=options.limit), pair.target, chat=None)
    params, limits = SamplingParams(options.temperature), limits_of(pair.target, options.max_new_tokens)
    started = time.perf_counter()
    outputs = decode_prompts(pair, prompts, params, limits, batch_size=options.batch_size)
    decoded = time.perf_counter() - started
    started = time.perf_counter()
    verdict = audit(pair.target, None, outputs)["verdict"]
    audited = time.perf_counter() - started
    tokens = sum(len(one.output_ids) for one in outputs)
    return {
        "target": pair.target.name, "dtype": options.dtype, "batch_size": options.batch_size, "tokens": tokens,
        "prompt_tokens": sum(len(one.prompt_ids) for one in outputs), "verdict": verdict,
        "decoded_tokens_per_second": tokens / decoded, "audited_tokens_per_second": tokens / audited,
        "ratio": decoded / audited,
    }  # fmt: skip


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="zoo:tiny")
    parser.add_argument("--dataset", default="zoo:prompts")
    parser.add_argument("--limit", type=int, default=32)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, required=True, help="Figures, as JSON.")
    return parser.parse_args()


if __name__ == "__main__":
    given = _options()
    figures = measured(given)
    write_json(given.out, with_schema("benchmark.audit_speed", figures, provenance(seed=0)))
    for name, value in figures.items():
        print(f"{name}: {value}")
