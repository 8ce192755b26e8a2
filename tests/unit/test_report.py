"""The report: every gate both ways and undecided, the decision, and what is written."""

import copy
import dataclasses
import html.parser
import json
import math
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specaudit.core.artifacts import read_json, with_schema
from specaudit.core.errors import InputError
from specaudit.report import (
    Policy,
    decide,
    draw_bench,
    exit_code,
    judge,
    load_policy,
    render,
    summary_markdown,
    summary_text,
    wording,
)
from specaudit.report.gates import gates
from specaudit.report.junit import junit_xml

MACHINE = {"processor": "Example 9000", "cores": 2, "system": "Linux x86_64", "accelerator": None, "threads": 2}
KEYS = {
    "lossless": {"verdict", "tokens", "false_alarm_rate", "log10_e", "detectable_contamination", "cause"},
    "acceptance": {"alpha", "alpha_interval", "alpha_by_depth", "by_category", "tokens_per_round"},
    "cost": {"draft_cost_ratio", "round_cost", "verify_ratio"},
    "speedup": {
        "k",
        "batch",
        "predicted",
        "interval",
        "measured",
        "measured_interval",
        "relative_error",
        "probability_slower",
        "article_formula",
        "leviathan_formula",
        "break_even_k_range",
    },
}
HOSTILE = '<script>alert("x")</script> $\\frac{1}$ | `a` ![i](https://e.example/p.png) & \x07 名'


def make_profile(k_max=4, categories=("chat", "code", "mathematics"), temperature=0.8):
    alpha = 0.7
    tokens = {str(k): sum(alpha**i for i in range(k + 1)) for k in range(1, k_max + 1)}
    by_category = {
        name: {
            "prompts": 10 + i,
            "tokens": 900 + i,
            "alpha": 0.8 * 0.9**i,
            "alpha_interval": [0.75 * 0.9**i, 0.85 * 0.9**i],
            "tokens_per_round": {k: 1 + (value - 1) * 0.9**i for k, value in tokens.items()},
        }
        for i, name in enumerate(categories)
    }
    return with_schema(
        "profile",
        {
            "target": "example/target",
            "draft": "example/draft",
            "prompts": 33,
            "tokens": 12345,
            "k_max": k_max,
            "alpha": alpha,
            "alpha_interval": [0.68, 0.72],
            "alpha_by_depth": [alpha - 0.01 * d for d in range(k_max)],
            "alpha_by_depth_interval": [[alpha - 0.01 * d - 0.03, alpha - 0.01 * d + 0.03] for d in range(k_max)],
            "tokens_per_round": tokens,
            "tokens_per_round_interval": {k: [value - 0.05, value + 0.05] for k, value in tokens.items()},
            "proposed_per_round": {k: float(k) for k in tokens},
            "by_category": by_category,
            "biased_estimates": {
                "uniform_starts": {k: value * 1.1 for k, value in tokens.items()},
                "geometric": {k: value * 1.05 for k, value in tokens.items()},
            },
            "sampling": {"temperature": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1},
        },
        {"versions": {"python": "3.11"}, "seed": 1, "data": ["a", "b"]},
    )


def make_costs(k_max=4, machine=MACHINE):
    rows = [
        {
            "width": k + 1,
            "k": k,
            "batch": 1,
            "context": 128,
            "round_cost": 1 + 0.1 * k,
            "interval": [0.98 + 0.1 * k, 1.02 + 0.1 * k],
            "seconds": 0.01 * (1 + 0.1 * k),
            "baseline_seconds": 0.01,
        }
        for k in range(1, k_max + 1)
    ]
    payload = {
        "target": "example/target",
        "draft": "example/draft",
        "mode": "eager",
        "machine": dict(machine),
        "baseline_seconds": 0.01,
        "draft_cost_ratio": 0.08,
        "verify_ratio": {str(k + 1): 1 + 0.02 * k for k in range(1, k_max + 1)},
        "rows": rows,
    }
    return with_schema("costs", payload, {"command": "specaudit measure"})


