"""Rows that advance apart from each other give the logits of one ordinary pass over each row's own tokens."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specaudit.core.tree import Tree
from specaudit.models.causal import HuggingFaceModel
from specaudit.models.kv_cache import RowCache

VOCABULARY = 32
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
    "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
GPT2 = {
    "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "initializer_range": 0.3,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
WINDOWS = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL)),
    "mistral, window of 4": lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=4)),
    "gemma3, windows in some layers": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SMALL, **WINDOWS)),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    torch.manual_seed(0)
    return HuggingFaceModel(MODELS[request.param]().eval(), None, request.param, "")


@torch.inference_mode()
def plain(model, ids):
    """Logits of one ordinary pass over one row's tokens."""
    return model.model(input_ids=torch.tensor([ids])).logits[0]


class Ragged:
    """Drives cached rows as a decode loop does, with junk after the right tokens, and checks every right logit."""

    def __init__(self, model, prompts, seed):
        self.model, self.draws = model, np.random.default_rng(seed)
        self.texts = [list(prompt) for prompt in prompts]
        self.rows = model.open_rows(len(prompts), 40)
        self.rows.read(prompts)

    def step(self, width):
        fed = self.draws.integers(0, VOCABULARY, size=(len(self.texts), width)).tolist()
        logits = self.rows.forward(torch.tensor(fed))
        assert logits.shape == (len(self.texts), width, VOCABULARY)
        for text, tokens, row in zip(self.texts, fed, logits, strict=True):
            torch.testing.assert_close(row, plain(self.model, text + tokens)[-width:], atol=1e-4, rtol=1e-4)
        kept = self.draws.integers(0, width + 1, size=len(self.texts)).tolist()
        self.rows.commit(kept)
        self.texts = [text + tokens[:count] for text, tokens, count in zip(self.texts, fed, kept, strict=True)]
        assert self.rows.lengths == [len(text) for text in self.texts]

    def tree_step(self, parents):
        """A tree whose nodes must each give the logits of their own branch; a random branch is kept."""
        tree = Tree(parents)
        fed = self.draws.integers(0, VOCABULARY, size=(len(self.texts), tree.nodes + 1)).tolist()
        logits = self.rows.forward(torch.tensor(fed), tree)
        paths = []
        for row, (text, tokens) in enumerate(zip(self.texts, fed, strict=True)):
            ends = int(self.draws.integers(0, tree.nodes + 1))
            for place in range(tree.nodes + 1):
                branch = np.flatnonzero(tree.ancestors[tree.row(row), place]).tolist()
                expected = plain(self.model, text + [tokens[i] for i in branch])[-1]
                torch.testing.assert_close(logits[row, place], expected, atol=1e-4, rtol=1e-4)
                if place == ends:
                    paths.append([i - 1 for i in branch[1:]])
                    kept = [tokens[i] for i in branch]
            self.texts[row] = text + kept
        self.rows.commit_paths(paths)
        assert self.rows.lengths == [len(text) for text in self.texts]

    def rewind(self):
        lengths = [max(1, len(text) - int(self.draws.integers(0, 4))) for text in self.texts]
        self.rows.rewind(lengths)
        self.texts = [text[:length] for text, length in zip(self.texts, lengths, strict=True)]

    def keep(self, rows):
        self.rows.keep(rows)
        self.texts = [self.texts[row] for row in rows]


PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3, 5]]


def test_ragged_rows_give_the_logits_of_an_ordinary_pass(model):
    ragged = Ragged(model, PROMPTS, seed=1)
    for width in (3, 1, 5, 2):
        ragged.step(width)
    ragged.rewind()
    ragged.step(4)
    ragged.keep([2, 0])
    ragged.step(3)
    ragged.rewind()
    ragged.step(1)
    ragged.keep([1])
    ragged.step(5)


def test_rows_of_one_length_take_the_same_way_to_the_same_logits(model):
    ragged = Ragged(model, [[1, 2, 3], [9, 8, 7]], seed=2)
    for _ in range(2):
        ragged.step(4)
        ragged.rows.rewind([3, 3])
        ragged.texts = [text[:3] for text in ragged.texts]
    ragged.step(4)
    ragged.step(2)


WIDE = [-1, -1, -1, 0, 0, 1, 3, 5]
APART = [[-1, 0, -1, 2, 2, 0], [-1, -1, -1, -1, 0, 4], [-1, 0, 1, 2, 3, 4]]


def test_every_branch_of_a_tree_gives_the_logits_of_its_own_text(model):
    ragged = Ragged(model, PROMPTS, seed=5)
    ragged.tree_step(WIDE)
    ragged.tree_step(APART)
    ragged.step(2)
    ragged.keep([2, 0])
    ragged.tree_step(WIDE)
    ragged.rewind()
    ragged.keep([1])
    ragged.tree_step(WIDE)
    ragged.step(3)


def test_prompts_of_no_token_are_empty_rows(model):
    ragged = Ragged(model, [[], []], seed=3)
    ragged.step(3)
    mixed = Ragged(model, [[], [4, 4]], seed=4)
    mixed.step(2)


def test_the_ordinary_pass_over_padded_rows_ignores_the_padding(model):
    ids = torch.zeros(3, 9, dtype=torch.long)
    for row, prompt in enumerate(PROMPTS):
        ids[row, : len(prompt)] = torch.tensor(prompt)
    logits = model.score_full(ids, [len(prompt) for prompt in PROMPTS], first=1)
    assert logits.shape == (3, 8, VOCABULARY)
    for row, prompt in enumerate(PROMPTS):
        expected = plain(model, prompt)[1:]
        torch.testing.assert_close(logits[row, : len(prompt) - 1], expected, atol=1e-4, rtol=1e-4)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(1, 4), st.none() | st.integers(1, 5))
def test_a_token_sees_its_own_rows_past_and_no_further_back_than_the_window(lengths, width, window):
    rows = RowCache(1, len(lengths), 16, "cpu")
    rows.commit(lengths)
    rows.prepare(width)
    mask = rows.causal_mask(torch.float32, window).expand(len(lengths), -1, -1, -1)
    assert set(mask.unique().tolist()) <= {0.0, -torch.inf}
    assert mask.shape == (len(lengths), 1, width, max(lengths) + width)
    assert rows.positions().tolist() == [list(range(length, length + width)) for length in lengths]
    for row, length in enumerate(lengths):
        for new in range(width):
            at = length + new
            oldest = 0 if window is None else max(0, at - window + 1)
            seen = (mask[row, 0, new] == 0).nonzero().flatten().tolist()
            assert seen == list(range(oldest, at + 1))


def test_more_tokens_than_there_is_room_for_are_refused():
    rows = RowCache(1, 2, 8, "cpu")
    rows.commit([6, 3])
    rows.prepare(2)
    with pytest.raises(IndexError, match="9 tokens do not fit a cache of 8"):
        rows.prepare(3)


def test_a_row_cannot_be_rewound_to_what_it_never_held():
    rows = RowCache(1, 2, 8, "cpu")
    rows.commit([4, 2])
    rows.rewind([3, 2])
    assert rows.lengths == [3, 2]
    with pytest.raises(IndexError, match="cannot rewind"):
        rows.rewind([3, 3])
