import json
import math
import os
import stat

import numpy as np
import pytest

from specaudit.core.artifacts import (
    atomic_folder,
    atomic_path,
    check_writable,
    content_hash,
    provenance,
    read_json,
    to_json,
    with_schema,
    write_json,
)
from specaudit.core.errors import InputError, SpecauditError


class Interrupted(Exception):
    pass


def write_half(file):
    with atomic_path(file) as temporary:
        temporary.write_text("half")
        raise Interrupted


def write_half_of(folder, name):
    with atomic_folder(folder) as temporary:
        (temporary / name).write_text("half")
        raise Interrupted


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    file = tmp_path / "new" / "costs.json"
    with pytest.raises(Interrupted):
        write_half(file)
    assert list(file.parent.iterdir()) == []
    with atomic_path(file) as temporary:
        temporary.write_text("whole")
        assert not file.exists()
    assert [path.name for path in file.parent.iterdir()] == ["costs.json"]
    assert file.read_text() == "whole"


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    file = tmp_path / "costs.json"
    file.write_text("old")
    with pytest.raises(Interrupted):
        write_half(file)
    assert [path.name for path in tmp_path.iterdir()] == ["costs.json"]
    assert file.read_text() == "old"


def test_a_written_file_has_the_permissions_of_any_other(tmp_path):
    plain, written = tmp_path / "plain", tmp_path / "written"
    plain.write_text("")
    write_json(written, {})
    assert stat.S_IMODE(written.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    folder = tmp_path / "profile"
    with pytest.raises(Interrupted):
        write_half_of(folder, "tokens.parquet")
    assert list(tmp_path.iterdir()) == []
    with atomic_folder(folder) as temporary:
        (temporary / "tokens.parquet").write_text("whole")
        assert not folder.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["profile"]


def test_a_folder_that_exists_keeps_its_other_files(tmp_path):
    folder = tmp_path / "profile"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "profile.json").write_text("old")
    with pytest.raises(Interrupted):
        write_half_of(folder, "profile.json")
    assert (folder / "profile.json").read_text() == "old"
    with atomic_folder(folder) as temporary:
        (temporary / "profile.json").write_text("new")
    assert {file.name: file.read_text() for file in folder.iterdir()} == {"notes.txt": "mine", "profile.json": "new"}
    assert [path.name for path in tmp_path.iterdir()] == ["profile"]


@pytest.mark.parametrize("folder", [False, True])
def test_a_path_that_can_be_written_passes_and_nothing_is_left(tmp_path, folder):
    check_writable("--out", tmp_path / "deep" / "er" / "out", folder=folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("below", ["file/out", "file/deep/out"])
def test_a_path_below_a_file_is_refused(tmp_path, folder, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a folder"):
        check_writable("--out", tmp_path / below, folder=folder)


def test_a_folder_where_a_file_is_needed_is_refused(tmp_path):
    with pytest.raises(InputError, match="a folder of that name exists") as caught:
        check_writable("--out", tmp_path, folder=False)
    assert str(caught.value).startswith(f"--out = {tmp_path}")


def test_a_file_where_a_folder_is_needed_is_refused(tmp_path):
    file = tmp_path / "out"
    file.write_text("mine")
    with pytest.raises(InputError, match="a file of that name exists"):
        check_writable("--out", file, folder=True)
    assert file.read_text() == "mine"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc, which nobody may write to")
@pytest.mark.parametrize("folder", [False, True])
def test_a_place_that_cannot_be_written_is_refused(folder):
    with pytest.raises(InputError, match="cannot be written"):
        check_writable("--out", "/proc/self/out", folder=folder)


def test_an_artifact_is_read_back(tmp_path):
    file = tmp_path / "costs.json"
    artifact = with_schema("costs", {"rows": [{"k": 1}]}, {"seed": 3})
    write_json(file, artifact)
    assert artifact["schema"] == "specaudit.costs/1"
    assert read_json("--costs", file, "costs") == artifact


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (json.dumps({"schema": "specaudit.costs/2"}), "has the schema 'specaudit.costs/2', not 'specaudit.costs/1'"),
        (json.dumps({"schema": "specaudit.audit/1"}), "has the schema 'specaudit.audit/1'"),
        (json.dumps({"rows": []}), "has the schema None"),
        (json.dumps([1]), "has the schema None"),
        ("{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (None, "cannot be read"),
    ],
)
def test_another_artifact_is_refused(tmp_path, content, problem):
    file = tmp_path / "costs.json"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        read_json("--costs", file, "costs")
    assert problem in str(caught.value)
    assert str(caught.value).startswith(f"--costs = {file}")


def test_numbers_that_json_lacks_become_null():
    payload = {"a": math.nan, "b": [np.float64(math.inf), 1], "c": np.array([1.5, -math.inf]), "d": {1: np.int64(2)}}
    assert json.loads(to_json(payload)) == {"a": None, "b": [None, 1], "c": [1.5, None], "d": {"1": 2}}


def test_a_content_hash_tells_contents_and_names_apart(tmp_path):
    hashes = []
    for name, content in [("a", b"1"), ("b", b"1"), ("a", b"2")]:
        folder = tmp_path / str(len(hashes))
        folder.mkdir()
        (folder / name).write_bytes(content)
        hashes.append(content_hash(folder))
    assert len(set(hashes)) == 3
    assert all(value.startswith("sha256:") for value in hashes)
    assert content_hash(tmp_path / "0" / "a") == content_hash(tmp_path / "0" / "a")


def test_provenance_names_versions_machine_and_facts():
    found = provenance(seed=3)
    assert found["seed"] == 3
    assert {"python", "numpy", "torch"} <= set(found["versions"])
    assert found["machine"]["cores"] == os.cpu_count()
    assert json.loads(to_json(found))


def test_an_error_is_one_line_that_names_argument_value_problem_and_remedy():
    error = InputError("--top-p", "a\nb" + "c" * 200, "must be above 0", "use 0.9")
    assert isinstance(error, SpecauditError)
    assert "\n" not in str(error)
    assert str(error).startswith("--top-p = 'a\\nbccc")
    assert str(error).endswith("...: must be above 0; use 0.9")
