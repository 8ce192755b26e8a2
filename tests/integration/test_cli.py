"""The commands as a user meets them: what they refuse, and the road from prompts to a decision."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from commands import Done, inside, refused, specaudit

from specaudit.audit.lossless import Audit
from specaudit.models.loading import ZOO

pytestmark = pytest.mark.skipif(not (ZOO / "tiny").is_dir(), reason=f"the bundled models are not in {ZOO / 'tiny'}")

COMMANDS = ("demo", "generate", "audit", "profile", "measure", "predict", "bench", "report", "gate")
DECODING = ("generate", "audit", "profile", "bench")
RUNNING = (*DECODING, "measure")
VERDICTS = {"no_violation_found": 0, "violated": 1, "inconclusive": 3}
DECISIONS = {"go": 0, "no-go": 1, "undecided": 3}


# The road: each stage once


@pytest.fixture(scope="module")
def road(tmp_path_factory):
    """A folder with one artifact of every stage, made by the commands with --json."""
    folder = tmp_path_factory.mktemp("road")
    pair = ("--target", "zoo:tiny", "--draft", "zoo:tiny", "--json")
    few = ("--dataset", "zoo:prompts", "--limit", 4, "--max-new-tokens", 8)
    stages = {
        "generate": (*pair, *few, "--temperature", 0.8, "--batch-size", 3, "--out", "transcripts.jsonl"),
        "audit": (*pair, *few, "--temperature", 0.8, "--out", "audit.json"),
        "profile": (*pair, *few, "--temperature", 0.8, "--out", "profile"),
        "measure": (*pair, "--k", 2, "--pairs", 2, "--rounds", 4, "--contexts", 32, "--out", "costs.json"),
        "predict": ("--profile", "profile", "--costs", "costs.json", "--json", "--out", "prediction.json"),
        "bench": (
            *pair, *few, "--k", "1,2", "--temperature", "0,0.8", "--profile", "profile", "--costs", "costs.json",
            "--out", "bench.json",
        ),
        "report": (
            "--profile", "profile", "--costs", "costs.json", "--audit", "audit.json", "--bench", "bench.json",
            "--out", "report", "--json",
        ),
        "gate": ("report/report.json", "--json"),
    }  # fmt: skip
    with inside(folder):
        return Road(folder, {name: specaudit(name, *argv) for name, argv in stages.items()})


@dataclass(frozen=True)
class Road:
    folder: Path
    done: dict[str, Done]

    def artifact(self, path):
        return json.loads((self.folder / path).read_text(encoding="utf-8"))

    @property
    def lines(self):
        return self.done["generate"].out.splitlines()


KEYS = {
    "audit": "verdict tokens false_alarm_rate log10_e detectable_contamination cause tests",
    "profile": "prompts tokens alpha alpha_interval alpha_by_depth alpha_by_depth_interval tokens_per_round "
    "tokens_per_round_interval by_category",
    "measure": "rows baseline_seconds draft_cost_ratio mode machine",
    "predict": "rows best",
    "bench": "rows",
    "report": "decision reasons lossless acceptance cost speedup",
    "gate": "decision reasons lossless acceptance cost speedup",
}
ROW_KEYS = {
    "measure": "width batch context round_cost interval seconds",
    "predict": "k batch predicted interval probability_slower article_formula leviathan_formula",
    "bench": "k batch temperature baseline_tokens_per_second tokens_per_second speedup speedup_interval predicted "
    "relative_error tokens_per_round",
}
SCHEMAS = {"measure": "costs", "predict": "prediction", "gate": "report"}
PATHS = {
    "audit": "audit.json", "profile": "profile/profile.json", "measure": "costs.json", "predict": "prediction.json",
    "bench": "bench.json", "report": "report/report.json",
}  # fmt: skip


@pytest.mark.parametrize("stage", KEYS)
def test_json_is_the_artifact(road, stage):
    artifact = road.done[stage].json
    assert artifact["schema"] == f"specaudit.{SCHEMAS.get(stage, stage)}/1"
    assert set(KEYS[stage].split()) <= artifact.keys()
    for row in artifact["rows"] if stage in ROW_KEYS else []:
        assert set(ROW_KEYS[stage].split()) <= row.keys()
    if stage in PATHS:
        assert artifact == road.artifact(PATHS[stage])


@pytest.mark.parametrize("stage", PATHS)
def test_every_artifact_says_where_it_comes_from(road, stage):
    where_from = road.done[stage].json["provenance"]
    assert where_from["command"].startswith(f"specaudit {stage} --")
    assert where_from["seed"] == 0
    assert {"python", "specaudit", "torch", "transformers"} <= where_from["versions"].keys()
    assert where_from["machine"]["threads"] == torch.get_num_threads()
    if stage not in ("predict", "report"):
        names = ("target", "draft", "dtype", "device")
        assert [where_from[name] for name in names] == ["zoo:tiny", "zoo:tiny", "float32", "cpu"]
        assert where_from["target_content"].startswith("sha256:")
        assert where_from["target_content"] != where_from["draft_content"]
        assert where_from["dataset"] == "zoo:prompts"
        assert len(where_from["dataset_fingerprint"]) == 16


def test_exit_codes(road):
    codes = {stage: done.code for stage, done in road.done.items()}
    verdict, decision = road.done["audit"].json["verdict"], road.done["report"].json["decision"]
    assert codes == {
        "generate": 0, "audit": VERDICTS[verdict], "profile": 0, "measure": 0, "predict": 0, "bench": 0,
        "report": DECISIONS[decision], "gate": DECISIONS[decision],
    }  # fmt: skip
    assert road.done["gate"].json["decision"] == decision


def test_transcripts_have_the_schema(road):
    assert (road.folder / "transcripts.jsonl").read_text(encoding="utf-8").splitlines() == road.lines
    rows = [json.loads(line) for line in road.lines]
    assert len(rows) == len({row["sampling"]["seed"] for row in rows}) == 4
    for row in rows:
        assert list(row) == [
            "schema", "prompt_ids", "output_ids", "sampling", "rounds", "engine", "finish_reason", "category",
        ]  # fmt: skip
        assert row["schema"] == "specaudit.transcript/1"
        assert {name: value for name, value in row["sampling"].items() if name != "seed"} == {
            "temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
        }  # fmt: skip
        assert row["prompt_ids"]
        assert 1 <= len(row["output_ids"]) <= 8
        assert 0 <= sum(row["rounds"]) + len(row["rounds"]) - len(row["output_ids"]) <= 1
        assert {"name": "specaudit", "method": "zoo:tiny", "k": 4}.items() <= row["engine"].items()
        assert row["engine"]["version"]
        assert row["finish_reason"] in (("length", "stop") if len(row["output_ids"]) == 8 else ("stop",))
        assert row["category"] is None or isinstance(row["category"], str)


def test_a_note_goes_to_standard_error(road):
    tokens = sum(len(json.loads(line)["output_ids"]) for line in road.lines)
    assert f"4 outputs, {tokens} tokens, " in road.done["generate"].err
    assert "in transcripts.jsonl" in road.done["generate"].err


def test_the_figures_of_the_road(road):
    audit, profile, costs, prediction, bench = (
        road.done[stage].json for stage in ("audit", "profile", "measure", "predict", "bench")
    )
    for test in audit["tests"]:
        assert {"name", "statistic"} < test.keys()
    tokens = sum(len(json.loads(line)["output_ids"]) for line in road.lines)
    # The same seeds, draft and k as the transcripts.
    assert (audit["tokens"], audit["transcripts"]) == (tokens, 4)
    assert profile["prompts"] == 4
    assert list(profile["tokens_per_round"]) == [str(k) for k in range(1, 17)]
    assert len(profile["alpha_by_depth"]) == len(profile["alpha_by_depth_interval"]) == 16
    assert [(row["k"], row["width"], row["batch"], row["context"]) for row in costs["rows"]] == [
        (k, k + 1, 1, 32) for k in range(3)
    ]
    assert [(row["k"], row["batch"]) for row in prediction["rows"]] == [(1, 1), (2, 1)]
    assert prediction["best"] in [{name: row[name] for name in prediction["best"]} for row in prediction["rows"]]
    assert [(row["temperature"], row["k"]) for row in bench["rows"]] == [(0, 1), (0, 2), (0.8, 1), (0.8, 2)]
    known = {row["k"]: row["predicted"] for row in prediction["rows"]}
    for row in bench["rows"]:
        assert row["speedup"] == pytest.approx(row["tokens_per_second"] / row["baseline_tokens_per_second"])
        assert row["relative_error"] == pytest.approx(row["predicted"] / row["speedup"] - 1)
        # The profile is at temperature 0.8: it answers for that one alone.
        assert (row["predicted"] == pytest.approx(known[row["k"]])) == (row["temperature"] == 0.8)


def test_the_report_is_a_folder_of_pages(road):
    report = road.done["report"].json
    files = {path.name for path in (road.folder / "report").iterdir()}
    assert {"index.html", "report.json", "summary.md", "junit.xml", "figure-speedup.svg"} <= files
    for reason in report["reasons"]:
        assert reason.keys() == {"gate", "passed", "value", "threshold", "text"}
    assert {"verdict", "tokens", "false_alarm_rate", "log10_e", "detectable_contamination", "cause"} <= set(
        report["lossless"]
    )
    assert {"alpha", "alpha_interval", "alpha_by_depth", "by_category", "tokens_per_round"} <= set(report["acceptance"])
    assert {"draft_cost_ratio", "round_cost", "verify_ratio"} <= set(report["cost"])
    assert {
        "k", "predicted", "interval", "measured", "measured_interval", "relative_error", "article_formula",
        "leviathan_formula",
    } <= set(report["speedup"])  # fmt: skip
    # Each artifact keeps its own provenance.
    assert report["provenance"]["costs"] == road.done["measure"].json["provenance"]


LENIENT = """
minimum_speedup = 1e-6
maximum_probability_slower = 1.0
maximum_relative_error = 1e9
require_lossless = {lossless}
require_same_machine = false
minimum_tokens = {tokens}
maximum_detectable_contamination = 1.0
"""


@pytest.mark.parametrize(
    ("policy", "decision"),
    [
        (LENIENT.format(lossless="false", tokens=0), "go"),
        (LENIENT.format(lossless="false", tokens=0).replace("1e-6", "1e6"), "no-go"),
        (LENIENT.format(lossless="true", tokens=1_000_000), "undecided"),
    ],
    ids=["go", "no-go", "undecided"],
)
def test_the_exit_code_is_the_decision_under_a_policy(road, tmp_path, policy, decision):
    assert road.done["audit"].json["verdict"] != "violated"
    (tmp_path / "policy.toml").write_text(policy)
    gate = specaudit("gate", road.folder / "report" / "report.json", "--policy", tmp_path / "policy.toml", "--json")
    assert (gate.code, gate.json["decision"]) == (DECISIONS[decision], decision)
    with inside(road.folder):
        report = specaudit(
            "report", "--profile", "profile", "--costs", "costs.json", "--audit", "audit.json",
            "--policy", tmp_path / "policy.toml", "--out", tmp_path / "report", "--json",
        )  # fmt: skip
    assert (report.code, report.json["decision"]) == (DECISIONS[decision], decision)
    written = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    assert written == report.json


@pytest.mark.parametrize("name", ["audit", "bench"])
def test_a_report_is_of_one_pair(road, tmp_path, name):
    other = tmp_path / f"{name}.json"
    other.write_text(json.dumps({**road.artifact(f"{name}.json"), "draft": "another"}), encoding="utf-8")
    files = {"audit": "audit.json", "bench": "bench.json", name: other}
    with inside(road.folder):
        done = specaudit(
            "report", "--profile", "profile", "--costs", "costs.json", "--audit", files["audit"],
            "--bench", files["bench"], "--out", tmp_path / "report",
        )  # fmt: skip
    assert done.code == 2
    assert f"--{name} = 'another': the profile's draft is 'zoo:tiny'" in done.err
    assert not (tmp_path / "report").exists()


def test_results_in_words_on_standard_output(road, tmp_path):
    """Without --json; the same files."""
    pair = ("--target", "zoo:tiny", "--draft", "zoo:tiny")
    few = ("--dataset", "zoo:prompts", "--limit", 2, "--max-new-tokens", 4)
    said = {
        "profile": ((*pair, *few, "--out", tmp_path / "p"), "the walk"),
        "measure": ((*pair, "--k", 1, "--pairs", 2, "--rounds", 4, "--out", tmp_path / "c.json"), "cost in steps"),
        "bench": ((*pair, *few, "--k", 1), "measured speedup of zoo:tiny for zoo:tiny"),
        "predict": (("--profile", tmp_path / "p", "--costs", tmp_path / "c.json"), "best: k = 1 at batch 1"),
        "gate": ((road.folder / "report" / "report.json",), road.done["report"].json["decision"].upper()),
        "report": (
            (
                "--profile", tmp_path / "p", "--costs", tmp_path / "c.json", "--audit", road.folder / "audit.json",
                "--out", tmp_path / "r",
            ),
            " predicted (",
        ),
    }  # fmt: skip
    for command, (argv, words) in said.items():
        done = specaudit(command, *argv)
        assert done.code in (0, 1, 3), done
        assert words in done.out
        assert "nan" not in done.out.split()
        with pytest.raises(ValueError, match="Expecting value"):
            json.loads(done.out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.json", "p", "r"]


def test_a_preset_compares_several_drafts_and_draws_them(tmp_path):
    """Without the hub: the article's settings for drafts that are here."""
    with inside(tmp_path):
        done = specaudit(
            "bench", "--preset", "article", "--target", "zoo:tiny", "--draft", "prompt-lookup",
            "--draft", "early-exit:2", "--k", 1, "--limit", 2, "--max-new-tokens", 6, "--out", "bench.json", "--json",
        )  # fmt: skip
        assert done.code == 0, done.err
        assert sorted(path.name for path in tmp_path.iterdir()) == ["article.svg", "bench.json"]
        rows = done.json["rows"]
        assert [(row["draft"], row["k"], row["temperature"]) for row in rows] == [
            ("prompt-lookup:3", 1, 0.8), ("early-exit:2", 1, 0.8),
        ]  # fmt: skip
        for row in rows:
            k, alpha, c = row["k"], row["alpha"], row["draft_cost_ratio"]
            assert row["article_formula"] == pytest.approx((1 + k * alpha) / (1 + k * c))
            assert 0 <= row["alpha_by_depth"][0] <= 1
            assert row["relative_error"] == pytest.approx(row["predicted"] / row["speedup"] - 1)
        facts = done.json["provenance"]
        assert facts["draft"] == ["prompt-lookup:3", "early-exit:2"]
        drawn = (tmp_path / "article.svg").read_text(encoding="utf-8")
        assert all(name in drawn for name in ("early-exit:2: predicted", "prompt-lookup", "break-even"))