def make_prediction(profile, costs, interval=None, probability_slower=0.0):
    rows = []
    for batch in (8, 1):
        for row in costs["rows"]:
            tokens = profile["tokens_per_round"][str(row["k"])]
            cost = row["round_cost"] * (1.0 if batch == 1 else 1.9)
            rows.append(
                {
                    "k": row["k"],
                    "batch": batch,
                    "tokens_per_round": tokens,
                    "round_cost": cost,
                    "predicted": tokens / cost,
                    "interval": [tokens / cost - 0.04, tokens / cost + 0.04],
                    "probability_slower": probability_slower,
                    "article_formula": tokens / cost * 1.04,
                    "leviathan_formula": tokens / cost * 1.02,
                }
            )
    best = max(rows, key=lambda row: row["predicted"])
    if interval is not None:
        best["interval"] = interval
    payload = {"rows": rows, "best": {key: best[key] for key in ("k", "batch", "predicted")}}
    return with_schema("prediction", payload, {})


def make_audit(verdict="no_violation_found", tokens=12_000, detectable=0.03, preserves=True, cause=None):
    tests = [
        {"name": "e_process", "statistic": None, "log10_e": -0.4, "flagged": verdict == "violated"},
        {"name": "pit_chi_square", "statistic": 61.2, "p_value": 0.43, "flagged": False},
    ]
    payload = {
        "verdict": verdict,
        "tokens": tokens,
        "false_alarm_rate": 0.001,
        "log10_e": 7.25 if verdict == "violated" else -0.4,
        "detectable_contamination": detectable,
        "cause": cause,
        "preserves_target": preserves,
        "tests": tests,
    }
    return with_schema("audit", payload, {"dtype": "float32"})


def make_bench(prediction, factor=0.97, half_width=0.03, temperatures=(0.8,)):
    rows = [
        {
            "k": row["k"],
            "batch": row["batch"],
            "temperature": temperature,
            "baseline_tokens_per_second": 100.0,
            "tokens_per_second": 100.0 * row["predicted"] * factor,
            "speedup": row["predicted"] * factor,
            "speedup_interval": [row["predicted"] * factor - half_width, row["predicted"] * factor + half_width],
            "predicted": row["predicted"],
            "relative_error": 1 / factor - 1,
            "tokens_per_round": row["tokens_per_round"],
        }
        for row in prediction["rows"]
        for temperature in temperatures
    ]
    return with_schema("bench", {"rows": rows, "mode": "eager"}, {})


def artifacts(**changes):
    profile, costs = make_profile(), make_costs()
    prediction = make_prediction(profile, costs)
    made = {"profile": profile, "costs": costs, "prediction": prediction, "audit": make_audit(), "bench": None}
    return {**made, **changes}


def decided(policy=None, machine=MACHINE, **changes):
    return decide(**artifacts(**changes), policy=policy or Policy(), machine=machine)


def gate(report, name):
    return next(reason for reason in report["reasons"] if reason["gate"] == name)


def rendered(out, **changes):
    made = artifacts(**changes)
    report = decide(**made, policy=Policy(), machine=MACHINE)
    render({**report, "provenance": {"seed": 1, "machine": MACHINE}}, **made, out=out)
    return report


class Page(html.parser.HTMLParser):
    """Tags with their attributes and the visible text; refuses tags that do not nest."""

    VOID = frozenset({"meta", "link", "br", "hr", "img", "input", "use", "path", "rect", "stop"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "link"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


# -- the policy --


def test_policy_defaults_and_files(tmp_path):
    assert load_policy(None) == Policy()
    file = tmp_path / "policy.toml"
    file.write_text("[policy]\nminimum_speedup = 2\nrequire_lossless = false\n[other]\nminimum = 3\n")
    assert load_policy(file) == Policy(minimum_speedup=2, require_lossless=False)
    file.write_text("minimum_tokens = 10\n")
    assert load_policy(file) == Policy(minimum_tokens=10)
    file.write_text("")
    assert load_policy(str(file)) == Policy()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("minimum_sped = 1.2", "unknown key 'minimum_sped'; the closest known key is 'minimum_speedup'"),
        ("[policy]\nrequire_loseless = true", "the closest known key is 'require_lossless'"),
        ("x = 1", "the closest known key is"),
        ("minimum_speedup = 0", "minimum_speedup = 0 must be a number above 0; write, for example, 1.05"),
        ("minimum_speedup = nan", "minimum_speedup = nan must be a number"),
        ("minimum_speedup = true", "minimum_speedup = True must be a number"),
        ("minimum_speedup = '1'", "minimum_speedup = '1' must be a number"),
        ("maximum_probability_slower = 1.5", "must be a number between 0 and 1"),
        ("maximum_detectable_contamination = -0.1", "must be a number between 0 and 1"),
        ("maximum_relative_error = inf", "must be a number of 0 or more"),
        ("require_lossless = 'yes'", "require_lossless = 'yes' must be true or false"),
        ("require_same_machine = 1", "require_same_machine = 1 must be true or false"),
        ("minimum_tokens = 2.5", "minimum_tokens = 2.5 must be a whole number"),
        ("minimum_tokens = -1", "minimum_tokens = -1 must be a whole number"),
        ("policy = 3", "must be a table"),
        ("minimum_speedup = 2\n[policy]\n", "minimum_speedup stands above [policy]"),
        ("minimum_speedup = ", "is not TOML"),
    ],
)
def test_policy_errors_name_file_field_and_remedy(tmp_path, text, message):
    file = tmp_path / "policy.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        load_policy(file)
    assert str(caught.value).startswith(f"--policy = {str(file)[:20]}")
    assert "\n" not in str(caught.value)


