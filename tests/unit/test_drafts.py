"""Drafts made from a target's own configuration."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers import AutoConfig

from specaudit.core.errors import InputError
from specaudit.training.drafts import untrained_draft
from specaudit.training.heads import distillation

SMALL = {"vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
USUAL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
CONFIGS = {
    "gpt2": {"n_layer": 4, "n_embd": 64, "n_head": 4},
    "qwen3": {**USUAL, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128},
    "gemma": {**USUAL, "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 128},
    "gpt_neox": {**USUAL, "intermediate_size": 256},
    "opt": {**USUAL, "ffn_dim": 128, "word_embed_proj_dim": 64},
}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("hidden", [None, 32])
def test_a_draft_is_a_smaller_model_of_the_targets_kind(kind, hidden):
    config = AutoConfig.for_model(kind, **CONFIGS[kind], **SMALL)
    draft = untrained_draft(SimpleNamespace(config=config, name="big"), 2, hidden).eval()
    assert (draft.config.num_hidden_layers, draft.config.hidden_size) == (2, hidden or 64)
    assert config.num_hidden_layers == 4
    assert isinstance(draft, transformers.PreTrainedModel)
    assert draft(torch.zeros(1, 3, dtype=torch.long)).logits.shape == (1, 3, 100)


def test_a_width_that_no_heads_share_is_refused():
    config = AutoConfig.for_model("gpt2", **CONFIGS["gpt2"], **SMALL)
    with pytest.raises(InputError, match="--draft-hidden = 40: big's attention heads are 16 wide"):
        untrained_draft(SimpleNamespace(config=config, name="big"), 2, 40)


def test_distillation_ends_in_the_share_of_rejected_tokens():
    target, draft = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.9, 0.1]])
    early, late = (float(distillation(target, draft.log(), progress)) for progress in (0.1, 0.9))
    cross_entropy = float(-(target * draft.log()).sum())
    assert early == pytest.approx(cross_entropy)
    assert late == pytest.approx(0.1 * cross_entropy + 0.4)