def test_text_of_one_prompt():
    argv = ("--target", "zoo:tiny", "--prompt", "def main():", "--max-new-tokens", 6)
    alone, drafted = specaudit("generate", *argv), specaudit("generate", *argv, "--draft", "prompt-lookup")
    assert alone.code == drafted.code == 0
    assert alone.out == drafted.out != ""
    assert "1 outputs, " in alone.err
    assert alone.err.endswith(" 1 tokens a round\n")


# The audit of a file


@pytest.mark.parametrize("draft", [(), ("--draft", "zoo:tiny"), ("--draft", "prompt-lookup")], ids=str)
def test_transcripts_are_audited(road, draft):
    done = specaudit(
        "audit", "--transcripts", road.folder / "transcripts.jsonl", "--target", "zoo:tiny", *draft, "--json"
    )
    result = done.json
    assert (done.code, result["verdict"] == "violated") == (VERDICTS[result["verdict"]], False)
    assert set(KEYS["audit"].split()) <= result.keys()
    assert result["tokens"] == road.done["audit"].json["tokens"]
    assert result["provenance"]["transcripts_file"] == str(road.folder / "transcripts.jsonl")
    assert result["provenance"]["sampling"]["temperature"] == 0.8
    names = {test["name"] for test in result["tests"]}
    assert ("contamination_draft" in names) == bool(draft)