def test_policy_unreadable(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_policy(tmp_path / "absent.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xff\n")
    with pytest.raises(InputError, match="is not TOML"):
        load_policy(tmp_path / "latin.toml")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Policy().minimum_speedup = 2  # pyright: ignore[reportAttributeAccessIssue]


# -- the gates --


def test_everything_passes():
    prediction = artifacts()["prediction"]
    report = decided(bench=make_bench(prediction))
    assert [reason["gate"] for reason in report["reasons"]] == [
        "lossless",
        "audit_power",
        "same_machine",
        "speedup",
        "probability_slower",
        "prediction_error",
    ]
    assert [reason["passed"] for reason in report["reasons"]] == [True] * 6
    assert report["decision"] == "go"
    for reason in report["reasons"]:
        assert set(reason) == {"gate", "passed", "value", "threshold", "text"}
        assert reason["text"].endswith(".")
        assert "\n" not in reason["text"]


CAUSE = {"name": "residual_from_target", "text": "the residual is drawn from the target."}


@pytest.mark.parametrize(
    ("audit", "passed", "words"),
    [
        (make_audit(), True, ["12,000 tokens", "0.001"]),
        (make_audit("violated", cause=CAUSE), False, ["7.25", "12,000", "residual_from_target", "correct the decoder"]),
        (make_audit("violated"), False, ["correct the decoder"]),
        (make_audit("inconclusive", tokens=80), None, ["80 tokens", "audit more"]),
        (make_audit(preserves=False), False, ["does not preserve", "require_lossless"]),
        (make_audit("inconclusive", preserves=False), False, ["does not preserve"]),
        (make_audit(preserves=None), True, ["No violation"]),
    ],
)
def test_lossless(audit, passed, words):
    found = gate(decided(audit=audit), "lossless")
    assert found["passed"] is passed
    assert found["value"] == audit["verdict"]
    assert all(word in found["text"] for word in words)


@pytest.mark.parametrize("audit", [make_audit("violated"), make_audit("inconclusive"), make_audit(preserves=False)])
def test_lossless_waived(audit):
    report = decided(Policy(require_lossless=False), audit=audit)
    assert gate(report, "lossless")["passed"] is True
    assert "Waived" in gate(report, "lossless")["text"]
    assert gate(report, "audit_power")["passed"] is True
    assert report["decision"] == "go"


DECLARED = "verifier_accept_k = 3 in proposal method 'greedy'"


def declaring(artifact):
    return {**artifact, "provenance": {**artifact["provenance"], "declares_lossy": DECLARED}}


@pytest.mark.parametrize(
    ("verdict", "preserves", "passed"),
    [("no_violation_found", True, None), ("inconclusive", True, None), ("violated", True, False),
     ("no_violation_found", False, False)],
)  # fmt: skip
@pytest.mark.parametrize("carrier", ["audit", "bench"])
def test_a_drafter_that_declares_lossy_acceptance_is_not_called_lossless(verdict, preserves, passed, carrier):
    audit, bench = make_audit(verdict, preserves=preserves), make_bench(artifacts()["prediction"])
    made = {"audit": audit, "bench": bench}
    report = decided(**{**made, carrier: declaring(made[carrier])})
    found = gate(report, "lossless")
    assert found["passed"] is passed
    assert report["decision"] != "go"
    assert report["lossless"]["declares_lossy"] == DECLARED
    if (verdict, preserves) == ("no_violation_found", True):
        assert f"declares {DECLARED}, and a server that honours this changes the output" in found["text"]
        assert report["decision"] == "undecided"
    again = judge(json.loads(json.dumps(report)), Policy(require_lossless=False))
    assert gate(again, "lossless")["passed"] is True
    assert DECLARED in gate(again, "lossless")["text"]


def test_nothing_declared_changes_nothing():
    audit = make_audit()
    for silent in ({}, {"declares_lossy": None}):
        report = decided(audit={**audit, "provenance": silent})
        assert gate(report, "lossless")["passed"] is True
        assert report["lossless"]["declares_lossy"] is None
    old = {**report, "lossless": {key: v for key, v in report["lossless"].items() if key != "declares_lossy"}}
    assert gate(judge(old, Policy()), "lossless")["passed"] is True


def test_the_page_says_what_a_drafter_declares(tmp_path):
    rendered(tmp_path, audit=declaring(make_audit()))
    assert "asks a server for lossy acceptance" in Page((tmp_path / "index.html").read_text()).text


@pytest.mark.parametrize(
    ("audit", "passed"),
    [
        (make_audit(detectable=0.10, tokens=2000), True),
        (make_audit(detectable=0.1000001), None),
        (make_audit(tokens=1999), None),
        (make_audit(detectable=None), None),
        (make_audit(detectable=math.nan), None),
        (make_audit("violated", detectable=None, tokens=50), True),
    ],
)
def test_audit_power(audit, passed):
    found = gate(decided(audit=audit), "audit_power")
    assert found["passed"] is passed
    assert found["threshold"] == {"detectable_contamination": 0.10, "tokens": 2000}
    if passed is None:
        assert "audit more tokens" in found["text"]


def test_the_text_shows_the_side_of_the_threshold():
    assert " 10.00001%," in gate(decided(audit=make_audit(detectable=0.1000001)), "audit_power")["text"]
    prediction = make_prediction(make_profile(), make_costs(), interval=[1.0499, 1.9])
    assert "1.0499x" in gate(decided(prediction=prediction), "speedup")["text"]


@pytest.mark.parametrize("field", ["processor", "cores", "accelerator", "threads", "system"])
def test_same_machine(field):
    assert gate(decided(), "same_machine")["passed"] is True
    costs = make_costs(machine={**MACHINE, field: "other"})
    report = decided(costs=costs)
    assert gate(report, "same_machine")["passed"] is None
    assert gate(report, "same_machine")["value"] == [field]
    assert field in gate(report, "same_machine")["text"]
    assert report["decision"] == "undecided"
    assert gate(decided(Policy(require_same_machine=False), costs=costs), "same_machine")["passed"] is True


def test_costs_of_an_unnamed_machine_are_undecided():
    costs = make_costs()
    del costs["machine"]
    found = gate(decided(costs=costs), "same_machine")
    assert found["passed"] is None
    assert "specaudit measure" in found["text"]


@pytest.mark.parametrize(
    ("interval", "passed", "words"),
    [
        ([1.05, 1.3], True, "1.05x required"),
        ([1.0, 1.3], None, "profile more prompts"),
        ([0.8, 1.0499], False, "leave it off"),
        ([0.8, 1.05], None, "spans"),
        ([None, None], None, "has no interval"),
        (None, True, ""),
    ],
)
def test_speedup(interval, passed, words):
    found = gate(decided(prediction=make_prediction(make_profile(), make_costs(), interval)), "speedup")
    assert found["passed"] is passed
    assert found["threshold"] == 1.05
    assert words in found["text"]


def test_a_measured_slowdown_fails_the_speedup():
    prediction = artifacts()["prediction"]
    slow = make_bench(prediction, factor=0.5)
    report = decided(bench=slow)
    assert gate(report, "speedup")["passed"] is False
    assert "measured" in gate(report, "speedup")["text"]
    assert report["decision"] == "no-go"
    # Measured at another temperature, it says nothing of this profile.
    other = make_bench(prediction, factor=0.5, temperatures=(0.0, 1.0))
    report = decided(bench=other)
    assert gate(report, "speedup")["passed"] is True
    assert report["speedup"]["measured"] is None
    assert all(reason["gate"] != "prediction_error" for reason in report["reasons"])


@pytest.mark.parametrize(("value", "passed"), [(0.05, True), (0.051, None), (0.5, None), (0.51, False), (None, None)])
def test_probability_slower(value, passed):
    prediction = make_prediction(make_profile(), make_costs(), probability_slower=value)
    found = gate(decided(prediction=prediction), "probability_slower")
    assert found["passed"] is passed
    assert found["threshold"] == 0.05


def test_a_lenient_policy_may_allow_to_be_slower_than_not():
    prediction = make_prediction(make_profile(), make_costs(), probability_slower=0.6)
    assert gate(decided(Policy(maximum_probability_slower=0.7), prediction=prediction), "probability_slower")["passed"]


@pytest.mark.parametrize(("factor", "passed"), [(0.97, True), (1.05, True), (0.8, None), (1.3, None)])
def test_prediction_error(factor, passed):
    bench = make_bench(artifacts()["prediction"], factor=factor, temperatures=(0.0, 0.8))
    report = decided(bench=bench)
    found = gate(report, "prediction_error")
    assert found["passed"] is passed
    assert found["value"] == pytest.approx(abs(1 / factor - 1))
    assert report["speedup"]["measured"] == pytest.approx(report["speedup"]["predicted"] * factor)


def test_prediction_error_unknown():
    bench = make_bench(artifacts()["prediction"])
    for row in bench["rows"]:
        row["relative_error"] = None
    assert gate(decided(bench=bench), "prediction_error")["passed"] is None


def test_any_failure_outweighs_what_is_undecided():
    costs = make_costs(machine={**MACHINE, "cores": 64})
    report = decided(audit=make_audit("violated"), costs=costs)
    assert report["decision"] == "no-go"
    assert decided(audit=make_audit("inconclusive"))["decision"] == "undecided"


def test_exit_codes():
    assert [exit_code(decision) for decision in ("go", "no-go", "undecided")] == [0, 1, 3]
    with pytest.raises(InputError, match="must be one of go, no-go, undecided"):
        exit_code("maybe")


# -- the content of report.json --


def test_report_has_the_keys_of_the_design():
    made = artifacts()
    report = decided(bench=make_bench(made["prediction"]))
    assert {"decision", "reasons", *KEYS} <= set(report)
    for section, keys in KEYS.items():
        assert keys <= set(report[section])
    speedup = report["speedup"]
    assert (speedup["k"], speedup["batch"]) == (made["prediction"]["best"]["k"], 1)
    assert speedup["break_even_k_range"] == [1, 2, 3, 4]
    assert report["cost"]["round_cost"] == pytest.approx({"1": 1.1, "2": 1.2, "3": 1.3, "4": 1.4})
    assert report["cost"]["draft_cost_ratio"] == 0.08
    json.dumps(report, allow_nan=False)


def test_break_even_leaves_out_slow_ks():
    prediction = artifacts()["prediction"]
    for row in prediction["rows"]:
        if row["k"] == 1:
            row["predicted"] = 0.99
    assert decided(prediction=prediction)["speedup"]["break_even_k_range"] == [2, 3, 4]


def test_inputs_are_not_changed():
    made = artifacts()
    before = copy.deepcopy(made)
    decide(**made, policy=Policy(), machine=MACHINE)
    assert made == before


@pytest.mark.parametrize(
    ("name", "key"), [("profile", "alpha"), ("costs", "verify_ratio"), ("audit", "tokens"), ("prediction", "best")]
)
def test_missing_fields_are_named(name, key):
    made = artifacts()
    del made[name][key]
    with pytest.raises(InputError, match=re.escape(f"has no field {key!r}")):
        decide(**made, policy=Policy(), machine=MACHINE)


def test_unusable_artifacts():
    with pytest.raises(InputError, match="must be one of"):
        decided(audit=make_audit("fine"))
    prediction = artifacts()["prediction"]
    prediction["best"] = {"k": 99, "batch": 1, "predicted": 2.0}
    with pytest.raises(InputError, match="is not among its rows"):
        decided(prediction=prediction)


def test_a_report_is_judged_again_by_another_policy():
    report = decided()
    again = judge(json.loads(json.dumps(report)), Policy(minimum_speedup=5))
    assert again["decision"] == "no-go"
    assert gate(again, "speedup")["threshold"] == 5
    assert {key: again[key] for key in KEYS} == {key: report[key] for key in KEYS}
    assert judge(again, Policy()) == report
    with pytest.raises(InputError, match="lacks what the gates read"):
        judge({"schema": "specaudit.report/1", "lossless": {}}, Policy())


probabilities = st.floats(0, 1) | st.none()


@given(
    verdict=st.sampled_from(["violated", "no_violation_found", "inconclusive"]),
    preserves=st.sampled_from([True, False, None]),
    tokens=st.integers(0, 10**7),
    detectable=probabilities,
    slower=probabilities,
    interval=st.none() | st.tuples(st.floats(0, 4), st.floats(0, 4)).map(lambda ends: sorted(ends)),
    measured=st.none() | st.floats(0.01, 4),
    declares=st.none() | st.just(DECLARED),
    differences=st.none() | st.lists(st.sampled_from(["cores", "threads"]), unique=True),
)
def test_only_evidence_gives_go(
    verdict, preserves, declares, tokens, detectable, slower, interval, measured, differences
):
    sections = {
        "lossless": {
            "verdict": verdict,
            "tokens": tokens,
            "false_alarm_rate": 0.01,
            "log10_e": 0.0,
            "detectable_contamination": detectable,
            "cause": None,
            "preserves_target": preserves,
            "declares_lossy": declares,
        },
        "cost": {"machine_differences": differences},
        "speedup": {
            "k": 2,
            "batch": 1,
            "predicted": 1.5,
            "interval": interval,
            "measured": measured,
            "measured_interval": None if measured is None else [measured, measured],
            "relative_error": None if measured is None else 1.5 / measured - 1,
            "probability_slower": slower,
        },
    }
    report = judge(sections, Policy())
    assert report["reasons"] == gates(sections, Policy())
    if report["decision"] == "go":
        assert verdict == "no_violation_found"
        assert preserves is not False
        assert declares is None
        assert differences == []
        assert tokens >= 2000
        assert detectable <= 0.1
        assert interval[0] >= 1.05
        assert slower <= 0.05
    if verdict == "violated" or preserves is False:
        assert report["decision"] == "no-go"


# -- what is written --


def test_folder(tmp_path):
    out = tmp_path / "new" / "report"
    report = rendered(out, bench=make_bench(artifacts()["prediction"]))
    assert sorted(path.name for path in out.iterdir()) == [
        "figure-categories.svg",
        "figure-depth.svg",
        "figure-speedup.svg",
        "figure-tokens.svg",
        "index.html",
        "junit.xml",
        "report.json",
        "summary.md",
    ]
    written = read_json("REPORT", out / "report.json", "report")
    assert written["provenance"] == {"seed": 1, "machine": MACHINE}
    assert {key: written[key] for key in report} == json.loads(json.dumps(report))
    for file in out.glob("*.svg"):
        assert ElementTree.parse(file).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_page_is_self_contained_and_nests(tmp_path):
    rendered(tmp_path / "r", bench=make_bench(artifacts()["prediction"]))
    text = (tmp_path / "r" / "index.html").read_text(encoding="utf-8")
    assert "http://" not in text
    assert "https://" not in text
    assert "@import" not in text
    page = Page(text)
    tags = [tag for tag, _ in page.tags]
    assert not {"script", "img", "iframe", "object", "embed"} & set(tags)
    assert tags.count("h1") == tags.count("main") == 1
    assert tags.count("figure") == 4
    references = [value for _, attrs in page.tags for name, value in attrs.items() if name in ("src", "href")]
    assert all(value.startswith(("#", "data:")) for value in references)
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {value[1:] for value in references if value.startswith("#")} <= set(ids)
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(ids)
    assert all(attrs.get("aria-label") for tag, attrs in page.tags if tag == "svg")
    for words in (
        "go",
        "Every gate passed",
        "Measured speedup",
        "no violation found",
        "example/target",
        "pit chi square",
    ):
        assert words in page.text


def test_hostile_names_are_shown_and_not_run(tmp_path):
    made = artifacts(
        profile=make_profile(categories=(HOSTILE, "b")),
        audit=make_audit("violated", cause={"name": HOSTILE, "text": HOSTILE}),
    )
    for name in ("target", "draft"):
        made["profile"][name] = HOSTILE
    made["profile"]["biased_estimates"][HOSTILE] = {"1": 1.5}
    made["audit"]["tests"][0]["name"] = HOSTILE
    made["costs"]["machine"]["processor"] = HOSTILE
    made["costs"]["provenance"] = {HOSTILE: HOSTILE}
    rendered(tmp_path / "r", **made)
    text = (tmp_path / "r" / "index.html").read_text(encoding="utf-8")
    page = Page(text)
    assert {"script", "img"}.isdisjoint(tag for tag, _ in page.tags)
    assert '<script>alert("x")' in page.text
    summary = (tmp_path / "r" / "summary.md").read_text(encoding="utf-8")
    outside_code = re.sub(r"(?<!\\)`[^`]*`", "", summary)
    assert "<script>" not in outside_code
    assert "![i](" not in outside_code
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in summary.splitlines() if line.startswith("|")} == {4, 7}
    ElementTree.parse(tmp_path / "r" / "junit.xml")
    for file in (tmp_path / "r").glob("*.svg"):
        ElementTree.parse(file)


