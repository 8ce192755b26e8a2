"""The report's folder: one page that needs nothing else, and the same for machines."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specaudit.core.artifacts import atomic_folder, atomic_path, check_writable, with_schema, write_json
from specaudit.report import tables
from specaudit.report.highlights import headline_facts, notes
from specaudit.report.junit import junit_xml
from specaudit.report.summary import headline, summary_markdown
from specaudit.report.wording import MARKS, label

Artifact = Mapping[str, Any]

TEMPLATES = Path(__file__).parent / "templates"
_CAPTIONS = {
    "figure-speedup.svg": "Predicted speedup by k. It pays above the dotted line; a formula may leave the frame.",
    "figure-tokens.svg": "Tokens per round by k. The dashed estimates ignore that rounds restart at hard tokens.",
    "figure-depth.svg": "Acceptance of a draft token by its depth in the round.",
    "figure-categories.svg": "Acceptance by category of prompts.",
}
_DECISIONS = {
    "go": "Every gate passed: switch it on.",
    "no-go": "At least one gate failed: leave it off.",
    "undecided": "The evidence does not settle every gate; the reasons say what would.",
}


def render(
    report: Artifact,
    *,
    profile: Artifact,
    costs: Artifact,
    prediction: Artifact,
    audit: Artifact,
    bench: Artifact | None,
    out: Path,
) -> None:
    """Write ``index.html``, ``report.json``, ``summary.md``, ``junit.xml`` and ``figure-*.svg`` into a folder.

    Everything is written or nothing is; an earlier report in the folder is replaced.

    Parameters
    ----------
    report : mapping
        What ``decide`` returned; its ``provenance``, if it has one, becomes the file's.
    profile, costs, prediction, audit, bench
        The artifacts that it was decided from.
    out : Path
        The folder.

    Raises
    ------
    InputError
        If the folder cannot be written.
    """
    out = Path(out)
    check_writable("--out", out, folder=True)
    payload = {key: value for key, value in report.items() if key not in ("schema", "provenance")}
    full = with_schema("report", payload, report.get("provenance") or {})
    artifacts = {"profile": profile, "costs": costs, "prediction": prediction, "audit": audit}
    if bench is not None:
        artifacts["bench"] = bench
    with atomic_folder(out) as folder:
        figures = _save_figures(folder, artifacts)
        write_json(folder / "report.json", full)
        (folder / "index.html").write_text(_page(full, artifacts, figures), encoding="utf-8")
        (folder / "summary.md").write_text(summary_markdown(full), encoding="utf-8")
        (folder / "junit.xml").write_text(junit_xml(full), encoding="utf-8")
    for name in _CAPTIONS.keys() - figures.keys():
        # A figure of an earlier report that this one does not have.
        (out / name).unlink(missing_ok=True)


def draw_bench(bench: Artifact, path_svg: Path) -> None:
    """The chart of a bench as a file of its own."""
    from specaudit.report import svg
    from specaudit.report.figures import speedups_measured

    with atomic_path(path_svg) as temporary:
        svg.save(speedups_measured(bench), temporary)


def draw_profile(profile: Artifact, folder: Path) -> list[str]:
    """The figures of a profile as SVG files in a folder; those that it has no figures for are left out."""
    from specaudit.report import figures, svg

    drawn = {
        "survival.svg": figures.survival_by_depth(profile),
        "depth.svg": figures.acceptance_by_depth(profile),
        "entropy.svg": figures.acceptance_by_entropy(profile),
        "tokens.svg": figures.tokens_by_k(profile),
    }
    if profile["by_category"]:
        drawn["categories.svg"] = figures.acceptance_by_category(profile)
    with atomic_folder(folder) as temporary:
        for name, figure in drawn.items():
            svg.save(figure, temporary / name)
    return sorted(drawn)


def _save_figures(folder: Path, artifacts: Mapping[str, Artifact]) -> dict[str, str]:
    """Writes the figures and returns their inline SVG by file name."""
    # Plotting takes a second to load, and the rest of the package needs none of it.
    from specaudit.report import figures
    from specaudit.report.svg import save

    profile = artifacts["profile"]
    drawn = {
        "figure-speedup.svg": figures.speedup_by_k(artifacts["prediction"], profile, artifacts.get("bench")),
        "figure-tokens.svg": figures.tokens_by_k(
            profile, artifacts.get("bench"), artifacts["prediction"]["best"]["batch"]
        ),
        "figure-depth.svg": figures.acceptance_by_depth(profile),
    }
    if profile["by_category"]:
        drawn["figure-categories.svg"] = figures.acceptance_by_category(profile)
    return {name: save(figure, folder / name) for name, figure in drawn.items()}


def _page(report: Artifact, artifacts: Mapping[str, Artifact], figures: Mapping[str, str]) -> str:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawn = {
        name.removeprefix("figure-").removesuffix(".svg"): {
            "svg": Markup(svg),
            "caption": _CAPTIONS[name],
            "file": name,
        }
        for name, svg in figures.items()
    }
    return environment.get_template("index.html.j2").render(
        report=report,
        headline=headline(report),
        meaning=_DECISIONS[report["decision"]],
        facts=headline_facts(report),
        reasons=[
            {"mark": MARKS[reason["passed"]], "label": label(reason["gate"]), "text": reason["text"]}
            for reason in report["reasons"]
        ],
        figures=drawn,
        notes=notes(report, artifacts),
        tables=_tables(report, artifacts),
        provenance=[tables.facts("report", report), *(tables.facts(*item) for item in artifacts.items())],
    )


def _tables(report: Artifact, artifacts: Mapping[str, Artifact]) -> dict[str, list[tables.Table]]:
    """The tables of each section that have rows."""
    found = {
        "speedup": tables.predictions(artifacts["prediction"]),
        "acceptance": [tables.categories(artifacts["profile"], report["speedup"]["k"])],
        "lossless": [tables.audit_tests(artifacts["audit"])],
        "cost": [tables.costs_table(artifacts["costs"])],
    }
    if "bench" in artifacts:
        found["speedup"].insert(1, tables.measurements(artifacts["bench"]))
    return {section: [table for table in listed if table.rows] for section, listed in found.items()}