@pytest.mark.parametrize(
    ("sampling", "cause"),
    [(("--temperature", 0), "greedy"), (("--temperature", 0.8, "--top-k", 5), "impossible_token")],
)
def test_an_impossible_token_makes_a_transcript_violated(zoo_pair, tmp_path, sampling, cause):
    file = tmp_path / "transcripts.jsonl"
    few = ("--dataset", "zoo:prompts", "--limit", 2, "--max-new-tokens", 6, "--out", file)
    assert specaudit("generate", "--target", "zoo:tiny", "--draft", "zoo:tiny", *few, *sampling).code == 0
    audit = ("audit", "--transcripts", file, "--target", "zoo:tiny")
    assert specaudit(*audit).code in (0, 3)
    first, *rest = file.read_text(encoding="utf-8").splitlines()
    row = json.loads(first)
    context = [*row["prompt_ids"], *row["output_ids"][:-1]]
    row["output_ids"][-1] = int(zoo_pair.target.score_full(torch.tensor([context]), [len(context)])[0, -1].argmin())
    file.write_text("\n".join([json.dumps(row), *rest]), encoding="utf-8")
    done = specaudit(*audit, "--json")
    assert (done.code, done.json["verdict"], done.json["cause"]["name"]) == (1, "violated", cause)
    said = specaudit(*audit)
    assert said.code == 1
    assert "verdict: violated" in said.out
    if cause == "greedy":
        assert f"defect at transcript 0 position {len(row['output_ids']) - 1}" in said.out