def without(made, *paths):
    """The artifacts with None at each path."""
    made = copy.deepcopy(made)
    for path in paths:
        *parents, last = path
        place = made
        for key in parents:
            place = place[key]
        place[last] = None
    return made


@pytest.mark.parametrize(
    "made",
    [
        artifacts(),
        artifacts(profile=make_profile(categories=("only",))),
        artifacts(profile=make_profile(categories=())),
        artifacts(profile=make_profile(categories=tuple(f"category {i}" for i in range(40)))),
        artifacts(
            profile=make_profile(k_max=1),
            costs=make_costs(k_max=1),
            prediction=make_prediction(make_profile(k_max=1), make_costs(k_max=1)),
            bench=make_bench(make_prediction(make_profile(k_max=1), make_costs(k_max=1))),
        ),
        without(
            artifacts(),
            ("profile", "alpha"),
            ("profile", "alpha_interval"),
            ("profile", "alpha_by_depth", 2),
            ("profile", "alpha_by_depth", 3),
            ("profile", "alpha_by_depth_interval", 3),
            ("profile", "tokens_per_round", "4"),
            ("profile", "tokens_per_round_interval", "1"),
            ("profile", "biased_estimates", "geometric"),
            ("profile", "by_category", "code", "alpha"),
            ("profile", "by_category", "chat", "alpha_interval"),
            ("prediction", "rows", 4, "interval"),
            ("prediction", "rows", 4, "leviathan_formula"),
            ("prediction", "rows", 5, "predicted"),
            ("costs", "rows", 0, "interval"),
            ("costs", "baseline_seconds"),
            ("costs", "draft_cost_ratio"),
            ("audit", "detectable_contamination"),
            ("audit", "log10_e"),
            ("audit", "tests"),
        ),
        without(artifacts(profile=make_profile(k_max=4)), *[("profile", "alpha_by_depth", i) for i in range(4)]),
        without(artifacts(), ("profile", "by_category"), ("profile", "biased_estimates"), ("profile", "sampling")),
    ],
    ids=["no bench", "one category", "no category", "many", "k 1", "nones", "no depth", "no parts"],
)
def test_renders_what_is_incomplete(tmp_path, made):
    rendered(tmp_path / "r", **made)
    Page((tmp_path / "r" / "index.html").read_text(encoding="utf-8"))
    ElementTree.parse(tmp_path / "r" / "junit.xml")


