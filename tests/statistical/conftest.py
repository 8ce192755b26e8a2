"""One false-alarm budget for the whole suite, spent here: a right decoder fails any of these tests with this chance."""

import pytest
import torch

from specaudit.drafters.eagle_checkpoint import eagle_config, save_eagle
from specaudit.drafters.eagle_head import EagleHead, EagleShape
from specaudit.drafters.medusa_heads import MedusaHeads, save_medusa
from specaudit.models.tabular import TabularModel
from specaudit.stats import split

FALSE_ALARM_RATE = 1e-4
RIGHT_DECODERS = [
    "draft, k = 1", "draft, k = 4", "prompt lookup", "lookahead", "medusa tree", "eagle", "eagle tree", "eagle dynamic",
]  # fmt: skip
SETTINGS = ["temperature 1", "temperature 0.8, top_k 4"]
NAMES = [
    *(f"transitions: {decoder}, {setting}" for decoder in RIGHT_DECODERS for setting in SETTINGS),
    "pairs of tokens: draft, k = 4, temperature 1",
    "calibration: draft",
    "calibration: no drafter",
    "calibration: bug laws",
    "calibration: pit_chi_square",
    "calibration: pit_cramer_von_mises",
    "calibration: pit_lag",
    "calibration: pit_depth",
    "calibration: pit_output",
    "power: detectable contamination",
    *(f"walk: {draft}" for draft in ("draft", "eagle", "eagle tree")),
    *(f"siblings: {what}" for what in (1, 2, 3, "pairs")),
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


@pytest.fixture(scope="session")
def head_folder(tmp_path_factory, tabular_models):
    """Heads for the table, whose hidden state is its last token, one-hot: Medusa's know it, EAGLE's are untrained."""
    target = tabular_models[0]
    size = target.vocabulary
    root = tmp_path_factory.mktemp("heads")
    torch.manual_seed(23)
    heads = MedusaHeads(size, size, 2, 1)
    for depth, head in enumerate(heads.lm_heads, start=2):  # where the chain is after two and three steps
        law = torch.linalg.matrix_power(target.logits.softmax(-1), depth)
        head.weight.data.copy_(law.log().T)
    save_medusa(heads, root / "medusa", {})
    fields = {
        "hidden_size": size, "intermediate_size": 8, "num_attention_heads": 1, "num_key_value_heads": 1,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 64,
    }  # fmt: skip
    save_eagle(EagleHead(EagleShape(eagle_config(fields, size), 1, size, size, size)), root / "eagle", {})
    return root
