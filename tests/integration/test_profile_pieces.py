"""A profile of logged outputs, and one that is killed under way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from commands import inside, refused, specaudit

from specaudit.core.artifacts import read_json

PAIR = ("--target", "zoo:tiny", "--draft", "zoo:tiny")
FEW = ("--limit", 6, "--max-new-tokens", 12, "--temperature", 0.8)
MANIFEST = "out.profiling/manifest.json"


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """Six outputs of the target, and the profile of the same prompts decoded by the profiler itself."""
    folder = tmp_path_factory.mktemp("logged")
    with inside(folder):
        assert specaudit("generate", "--target", "zoo:tiny", "--dataset", "zoo:prompts", *FEW, "--batch-size", 8,
                         "--out", "logged.jsonl").code == 0  # fmt: skip
        assert specaudit("profile", *PAIR, "--dataset", "zoo:prompts", *FEW, "--out", "own").code == 0
    return folder


@pytest.fixture
def here(tmp_path):
    with inside(tmp_path):
        yield tmp_path


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_logged_outputs_give_the_profile_of_the_same_outputs_made_here(logged, here):
    done = specaudit("profile", *PAIR, "--transcripts", logged / "logged.jsonl", "--out", "out", "--json")
    assert done.code == 0, done.err
    own = read_json("", logged / "own" / "profile.json", "profile")
    for name in ("tokens_per_round", "alpha", "alpha_by_depth", "by_category", "max_new_tokens", "sampling"):
        assert done.json[name] == own[name], name
    tokens = [pd.read_parquet(folder / "tokens.parquet") for folder in (here / "out", logged / "own")]
    pd.testing.assert_frame_equal(*tokens, check_exact=True)
    assert not (here / "out.profiling").exists()


def test_outputs_of_another_engine(logged, here):
    """They say nothing of their limit, one is empty, and that one is counted by name."""
    rows = [{**row, "engine": {"name": "other"}, "finish_reason": "stop"} for row in lines_of(logged / "logged.jsonl")]
    rows[2]["output_ids"] = []
    write_lines(here / "theirs.jsonl", rows)
    done = specaudit("profile", *PAIR, "--transcripts", "theirs.jsonl", "--out", "out", "--json")
    assert done.code == 0
    assert done.err == "left out 1 transcripts of theirs.jsonl: no output token\n"
    assert (done.json["prompts"], done.json["max_new_tokens"]) == (5, None)
    tokens = pd.read_parquet(here / "out" / "tokens.parquet")
    assert sorted(tokens["prompt"].unique()) == [0, 1, 3, 4, 5]
    assert set(tokens["budget"]) == {12 + 16}  # no round was cut short by a limit


def test_prompts_without_a_category_beside_those_with_one(here):
    write_lines(here / "mixed.jsonl", [{"prompt": "one", "category": "told"}, {"prompt": "two"}, {"prompt": "three"}])
    mixed = ("profile", *PAIR, "--dataset", "mixed.jsonl", "--max-new-tokens", 12, "--out", "out", "--json")
    result = specaudit(*mixed).json
    assert (result["prompts"], list(result["by_category"])) == (3, ["told"])
    assert [row["category"] for row in sorted(result["views"]["worst_prompts"], key=lambda row: row["prompt"])] == [
        "told", None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sampling": {"temperature": 0.5}}, ("under different sampling parameters", "take one setting at a time")),
        ({"output_ids": [10**6]}, ("outside the target's vocabulary", "with the model that made them")),
        ({"output_ids": [5] * 3000}, ("tokens'", "context holds", "leave longer ones out")),
        ({"prompt_ids": []}, ("an empty prompt", "keep the first token")),
        ({"output_ids": "x"}, ("--transcripts = 'bad.jsonl:2': has a wrong field", "write one specaudit.transcript/1")),
    ],
    ids=["sampling", "id", "length", "prompt", "field"],
)
def test_outputs_that_cannot_be_profiled(logged, here, change, said):
    rows = lines_of(logged / "logged.jsonl")[:3]
    write_lines(here / "bad.jsonl", [rows[0], {**rows[1], **change}, rows[2]])
    refused(here, ("profile", *PAIR, "--transcripts", "bad.jsonl", "--out", "out"), *said)


def test_transcripts_without_a_token(logged, here):
    write_lines(here / "none.jsonl", [{**row, "output_ids": []} for row in lines_of(logged / "logged.jsonl")])
    refused(here, ("profile", *PAIR, "--transcripts", "none.jsonl", "--out", "out"), "holds no output token")


# Interrupted


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Three pieces of prompts, and the profile of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp("many")
    write_lines(folder / "many.jsonl", [{"prompt": f"{n} and", "category": f"by {n % 3}"} for n in range(300)])
    with inside(folder):
        assert specaudit(*_profile(folder), "--out", "whole").code == 0
    return folder


def _profile(folder, **changed):
    options = {"max-new-tokens": 3, "batch-size": 64, "temperature": 0.8, "seed": 0, **changed}
    named = [part for name, value in options.items() for part in (f"--{name}", value)]
    return ("profile", *PAIR, "--dataset", folder / "many.jsonl", *named)


def kept_shards(folder):
    path = folder / MANIFEST
    return list(json.loads(path.read_text())["shards"]) if path.exists() else []


@pytest.fixture(scope="module")
def killed_once(many, tmp_path_factory):
    """A run that was killed by the operating system once its first piece was kept."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "specaudit", *map(str, _profile(many)), "--out", "out"]
    with (folder / "log").open("w") as log:
        run = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        while not kept_shards(folder):
            assert run.poll() is None, (folder / "log").read_text()
            time.sleep(0.005)
        os.kill(run.pid, signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL
    assert not (folder / "out").exists()
    return folder


@pytest.fixture
def killed(killed_once, here):
    shutil.copytree(killed_once, here, dirs_exist_ok=True)
    return here


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(many, killed, monkeypatch):
    before, decoded = len(kept_shards(killed)), []
    from specaudit.acceptance import pieces

    def counted(pair, prompts, *arguments, **options):
        decoded.append(len(prompts.ids))
        return original(pair, prompts, *arguments, **options)

    original = pieces.decoded_batches
    monkeypatch.setattr(pieces, "decoded_batches", counted)
    done = specaudit(*_profile(many), "--out", "out")
    assert done.code == 0, done.err
    assert decoded == [128, 128, 44][before:]
    assert (killed / "out/tokens.parquet").read_bytes() == (many / "whole/tokens.parquet").read_bytes()
    figures = [read_json("", folder / "profile.json", "profile") for folder in (killed / "out", many / "whole")]
    for one in figures:
        del one["provenance"]
    assert figures[0] == figures[1]
    assert not (killed / "out.profiling").exists()


@pytest.mark.parametrize(
    ("name", "value", "differs"),
    [("seed", 1, "sampling"), ("temperature", 1.0, "sampling"), ("max-new-tokens", 4, "max_new_tokens"),
     ("limit", 200, "prompts")],
)  # fmt: skip
def test_a_run_with_other_options_does_not_take_its_pieces(many, killed, name, value, differs):
    argv = (*_profile(many, **{name: value}), "--out", "out")
    refused(killed, argv, "--out = out.profiling: holds an unfinished profile that differs in", differs, "name another")


@pytest.mark.parametrize("damage", ["cut short", "gone"])
def test_a_damaged_shard_is_named_and_scored_again(many, killed, damage):
    name = kept_shards(killed)[0]
    shard = killed / "out.profiling" / name
    if damage == "gone":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-9])
    done = specaudit(*_profile(many), "--out", "out")
    assert done.code == 0
    assert f"out.profiling/{name} is gone or not what was written: its piece is scored again" in done.err
    assert (killed / "out/tokens.parquet").read_bytes() == (many / "whole/tokens.parquet").read_bytes()


@pytest.mark.parametrize(("text", "said"), [
    ("{", "is not JSON"), ('{"schema": "specaudit.profile/1"}', "has the schema 'specaudit.profile/1'"),
    ('{"schema": "specaudit.shards/1", "key": {}}', "has no key or shards"),
])  # fmt: skip
def test_a_manifest_that_is_none(many, here, text, said):
    (here / "out.profiling").mkdir()
    (here / MANIFEST).write_text(text)
    refused(here, (*_profile(many), "--out", "out"), f"--out = {MANIFEST}", said)


def test_what_is_left_of_an_unfinished_write_is_no_shard(many, killed):
    """A file that the manifest does not name may be half a file."""
    (killed / "out.profiling" / "000002.parquet").write_bytes(b"PAR1")
    assert specaudit(*_profile(many), "--out", "out").code == 0
    tokens = pd.read_parquet(killed / "out" / "tokens.parquet")
    assert np.array_equal(tokens["prompt"].unique(), np.arange(300))