def test_an_audit_stops_when_it_is_decided():
    pair = ("--target", "zoo:tiny", "--draft", "zoo:tiny", "--dataset", "zoo:prompts", "--limit", 40)
    audit = ("audit", *pair, "--max-new-tokens", 48, "--until-decided", "--json")
    done = specaudit(*audit, "--exclude", 0.6)
    result = done.json
    assert (done.code, result["verdict"], result["decided"]) == (0, "no_violation_found", "excluded")
    assert result["contamination_bound"] <= 0.6
    assert result["transcripts"] < 40
    assert result["transcripts"] % 8 == 0  # the batch size


def test_an_interrupted_audit_goes_on(road, tmp_path, monkeypatch):
    """The second of two pieces is cut off; the run after it scores that one alone."""
    monkeypatch.setattr("specaudit.audit.lossless.PIECE", 2)
    monkeypatch.setattr("specaudit.audit.checkpoint.SAVE_SECONDS", 0.0)
    file = tmp_path / "audit.npz"
    audit = ("audit", "--transcripts", road.folder / "transcripts.jsonl", "--target", "zoo:tiny", "--json")
    scored, add = [], Audit.add

    def cut_off(whole, piece):
        if len(scored) == 1:
            raise KeyboardInterrupt
        scored.append(len(piece))
        add(whole, piece)

    with monkeypatch.context() as interrupted:
        interrupted.setattr(Audit, "add", cut_off)
        assert specaudit(*audit, "--checkpoint", file).code == 130
    assert file.exists()
    other = specaudit(*audit, "--checkpoint", file, "--seed", 5)
    assert (other.code, "is of another audit: seed differ" in other.err) == (2, True)
    monkeypatch.setattr(Audit, "add", lambda whole, piece: (scored.append(len(piece)), add(whole, piece)))
    resumed = specaudit(*audit, "--checkpoint", file)
    assert scored == [2, 2]
    assert not file.exists()
    whole = specaudit(*audit).json
    assert {k: v for k, v in resumed.json.items() if k != "provenance"} == {
        k: v for k, v in whole.items() if k != "provenance"
    }


