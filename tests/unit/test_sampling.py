import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from specaudit.core.errors import InputError
from specaudit.core.sampling import (
    RowUniforms,
    TokenCounts,
    penalise,
    processed_along,
    processed_probs,
    row_seed,
    sample,
)
from specaudit.core.types import Limits, SamplingParams

BELOW_ONE = float(np.nextafter(1.0, 0.0))
VOCABULARY = 24


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, initializer_range=0.5, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


SETTINGS = [
    {},
    {"temperature": 0.3},
    {"temperature": 1.7},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 1000},
    {"top_p": 0.4},
    {"min_p": 0.2},
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.7, "temperature": 0.6},
    {"temperature": 0.7, "top_k": 9, "top_p": 0.8},
    {"temperature": 1.6, "top_k": 12, "top_p": 0.9, "min_p": 0.1},
    {"temperature": 1.6, "top_k": 12, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 1.3},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_distribution_is_the_one_that_generate_samples_from(llama, setting):
    prompts = torch.tensor([[1, 2, 3, 2], [5, 5, 7, 11]])
    torch.manual_seed(1)
    out = llama.generate(
        prompts, attention_mask=torch.ones_like(prompts), do_sample=True, max_new_tokens=4, output_scores=True,
        output_logits=True, return_dict_in_generate=True, **{"top_k": 0, **setting},
    )  # fmt: skip
    params = SamplingParams(**setting)
    counts = TokenCounts.of(prompts.tolist(), VOCABULARY, "cpu")
    for step, (logits, scores) in enumerate(zip(out.logits, out.scores, strict=True)):
        own = processed_probs(penalise(logits, counts.prompt, counts.output, params), params)
        torch.testing.assert_close(own, scores.softmax(-1), atol=1e-6, rtol=1e-5)
        assert torch.equal(own > 0, scores > -math.inf)
        for row in range(len(prompts)):
            counts.add(row, [int(out.sequences[row, prompts.shape[1] + step])])


def test_greedy_is_one_at_the_first_largest_logit():
    probs = processed_probs(torch.tensor([[0.0, 3.0, 3.0], [1.0, 0.0, -1.0]]), SamplingParams(temperature=0))
    assert probs.tolist() == [[0, 1, 0], [1, 0, 0]]


def test_float64_logits_stay_float64_and_half_precision_becomes_float32():
    assert processed_probs(torch.zeros(2, 3, dtype=torch.float64), SamplingParams()).dtype == torch.float64
    assert processed_probs(torch.zeros(2, 3, dtype=torch.bfloat16), SamplingParams()).dtype == torch.float32


def test_presence_and_frequency_look_at_the_output_alone():
    counts = TokenCounts.of([[0, 0, 1]], 4, "cpu")
    counts.add(0, [1, 2, 2])
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    penalised = penalise(torch.zeros(1, 4), counts.prompt, counts.output, params)
    assert penalised.tolist() == [[0.0, -0.75, -1.0, 0.0]]


def test_counts_along_a_chain_are_those_of_adding_its_tokens_one_by_one():
    counts = TokenCounts.of([[0], [3]], 5, "cpu")
    counts.add(1, [4, 4])
    chains = [[1, 1, 2], [4, 0, 4]]
    along = counts.along(torch.tensor(chains))
    for row, chain in enumerate(chains):
        assert torch.equal(along[row, 0], counts.output[row])
        for node, token in enumerate(chain, start=1):
            counts.add(row, [token])
            assert torch.equal(along[row, node], counts.output[row])


def test_counts_keep_rows():
    counts = TokenCounts.of([[0], [1], [2]], 3, "cpu")
    counts.add(2, [0])
    counts.keep([2, 0])
    assert counts.prompt.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert counts.output.tolist() == [[1, 0, 0], [0, 0, 0]]


@settings(max_examples=200)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=12).filter(any), st.integers(0, 255))
def test_sample_is_the_inverse_distribution_function(weights, step):
    share = Fraction(step, 256) * sum(weights)
    expected = next(token for token in range(len(weights)) if sum(weights[: token + 1]) > share)
    chosen = sample(torch.tensor([weights], dtype=torch.float64), torch.tensor([step / 256], dtype=torch.float64))
    assert chosen.item() == expected


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([0.0, 1e-30, 0.1, 0.3, 1.0, 7.0]), min_size=1, max_size=12).filter(any),
    st.one_of(st.sampled_from([0.0, BELOW_ONE]), st.floats(0, BELOW_ONE)),
)
def test_a_token_of_weight_zero_is_never_drawn(weights, uniform):
    chosen = sample(torch.tensor([weights]), torch.tensor([uniform], dtype=torch.float64)).item()
    assert weights[chosen] > 0


