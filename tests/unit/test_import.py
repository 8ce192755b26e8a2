"""Importing the package, or asking its command line for help, must not wait for torch."""

import subprocess
import sys

import pytest

LIGHT = [
    "specaudit", "specaudit.cli", "specaudit.pytest_plugin", "specaudit.audit.black_box", "specaudit.core.types",
    "specaudit.core.errors", "specaudit.core.artifacts",
]  # fmt: skip
HEAVY = ("torch", "transformers")


def loaded_by(statement):
    code = f"import sys\n{statement}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("module", LIGHT)
def test_importing_loads_neither_torch_nor_transformers(module):
    assert loaded_by(f"import {module}") == []


def test_the_check_sees_torch_where_it_is_loaded():
    assert "torch" in loaded_by("import specaudit.core.sampling")


def test_the_statistics_load_neither():
    assert loaded_by("import specaudit.stats") == []