# What is refused before a model is loaded


@pytest.fixture
def here(tmp_path, monkeypatch, road):
    """The working directory, with unusable files in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "broken.jsonl").write_text('{"prompt": "one"}\n{"prompt": two}\n')
    (tmp_path / "columns.csv").write_text("ask,reply\none,two\n")
    (tmp_path / "file.txt").write_text("a prompt\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "no.toml").write_text("minimum_speed = 2\n")
    for name, change in {"other": {"target": "zoo:other"}, "newer": {"schema": "specaudit.costs/9"}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({**road.artifact("costs.json"), **change}))
    return tmp_path


@pytest.fixture
def no_loading(monkeypatch):
    def load(*_):
        raise AssertionError("a model would be loaded")

    monkeypatch.setattr("specaudit.cli.setting.load", load)


def argv_of(command, road, changes):
    """A command line that would run, but for the changes; None takes an option away."""
    options = {"--target": "zoo:tiny", "--draft": "zoo:tiny", "--dataset": "zoo:prompts"}
    if command in ("predict", "report"):
        options = {"--profile": road.folder / "profile", "--costs": road.folder / "costs.json"}
    if command == "report":
        options["--audit"] = road.folder / "audit.json"
    options |= {"--out": "new/out", **changes}
    return [command, *(part for name, value in options.items() if value is not None for part in (name, value))]


def each(commands, option, value, *said):
    return [pytest.param(name, {option: value}, said, id=f"{name} {option} {value}") for name in commands]


FILES = ("generate", "audit", "measure", "bench", "predict")  # --out is a file
FOLDERS = ("profile", "report")
COSTED = ("predict", "report")

EARLY = [
    *each(RUNNING, "--dataset", "empty.jsonl", "--dataset = empty.jsonl: the file is empty", "give a file with"),
    *each(RUNNING, "--dataset", "broken.jsonl", "--dataset = broken.jsonl: line 2 is not JSON", "write one JSON"),
    *each(RUNNING, "--dataset", "columns.csv", "--prompt-column = None: columns.csv has none", "'ask', 'reply'"),
    *each(RUNNING, "--dataset", "nowhere.jsonl", "--dataset = 'nowhere.jsonl': there is no such", "check the path"),
    *each(RUNNING, "--dataset", "folder", "--dataset = folder: this is a folder", "name one file in it"),
    *each(RUNNING, "--dataset", "zoo:nothing", "--dataset = 'zoo:nothing': there is no such", "use zoo:prompts"),
    *each(RUNNING, "--prompt-column", "nothing", "--prompt-column = 'nothing': zoo:prompts has", "name one of them"),
    *each(DECODING, "--category-column", "nothing", "--category-column = 'nothing': zoo:prompts", "name one of them"),
    *each(("generate", "audit", "measure"), "--k", 0, "--k = 0: must be at least 1", "use 1 or more"),
    *each(("bench",), "--k", "2,0", "--k = '2,0': must be at least 1", "use, for example, 4"),
    *each(("bench",), "--k", "two", "--k = 'two': must be numbers", "for example 1,2,4"),
    *each(("generate", "audit"), "--k", "two", "'--k'", "'two'", "See `specaudit "),
    *each(RUNNING, "--temperature", -0.5, "--temperature = -0.5: must be zero (greedy) or more", "use 0 or"),
    *each(RUNNING, "--temperature", "nan", "--temperature = nan: must be zero (greedy) or more", "use 0 or"),
    *each(RUNNING, "--top-p", 0, "--top-p = 0.0: must be above 0", "use 1 (off) or"),
    *each(RUNNING, "--top-k", -1, "--top-k = -1: must be zero (off) or more", "use 0 or"),
    *each(RUNNING, "--min-p", 1, "--min-p = 1.0: must be at least 0 and below 1", "use 0 (off) or"),
    *each(RUNNING, "--repetition-penalty", 0, "--repetition-penalty = 0.0: must be above 0", "use 1 (off)"),
    *each(RUNNING, "--seed", -1, "--seed = -1: must be zero or more", "use a non-negative integer"),
    *each(DECODING, "--max-new-tokens", 0, "--max-new-tokens = 0: must be at least 1", "use 1 or more"),
    *each(DECODING, "--batch-size", 0, "--batch-size = 0: must be at least 1", "use 1 or more"),
    *each(("measure",), "--batch-size", "1,0", "--batch-size = '1,0': must be at least 1", "use, for example, 4"),
    *each(("measure",), "--contexts", "long", "--contexts = 'long': must be numbers", "for example 1,2,4"),
    *each(("measure",), "--rounds", 3, "--rounds = 3: must be at least 4", "use 4 or more"),
    *each(("measure",), "--pairs", 1, "--pairs = 1: must be at least 2", "use 2 or more"),
    *each(DECODING, "--limit", 0, "--limit = 0: must be at least 1", "leave it out"),
    *each(DECODING, "--max-prompt-tokens", 0, "--max-prompt-tokens = 0: must be at least 1", "use 1 or more"),
    *each(("bench",), "--sweeps", 1, "--sweeps = 1: must be at least 2", "use 2 or more"),
    *each(("audit",), "--exclude", 0, "--exclude = 0.0: must be above 0 and at most 1", "use 0.05"),
    *each(("audit",), "--checkpoint", "new.npz", "--checkpoint = new.npz: keeps what was scored", "give transcripts"),
    *each(("audit",), "--false-alarm-rate", 0, "--false-alarm-rate = 0.0: must be above 0", "use 0.001"),
    *each(("audit",), "--transcripts", "file.txt", "--dataset, --transcripts = 'both': exactly", "give one of them"),
    *each(("audit",), "--draft", None, "--draft = None: the own decoder needs a drafter", "give one, or --transcripts"),
    *each(("generate",), "--prompt", "x", "--prompt, --dataset = 'both': exactly one is needed", "give one of them"),
    *each(("generate",), "--dataset", None, "--prompt, --dataset = 'neither': exactly one", "give one of them"),
    *each(("bench",), "--preset", "paper", "--preset = 'paper': is not known", "use article"),
    *each(("bench",), "--chart", "chart.png", "--chart = chart.png: is drawn as SVG", "ends in .svg"),
    *each(("bench",), "--costs", "other.json", "--profile, --costs = other.json: a prediction needs", "or neither"),
    *each((*FILES, *FOLDERS), "--out", "file.txt/new/out", "--out = file.txt/new/out: file.txt is", "name a path"),
    *each(FILES, "--out", "folder", "--out = folder: a folder of that name exists", "name a file in it"),
    *each(FOLDERS, "--out", "file.txt", "--out = file.txt: a file of that name exists", "name another path"),
    *each(COSTED, "--costs", "other.json", "--costs = 'zoo:other': the profile's target is 'zoo:tiny'", "measure the"),
    *each(COSTED, "--costs", "newer.json", "newer.json: has the schema 'specaudit.costs/9'", "as specaudit.costs/1"),
    *each(COSTED, "--costs", "nowhere.json", "--costs = nowhere.json: cannot be read (No such file", "give the file"),
    *each(COSTED, "--costs", "file.txt", "--costs = file.txt: is not JSON", "give the file that specaudit wrote"),
    *each(COSTED, "--profile", "nowhere", "--profile = nowhere: is not a folder", "give the folder that `specaudit"),
    *each(COSTED, "--profile", "folder", "--profile = folder/profile.json: cannot be read", "give the file"),
    *each(("report",), "--audit", "other.json", "--audit = other.json: has the schema 'specaudit.costs/1'", "audit/1"),
    *each(("report",), "--bench", "other.json", "--bench = other.json: has the schema 'specaudit.costs/1'", "bench/1"),
    *each(("report",), "--policy", "no.toml", "--policy = no.toml: has the unknown key 'minimum_speed'", "speedup'"),
    *each((*RUNNING, *COSTED), "--bogus", 1, "No such option: --bogus", "--help`"),
    *each(("generate", "profile", "bench", "measure"), "--target", None, "Missing option '--target'", "--help`"),
    *each(("audit",), "--target", None, "--target = None: an audit needs the target's weights", "with a --baseline"),
    *each(("audit",), "--baseline", "file.txt", "--transcripts = None: --baseline is compared", "give both files"),
    *each(("profile", "measure", "bench"), "--draft", None, "Missing option '--draft'", "--help`"),
    *each(("bench",), "--dataset", None, "Missing option '--dataset'", "--help`"),
    *each(("profile",), "--dataset", None, "--dataset, --transcripts = 'neither': a profile needs one of them"),
    *each(("profile",), "--transcripts", "file.txt", "--dataset, --transcripts = 'both': a profile needs one of them"),
    *each(("profile", "measure", "report"), "--out", None, "Missing option '--out'", "--help`"),
    *each(COSTED, "--costs", None, "Missing option '--costs'", "--help`"),
    pytest.param("bench", {"--preset": "article", "--draft": None},
                 ("--preset = 'article': has drafts for its own target alone", "name drafts with --draft"),
                 id="bench --preset without a draft"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "changes", "said"), EARLY)
def test_unusable_input_is_refused_before_a_model_is_loaded(here, no_loading, road, command, changes, said):
    refused(here, argv_of(command, road, changes), *said)


@pytest.mark.parametrize(
    ("batch", "costs", "said"),
    [
        (1, "other.json", ("--costs = 'zoo:other': the profile's target is 'zoo:tiny'", "measure the pair")),
        (1, "newer.json", ("--costs = newer.json: has the schema", "give the file that specaudit wrote")),
        (2, None, ("--batch-size = 2: the cost table has batches [1]", "measure that batch size")),
    ],
)
def test_a_bench_refuses_before_loading_what_it_could_not_predict_from(here, no_loading, road, batch, costs, said):
    parts = {"--profile": road.folder / "profile", "--costs": costs or road.folder / "costs.json"}
    refused(here, argv_of("bench", road, {**parts, "--batch-size": batch}), *said)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", ("holds no transcript", "write some with `specaudit generate --out FILE`")),
        ("\n", ("holds no transcript", "write some with")),
        ("GOOD\n{\n", ("given.jsonl:2': is not JSON", "write one specaudit.transcript/1 object a line")),
        (
            '{"schema": "specaudit.transcript/9"}\n',
            ("given.jsonl:1': has the schema 'specaudit.transcript/9'", "write one"),
        ),
        ('{"schema": "specaudit.transcript/1"}\n', ("given.jsonl:1': has no field 'prompt_ids'", "write one")),
        (None, ("cannot be read (No such file or directory)", "check the path")),
    ],
)
def test_unusable_transcripts_are_refused_before_a_model_is_loaded(here, no_loading, road, lines, said):
    if lines is not None:
        (here / "given.jsonl").write_text(lines.replace("GOOD", road.lines[0]))
    argv = argv_of("audit", road, {"--dataset": None, "--transcripts": "given.jsonl"})
    refused(here, argv, "--transcripts = ", "given.jsonl", *said)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["bogus"], ("No such command 'bogus'", "See `specaudit --help`")),
        (["--bogus"], ("No such option: --bogus", "See `specaudit --help`")),
        (["generate", "--target"], ("Option '--target' requires an argument", "--help`")),
        (["gate"], ("Missing argument", "See `specaudit gate --help`")),
        (["gate", "nowhere.json"], ("REPORT = nowhere.json: cannot be read", "as specaudit.report/1")),
        (["gate", "other.json"], ("REPORT = other.json: has the schema 'specaudit.costs/1'", "as specaudit.report/1")),
        (["demo", "--out", "file.txt"], ("--out = file.txt: a file of that name exists", "name another path")),
        (["demo", "--seed", "-1"], ("--seed = -1: must be zero or more", "use a non-negative integer")),
    ],
    ids=" ".join,
)
def test_other_usage_errors(here, no_loading, argv, said):
    refused(here, argv, *said)


def test_an_interruption_is_one_line_too(here, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("specaudit.cli.setting.load", interrupted)
    done = specaudit("generate", "--target", "zoo:tiny", "--prompt", "x")
    assert (done.code, done.out, done.err) == (130, "", "error: interrupted\n")


# What only the models can tell


@pytest.fixture(scope="module")
def small(llama_pair, byte_tokenizer, tmp_path_factory):
    """A model folder with a tokenizer of its own and a context of 64."""
    folder = tmp_path_factory.mktemp("models") / "small"
    llama_pair.target.model.save_pretrained(folder)
    byte_tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("command", RUNNING)
def test_a_draft_with_another_tokenizer(here, road, small, command):
    argv = argv_of(command, road, {"--draft": small})
    refused(
        here, argv, f"--draft = '{small}': its tokenizer splits text otherwise", "use a draft that was trained with"
    )


@pytest.mark.parametrize("command", DECODING)
def test_a_prompt_longer_than_the_context(here, road, small, command):
    (here / "long.jsonl").write_text('{"prompt": "short"}\n' + json.dumps({"prompt": 64 * "x"}) + "\n")
    changes = {"--target": small, "--draft": "prompt-lookup", "--dataset": "long.jsonl"}
    said = ("--dataset = 'row 1 of long.jsonl: 64 tokens'", "context holds 64", "with --max-prompt-tokens ")
    refused(here, argv_of(command, road, changes), *said)


def test_one_prompt_longer_than_the_context(here, small):
    argv = ("generate", "--target", small, "--prompt", 64 * "x", "--out", "new.jsonl")
    refused(here, argv, "--prompt = 'xxx", "64 tokens", "context holds 64", "shorten it")


@pytest.mark.parametrize("command", RUNNING)
@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--target", "./nowhere", ("there is no such folder", "check the path")),
        ("--target", "folder", ("the folder has no config.json", "name a Hugging Face model folder")),
        ("--target", "file.txt", ("is a file of another kind", "name a model folder")),
        ("--target", "nowhere.gguf", ("there is no such file", "check the path")),
        ("--target", "zoo:huge", ("is not in the zoo, which has zoo:tiny", "use one of those")),
        ("--dtype", "float8", ("is not supported", "use auto, float32")),
        ("--device", "abacus", ("is not a device", "use auto, cpu")),
    ],
)
def test_a_model_that_is_not_there(here, road, command, option, value, said):
    refused(here, argv_of(command, road, {option: value}), f"{option} = '{value}': {said[0]}", said[1])


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ("./nowhere", ("there is no such folder", "check the path")),
        ("zoo:huge", ("is not in the zoo", "use one of those")),
        ("prompt-lookup:0", ("N must be at least 1", "use, for example, prompt-lookup:3")),
    ],
)
def test_a_draft_that_is_not_there(here, road, small, draft, said):
    refused(here, argv_of("generate", road, {"--target": small, "--draft": draft}), f"--draft = '{draft}'", *said)


@pytest.mark.parametrize(
    ("command", "changes", "said"),
    [
        ("generate", {"--chat": ""}, ("--chat = True: the target's tokenizer has no chat template", "use --no-chat")),
        ("measure", {"--contexts": "8,64"}, ("--contexts = '8,64': with these rounds", "shorten it")),
        ("bench", {"--batch-size": 2}, ("--batch-size = 2: there are 1 prompts", "lower it, or add prompts")),
        ("profile", {"--max-prompt-tokens": 1}, ("--max-prompt-tokens = 1: every prompt is longer", "raise it")),
    ],
)
def test_what_does_not_fit_the_model(here, road, small, command, changes, said):
    models = {"--target": small, "--draft": "prompt-lookup", "--dataset": "file.txt"}
    argv = [part for part in argv_of(command, road, {**models, **changes}) if part != ""]
    refused(here, argv, *said)


def test_a_bench_refuses_a_profile_of_another_pair(here, road, small):
    parts = {"--profile": road.folder / "profile", "--costs": road.folder / "costs.json"}
    argv = argv_of("bench", road, {**parts, "--target": small, "--draft": small})
    refused(here, argv, f"--target = '{small}': the profile's target is 'zoo:tiny'", "profile the pair that is benched")


def test_transcripts_of_another_model(here, road, small):
    (here / "transcripts.jsonl").write_text("\n".join(road.lines))
    argv = ("audit", "--transcripts", "transcripts.jsonl", "--target", small, "--out", "new.json")
    refused(
        here, argv, "transcripts = ", "outside the target's vocabulary of 257", "score them with the model that made"
    )


# Help


def test_help_loads_no_torch():
    """All commands in one process: what any of them loads would stay."""
    code = f"""
