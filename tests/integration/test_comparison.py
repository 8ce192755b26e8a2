"""Profiles side by side."""

import json
import shutil

import pytest
from commands import inside, refused, specaudit

FEW = ("--target", "zoo:tiny", "--dataset", "zoo:prompts", "--limit", 8, "--max-new-tokens", 12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("profiles")
    with inside(path):
        for name, draft, more in (
            ("model", "zoo:tiny", ()), ("lookup", "prompt-lookup", ()), ("warm", "zoo:tiny", ("--temperature", 1)),
            ("others", "zoo:tiny", ("--seed", 1)),
        ):  # fmt: skip
            assert specaudit("profile", *FEW, "--draft", draft, *more, "--out", name).code == 0
    return path


def compared(folder, *names):
    with inside(folder):
        done = specaudit("profile", *names, "--json")
    assert done.code == 0, done.err
    return done


def test_two_drafters_on_the_same_prompts(folder):
    done = compared(folder, "model", "lookup")
    assert (done.err, done.json["schema"]) == ("", "specaudit.comparison/1")
    first, second = done.json["profiles"]
    assert [first["draft"], second["draft"]] == ["zoo:tiny", "prompt-lookup:3"]
    assert first["over_first"] is None
    for k, row in second["over_first"].items():
        assert row["ratio"] == pytest.approx(second["tokens_per_round"][k] / first["tokens_per_round"][k])
        low, high = row["interval"]
        assert low <= row["ratio"] <= high < 1.0  # the draft model is the better of the two
    for row in (first, second):
        own = json.loads((folder / row["profile"] / "profile.json").read_text())
        assert row["tokens_per_round_interval"] == own["tokens_per_round_interval"]


def test_a_profile_beside_its_copy_is_exactly_as_good(folder, tmp_path):
    shutil.copytree(folder / "model", tmp_path / "copy")
    second = compared(folder, "model", tmp_path / "copy").json["profiles"][1]
    assert all(row == {"ratio": 1.0, "interval": [1.0, 1.0]} for row in second["over_first"].values())


@pytest.mark.parametrize(("name", "differs"), [("warm", ["sampling parameters"]), ("others", ["data set"])])
def test_profiles_that_cannot_be_paired_are_shown_without_a_ratio(folder, name, differs):
    done = compared(folder, "model", name)
    second = done.json["profiles"][1]
    assert second["over_first"] is None
    assert second["differs"] == differs
    assert f"{name} differs from model in {', '.join(second['differs'])}: no ratio is given" in done.err


def test_the_table(folder):
    with inside(folder):
        done = specaudit("profile", "model", "lookup")
    for part in (
        "profiles side by side",
        "prompt-lookup:3",
        "tokens a round; in brackets over the first",
        "alpha by cat",
    ):
        assert part in done.out


def test_folders_that_cannot_be_compared(folder, tmp_path):
    with inside(tmp_path):
        refused(
            tmp_path, ("profile", folder / "model"), "one profile has nothing beside it", "name two or more folders"
        )
        refused(tmp_path, ("profile", folder / "model", "nowhere"), "PROFILE = nowhere: is not a folder")
        stray = ("profile", *FEW, "--draft", "zoo:tiny", "--out", "new", "stray")
        refused(tmp_path, stray, "PROFILE = stray: finished profiles are shown", "leave out the one or the other")