def test_rendering_again_replaces_and_is_the_same(tmp_path):
    out = tmp_path / "r"
    rendered(out)
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / "notes.txt").write_text("mine")
    rendered(out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == {**first, "notes.txt": b"mine"}
    rendered(out, audit=make_audit("violated"), profile=make_profile(categories=()))
    assert json.loads((out / "report.json").read_text())["decision"] == "no-go"
    assert not (out / "figure-categories.svg").exists()
    assert (out / "notes.txt").exists()


@pytest.mark.parametrize("existing", [True, False])
def test_nothing_is_half_written(tmp_path, existing, monkeypatch):
    out = tmp_path / "r"
    if existing:
        rendered(out)
    before = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def broken(report):
        raise RuntimeError("no summary today")

    monkeypatch.setattr("specaudit.report.rendering.summary_markdown", broken)
    with pytest.raises(RuntimeError, match="no summary today"):
        rendered(out, audit=make_audit("violated"))
    assert {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert out.exists() is existing


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "r").write_text("mine")
    with pytest.raises(InputError, match="--out"):
        rendered(tmp_path / "r")


def test_junit():
    costs = make_costs(machine={**MACHINE, "cores": 64})
    report = decided(audit=make_audit("violated"), costs=costs)
    suite = ElementTree.fromstring(junit_xml(report)).find("testsuite")
    assert suite is not None
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert list(cases) == [reason["gate"] for reason in report["reasons"]]
    failure, skipped = cases["lossless"].find("failure"), cases["same_machine"].find("skipped")
    assert failure is not None
    assert "correct the decoder" in failure.get("message", "")
    assert skipped is not None
    assert "cores" in skipped.get("message", "")


def test_summaries():
    report = decided(bench=make_bench(artifacts()["prediction"]), audit=make_audit("inconclusive"))
    markdown, text = summary_markdown(report), summary_text(report)
    assert markdown.startswith("## Speculative decoding: undecided\n")
    assert "| ❔ undecided | Lossless |" in markdown
    assert f"| **{report['speedup']['k']}** |" in markdown
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(tables) == (2 + 6) + (2 + 4)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables} == {4, 7}
    assert text.startswith("UNDECIDED: ")
    assert len(text.splitlines()) == 7
    # A report read back from its file says the same.
    assert summary_markdown(json.loads(json.dumps(report))) == markdown


