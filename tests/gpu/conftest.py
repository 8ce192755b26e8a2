import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specaudit.models.causal import HuggingFaceModel

VOCABULARY = 96


def small_llama(noise):
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.25, bos_token_id=None,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(11)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(noise * 0.25 * torch.randn_like(weight))
    return model


@pytest.fixture(scope="session")
def models():
    """A target and a draft on the CUDA device, and the same target on the CPU; TF32 is off by PyTorch's default."""
    target, draft = small_llama(0.0), small_llama(0.08)
    return {
        "target": HuggingFaceModel(small_llama(0.0).cuda(), None, "target", ""),
        "draft": HuggingFaceModel(draft.cuda(), None, "draft", ""),
        "cpu": HuggingFaceModel(target, None, "target on the CPU", ""),
    }


@pytest.fixture(scope="session")
def prompts():
    draws = np.random.default_rng(1)
    return [draws.integers(0, VOCABULARY, size=length).tolist() for length in (4, 1, 9, 2, 6)]
