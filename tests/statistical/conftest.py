"""One false-alarm budget for the whole suite, spent here: a right decoder fails any of these tests with this chance."""

import pytest
import torch

from specaudit.models.tabular import TabularModel
from specaudit.stats import split

FALSE_ALARM_RATE = 1e-4
RIGHT_DECODERS = ["draft, k = 1", "draft, k = 4", "prompt lookup", "lookahead"]
SETTINGS = ["temperature 1", "temperature 0.8, top_k 4"]
NAMES = [
    *(f"transitions: {decoder}, {setting}" for decoder in RIGHT_DECODERS for setting in SETTINGS),
    "pairs of tokens: draft, k = 4, temperature 1",
    "calibration: draft",
    "calibration: no drafter",
    "calibration: pit_chi_square",
    "calibration: pit_cramer_von_mises",
    "calibration: pit_lag",
    "power: detectable contamination",
]
SHARES = split(FALSE_ALARM_RATE, NAMES)


@pytest.fixture(scope="session")
def share():
    """A registered test's own false-alarm rate; each name is taken once."""
    left = dict(SHARES)
    return left.pop


@pytest.fixture(scope="session")
def smallest_share():
    return min(SHARES.values())


@pytest.fixture(scope="session")
def tabular_models():
    """A target and a draft over six tokens, far enough apart that every third drafted token is rejected."""
    generator = torch.Generator().manual_seed(17)
    logits = 1.2 * torch.randn(6, 6, generator=generator, dtype=torch.float64)
    shift = 0.9 * torch.randn(6, 6, generator=generator, dtype=torch.float64)
    return TabularModel(logits, "target"), TabularModel(logits + shift, "draft")