def test_a_bench_of_several_drafts_gives_the_profiled_ones_rows():
    made = artifacts()
    bench = make_bench(made["prediction"])
    others = [{**row, "draft": "another", "speedup": 0.1} for row in bench["rows"]]
    own = [{**row, "draft": made["profile"]["draft"]} for row in bench["rows"]]
    assert decided(bench={**bench, "rows": others + own})["speedup"] == decided(bench=bench)["speedup"]
    assert decided(bench={**bench, "rows": others})["speedup"]["measured"] is None


def test_the_chart_of_a_bench(tmp_path):
    bench = make_bench(artifacts()["prediction"], temperatures=(0.0, 0.8))
    rows = [{**row, "draft": draft} for row in bench["rows"] for draft in ("one", "$two$")]
    rows = [{**row, "predicted": None} if row["draft"] == "one" else row for row in rows]
    draw_bench({**bench, "target": "big", "rows": rows}, tmp_path / "chart.svg")
    drawn = (tmp_path / "chart.svg").read_text(encoding="utf-8")
    for name in ("one, T 0, batch 8", "$two$, T 0.8, batch 1", "$two$, T 0, batch 1: predicted", "break-even"):
        assert name in drawn
    assert "one, T 0, batch 8: predicted" not in drawn
    assert [path.name for path in tmp_path.iterdir()] == ["chart.svg"]


def test_numbers_in_words():
    shown = [
        wording.number(value) for value in (None, math.nan, 0, 0.0, 7, 12345, 1.8349, 12345.6, 0.00123, 2e-9, -0.5)
    ]
    assert shown == ["–", "–", "0", "0", "7", "12,345", "1.83", "12,346", "0.00123", "2.00e-09", "-0.500"]
    assert wording.between([1, None]) == wording.between(None) == wording.percent(None) == "–"
    assert wording.beside(1.04999, 1.05) == "1.04999"
    assert wording.beside(1.05, 1.05) == "1.05"


def test_deciding_loads_nothing_heavy():
    heavy = ["torch", "transformers", "matplotlib", "seaborn", "jinja2", "pandas", "numpy"]
    code = f"import sys, specaudit.report; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
