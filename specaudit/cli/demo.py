"""``specaudit demo``: everything, on the bundled pair, into a report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from specaudit.cli import options as o

TEMPERATURE = 0.8
MAX_NEW_TOKENS = 64
K_MAX = 8
SWEEPS = 4  # of the cost table before the bench, and as many again during it
BENCH_EVERY = 3  # of the prompts, which stand category by category
AS_GOOD = 0.97  # the smallest k that is predicted as good as the best, but for the costs' own error, is benched


def run(
    out: Annotated[Path, typer.Option(help="Folder of the report and its artifacts.")] = Path("specaudit-demo"),
    seed: o.Seed = 0,
    as_json: o.Json = False,
) -> int:
    """Profile, measure, predict, audit and bench the bundled pair, and decide."""
    from specaudit.cli import setting
    from specaudit.cli.console import note, progress, show
    from specaudit.core.artifacts import check_writable, machine, with_schema, write_json
    from specaudit.cost.timing import bind_threads
    from specaudit.report import decide, exit_code, load_policy, render, summary_text

    bind_threads()
    params = setting.sampling(temperature=TEMPERATURE, seed=seed)
    check_writable("--out", out, folder=True)
    workload = setting.workload("zoo:prompts")
    pair = setting.load("zoo:tiny", "zoo:tiny", "float32", "cpu", False)
    import numpy as np

    from specaudit.acceptance.pair import decode_prompts, limits_of
    from specaudit.acceptance.profile import profile_outputs, write
    from specaudit.audit.lossless import audit
    from specaudit.cost.bench import bench, with_prediction
    from specaudit.cost.measure import CostMeter, Plan, cost_table
    from specaudit.cost.predict import predict

    assert pair.drafter is not None
    chosen = setting.prompts(pair, workload)
    where_from = setting.provenance(pair, chosen, params, max_new_tokens=MAX_NEW_TOKENS)
    limits = limits_of(pair.target, MAX_NEW_TOKENS)

    note("1/5 profile: the target's own outputs, scored once for every k")
    outputs = decode_prompts(pair, chosen, params, limits, batch_size=16, progress=progress("generate"))
    profile, figures = profile_outputs(
        pair.target, pair.drafter, outputs, MAX_NEW_TOKENS, seed=seed, progress=progress("score")
    )
    note("2/5 measure: what a round costs on this machine")
    context = int(figures["mean_context"])
    plan = Plan(k=K_MAX, contexts=(context,), pairs=SWEEPS)
    meter = CostMeter(pair.target, pair.drafter, chosen.ids, params, plan, 1, context)
    for _ in progress("measure")(range(SWEEPS), SWEEPS):
        meter.sweep()

    def predicted(ks: Sequence[int] | None = None) -> dict[str, Any]:
        return predict(profile, figures, cost_table([meter]), np.random.default_rng(seed), ks)

    forecast = predicted()
    best = next(row["k"] for row in forecast["rows"] if row["predicted"] >= AS_GOOD * forecast["best"]["predicted"])
    note(f"3/5 audit: the speculative decoder's own outputs at k = {best}")
    drafted = decode_prompts(pair, chosen, params, limits, k=best, batch_size=16, progress=progress("decode"))
    audited = audit(pair.target, pair.drafter, drafted, seed=seed, progress=progress("score"))
    note(f"4/5 bench: baseline and speculative decoding at k = {best}, in turn")
    few = chosen.ids[::BENCH_EVERY]
    speeds, _ = bench(pair.target, pair.drafter, few, params, limits, [best], 1, progress("bench"), meter)
    costs, prediction = cost_table([meter]), predicted([best])
    rows = with_prediction(speeds, prediction)
    measured: dict[str, Any] = {"target": pair.target.name, "draft": pair.drafter.name, "mode": "eager", "rows": rows}
    note("5/5 report")
    artifacts = {
        name: with_schema(name, payload, where_from)
        for name, payload in (
            ("profile", figures),
            ("costs", costs),
            ("prediction", prediction),
            ("audit", audited),
            ("bench", measured),
        )
    }
    decision = decide(**artifacts, policy=load_policy(None), machine=machine())
    decision = {**decision, "provenance": where_from}
    render(decision, **artifacts, out=out)
    write(out / "profile", profile, figures, where_from)
    for name in ("costs", "audit", "bench"):
        write_json(out / f"{name}.json", artifacts[name])
    show(with_schema("report", decision, where_from), lambda: print(summary_text(decision)), as_json)
    note(f"the report is {out / 'index.html'}")
    return exit_code(decision["decision"])