def test_a_large_vocabulary_of_float32_weights_loses_nothing():
    generator = np.random.default_rng(0)
    weights = generator.gamma(0.2, size=100_000).astype(np.float32)
    edges = np.concatenate([[0], np.cumsum(weights.astype(np.longdouble))])
    tokens = generator.choice(np.flatnonzero(weights > 1e-12), size=500, replace=False)
    middles = ((edges[tokens] + edges[tokens + 1]) / 2 / edges[-1]).astype(np.float64)
    laws = torch.from_numpy(weights).expand(len(tokens), -1)
    wide = np.diff(edges)[tokens] / edges[-1] > 1e-12  # the others are narrower than float64 sums resolve
    assert wide.sum() > 400
    assert sample(laws, torch.from_numpy(middles)).numpy()[wide].tolist() == tokens[wide].tolist()


@pytest.mark.parametrize("weight", [1.0, 1e-3])
def test_the_last_uniform_below_one_draws_the_last_token_that_has_weight(weight):
    weights = torch.full((1, 1000), weight)
    weights[0, 990:] = 0
    assert sample(weights, torch.tensor([BELOW_ONE], dtype=torch.float64)).item() == 989


BAD = [
    ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("top_k", -1), ("top_p", 0.0),
    ("top_p", 1.01), ("top_p", math.nan), ("min_p", -0.1), ("min_p", 1.0), ("repetition_penalty", 0.0),
    ("repetition_penalty", -1.0), ("repetition_penalty", math.inf), ("presence_penalty", math.nan),
    ("frequency_penalty", -math.inf), ("seed", -1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_sampling_parameters_are_refused_by_name_and_value(name, value):
    with pytest.raises(InputError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.argument == name
    assert str(caught.value).startswith(f"{name} = {value!r}: ")


def test_no_new_tokens_is_refused():
    with pytest.raises(InputError, match="max_new_tokens = 0"):
        Limits(max_new_tokens=0)


def test_penalties_are_written_down_only_where_one_is_on():
    assert set(SamplingParams(temperature=0.5).as_dict()) == {"temperature", "top_k", "top_p", "min_p", "seed"}
    on = SamplingParams(frequency_penalty=0.2)
    assert SamplingParams(**on.as_dict()) == on


def test_row_seeds_are_distinct_reproducible_and_exact_in_json():
    some = [*range(150), *(high << 32 for high in range(1, 20)), 2**64]
    seeds = {(seed, index): row_seed(seed, index) for seed in some for index in range(150)}
    assert len(set(seeds.values())) == len(seeds)
    assert all(0 <= seed < 2**53 for seed in seeds.values())
    assert row_seed(7, 3) == seeds[7, 3]


def test_a_rows_uniforms_do_not_depend_on_its_batch():
    alone = RowUniforms([11])
    expected = torch.cat([alone.draw(5) for _ in range(4)])
    batch = RowUniforms([3, 11, 9])
    blocks = [batch.draw(5)[1], batch.draw(5)[1]]
    batch.keep([2, 1])
    blocks += [batch.draw(5)[1], batch.draw(5)[1]]
    assert torch.equal(torch.stack(blocks), expected)


def test_uniforms_lie_in_the_half_open_unit_interval_and_differ_between_rows():
    block = RowUniforms(list(range(20))).draw(50)
    assert block.dtype == torch.float64
    assert block.min() >= 0
    assert block.max() < 1
    assert len(block.unique()) == block.numel()


def test_laws_along_an_output_may_be_asked_for_in_pieces():
    params = SamplingParams(0.7, top_k=5, repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1)
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    prompt, output = [1, 4, 4], [2, 2, 7, 0, 4, 2]
    whole = processed_along(logits, prompt, output, params)
    pieces = [processed_along(logits[first : first + 2], prompt, output, params, first) for first in (0, 2, 4)]
    torch.testing.assert_close(torch.cat(pieces), whole)
    for place in range(6):  # each as a decoder would make it that has written the tokens before
        counts = TokenCounts.of([prompt], 9, "cpu")
        counts.add(0, output[:place])
        alone = penalise(logits[place : place + 1], counts.prompt, counts.output, params)
        torch.testing.assert_close(whole[place : place + 1], processed_probs(alone, params))
