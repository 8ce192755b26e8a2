"""Small pairs of real parts: a tabular one whose law is known, a random llama, and the bundled models."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from specaudit.audit import greedy
from specaudit.audit.noise import measure_noise
from specaudit.core.sampling import sample
from specaudit.core.types import Limits, Transcript, Verification
from specaudit.decode import decode
from specaudit.drafters import create_drafter
from specaudit.models.causal import HuggingFaceModel
from specaudit.models.loading import ZOO, load_model
from specaudit.models.tabular import TabularModel
from specaudit.models.target import ModelTarget
from specaudit.verify import GreedyVerifier, RejectionVerifier, lossless_verifier


@dataclass(frozen=True)
class SmallPair:
    """A target, a draft model and five prompts of different lengths."""

    target: object
    draft: object
    prompts: list

    def drafter(self, name):
        return None if name is None else create_drafter(name, self.target, lambda _: self.draft)

    def decode(
        self, draft, params, prompts=None, *, k=4, max_new_tokens=24, end_ids=(), stop=(), seeds=None, text=None,
        verifier=None,
    ):  # fmt: skip
        """``draft`` is None for the baseline, "draft" for the draft model, or another drafter's name."""
        return decode(
            ModelTarget(self.target), self.drafter(draft), verifier or lossless_verifier(params),
            self.prompts if prompts is None else prompts, params,
            Limits(max_new_tokens, frozenset(end_ids), tuple(stop)), k=k, seeds=seeds, text=text,
        )  # fmt: skip


def random_prompts(vocabulary, lengths, seed):
    draws = np.random.default_rng(seed)
    return [draws.integers(0, vocabulary, size=length).tolist() for length in lengths]


@pytest.fixture(scope="session")
def tabular_pair():
    generator = torch.Generator().manual_seed(3)
    logits = 1.3 * torch.randn(8, 8, generator=generator, dtype=torch.float64)
    shift = 0.8 * torch.randn(8, 8, generator=generator, dtype=torch.float64)
    return SmallPair(
        TabularModel(logits, "tabular target"), TabularModel(logits + shift, "tabular draft"),
        random_prompts(8, [1, 6, 3, 9, 2], seed=0),
    )  # fmt: skip


@pytest.fixture(scope="session")
def byte_tokenizer():
    """A token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({"<end>": 0, **{c: i for i, c in enumerate(alphabet, start=1)}}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def small_llama(vocabulary, dtype, noise):
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.25, bos_token_id=None,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(11)
    model = LlamaForCausalLM(config).to(dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(noise * 0.25 * torch.randn_like(weight))
    return model


def llama_pair_of(tokenizer, dtype):
    target, draft = (
        HuggingFaceModel(small_llama(len(tokenizer), dtype, noise), tokenizer, name, "")
        for name, noise in (("random llama", 0.0), ("random llama, disturbed", 0.08))
    )
    return SmallPair(target, draft, random_prompts(len(tokenizer), [4, 1, 9, 2, 6], seed=1))


@pytest.fixture(scope="session")
def llama_pair(byte_tokenizer):
    return llama_pair_of(byte_tokenizer, torch.float32)


@pytest.fixture(scope="session")
def exact_llama_pair(byte_tokenizer):
    """The same in float64, where the shape of a batch moves no draw."""
    return llama_pair_of(byte_tokenizer, torch.float64)


@pytest.fixture(scope="session")
def zoo_pair():
    if not (ZOO / "tiny").is_dir():
        pytest.skip(f"the bundled models are not in {ZOO / 'tiny'}: train them with python -m specaudit.training.zoo")
    target, draft = (load_model("zoo:tiny", role=role, dtype="float32", device="cpu") for role in ("target", "draft"))
    texts = [
        "def main():\n    return",
        "To be, or not to be",
        "A farmer has 3 cows and buys 4 more.",
        "x",
        "import os\n",
    ]
    return SmallPair(target, draft, [target.tokenizer(text).input_ids for text in texts])


@pytest.fixture(params=["tabular_pair", "llama_pair", "zoo_pair"])
def pair(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def assert_equal_or_tied():
    """Greedy outputs must agree; where they do not, by less than the machine's own noise at each token."""

    def check(model, transcripts, expected):
        if [t.output_ids for t in transcripts] == [t.output_ids for t in expected]:
            return
        params = transcripts[0].sampling
        noise = measure_noise(model, expected, params)
        defects, details = greedy.check(model, transcripts, params, noise)
        assert defects == 0, details

    return check


@pytest.fixture(scope="session")
def adds_up():
    """Whether a transcript's rounds account for its output: each emits what it accepts and one more."""

    def check(transcript: Transcript):
        claimed = sum(transcript.rounds) + len(transcript.rounds)
        return claimed - 1 <= len(transcript.output_ids) <= claimed

    return check


class Lenient:
    """Accepts with p / (0.6 q)."""

    name, preserves_target = "lenient", False

    def __call__(self, target_probs, proposal, uniforms):
        return RejectionVerifier()(target_probs, proposal, torch.cat([0.6 * uniforms[:, :-1], uniforms[:, -1:]], dim=1))


class ResidualFromTarget:
    """Draws the token after a rejection from p."""

    name, preserves_target = "residual from target", False

    def __call__(self, target_probs, proposal, uniforms):
        right = RejectionVerifier()(target_probs, proposal, uniforms)
        anew = sample(target_probs[torch.arange(len(right.accepted)), right.accepted], uniforms[:, -1])
        return Verification(right.accepted, torch.where(right.bonus, right.extra_token, anew), right.bonus)


class AcceptsTheArgmax:
    """Accepts a token if and only if it is the target's most probable one."""

    name, preserves_target = "argmax", False

    def __call__(self, target_probs, proposal, uniforms):
        greedy_round = GreedyVerifier()(target_probs, proposal, uniforms)
        own = target_probs[torch.arange(len(greedy_round.accepted)), greedy_round.accepted]
        return Verification(greedy_round.accepted, sample(own, uniforms[:, -1]), greedy_round.bonus)


@pytest.fixture(scope="session")
def faulty_verifiers():
    return {verifier.name: verifier for verifier in (Lenient(), ResidualFromTarget(), AcceptsTheArgmax())}
