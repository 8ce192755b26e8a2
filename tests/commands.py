"""Commands run in this process, and what a refusal looks like."""

import contextlib
import io
import json
import sys
from dataclasses import dataclass

import pytest

import specaudit.cli as cli


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


def specaudit(*argv):
    """Runs a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["specaudit", *map(str, argv)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return Done(ended.value.code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def inside(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield


def files_of(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def refused(folder, argv, *said):
    """Exit code 2, one line that says what it should, nothing on standard output and nothing new in the folder."""
    before = files_of(folder)
    done = specaudit(*argv)
    assert done.code == 2, done
    assert done.out == ""
    (line,) = done.err.splitlines()
    assert line.startswith("error: ")
    for part in said:
        assert part in line, line
    assert files_of(folder) == before