import contextlib, io, sys
from specaudit.cli import main
for argv in [["--help"], *([name, "--help"] for name in {COMMANDS!r})]:
    sys.argv = ["specaudit", *argv]
    text = io.StringIO()
    try:
        with contextlib.redirect_stdout(text):
            main()
    except SystemExit as ended:
        assert not ended.code, (argv, ended.code)
    assert "Usage: specaudit " in text.getvalue() and "--help" in text.getvalue(), text.getvalue()
print(*sorted({{"torch", "transformers", "datasets", "pandas", "scipy"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="the child's CPU time is not told here")
def test_help_answers_at_once():
    """In processor time, which a busy machine stretches less: the best of five."""

    def cpu_seconds():
        command = [sys.executable, "-m", "specaudit", "--help"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return usage.ru_utime + usage.ru_stime

    assert min(cpu_seconds() for _ in range(5)) < 0.3


def test_the_commands_without_arguments_show_help():
    done = specaudit()
    assert (done.code, done.out) == (2, "")
    assert all(f"  {name} " in done.err for name in COMMANDS)


def test_help_names_the_common_options():
    text = specaudit("audit", "--help").out
    names = (
        "k temperature top-k top-p min-p max-new-tokens limit batch-size seed dtype device chat no-chat out json "
        "target draft dataset split prompt-column transcripts"
    )
    for name in names.split():
        assert f"--{name} " in text


def test_the_version():
    done = specaudit("--version")
    assert done.code == 0
    assert done.out.strip()[0].isdigit()
