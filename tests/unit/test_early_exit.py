"""The target's first layers draft on its own cache rows, and its other layers continue from where they stopped."""

import itertools

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from specaudit.core.errors import InputError
from specaudit.core.sampling import processed_probs
from specaudit.core.types import Limits, SamplingParams
from specaudit.cost.forced import FixedWidthDrafter, ForcedVerifier
from specaudit.decode import decode
from specaudit.drafters import create_drafter
from specaudit.models.causal import HuggingFaceModel
from specaudit.models.tabular import TabularModel
from specaudit.models.target import ModelTarget
from specaudit.verify import lossless_verifier

VOCABULARY, LAYERS, WINDOW = 32, 4, 4
ENDS = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
    "initializer_range": 0.3, **ENDS,
}  # fmt: skip
PLAIN = {name: value for name, value in SMALL.items() if name not in ("num_key_value_heads", "head_dim")}
GPT2 = {
    "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": 64,
    "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
OPT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "ffn_dim": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "max_position_embeddings": 64, "word_embed_proj_dim": 16, "init_std": 0.3, **ENDS,
}  # fmt: skip
MIXED = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**GPT2)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**PLAIN, num_key_value_heads=2)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL)),
    "gemma2, windows in some layers": lambda: Gemma2ForCausalLM(Gemma2Config(**SMALL, **MIXED)),
    "gemma3, windows in some layers": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SMALL, **MIXED)),
    "mistral, window of 4": lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=WINDOW)),
    "opt, with projections": lambda: OPTForCausalLM(OPTConfig(**OPT)),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**PLAIN)),
    "falcon, layers that return tuples": lambda: FalconForCausalLM(
        FalconConfig(
            vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=LAYERS, num_attention_heads=4, alibi=False,
            initializer_range=0.3, **ENDS,
        )
    ),
}  # fmt: skip
GREEDY = SamplingParams(temperature=0)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=5)
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7], [5, 3, 5]]


def build(name, dtype=torch.float64):
    torch.manual_seed(0)
    return HuggingFaceModel(MODELS[name]().to(dtype).eval(), None, name, "")


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return build(request.param)


@pytest.fixture(scope="module")
def llama():
    return build("llama")


HEADS = {
    "llama": {}, "gpt2": {}, "gemma2, windows in some layers": {"final_logit_softcapping": 2.0},
    "cohere": {"logit_scale": 0.25}, "granite": {"logits_scaling": 3.0},
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_the_head_gives_the_models_own_logits(name):
    torch.manual_seed(0)
    if name in MODELS:
        module = MODELS[name]()
        module.config.update(HEADS[name])
    else:
        kind, config = {
            "cohere": (CohereForCausalLM, CohereConfig), "granite": (GraniteForCausalLM, GraniteConfig),
        }[name]  # fmt: skip
        module = kind(config(**PLAIN, **HEADS[name]))
    model = HuggingFaceModel(module.double().eval(), None, name, "")
    with torch.no_grad():
        states, logits = model.score_hidden(torch.tensor([PROMPTS[0]]), (model.layer_count,))
        some = torch.tensor([5, 2, 9])
        torch.testing.assert_close(model.head(states), logits)
        torch.testing.assert_close(model.head(states, some), logits[..., some])


def no_model(name):
    raise AssertionError(f"asked for a model named {name}")


def drafter_of(model, exit_layer):
    return create_drafter(f"early-exit:{exit_layer}", model, no_model)


def run(model, drafter, params, prompts=PROMPTS, *, k=3, tokens=16, seeds=None, verifier=None):
    verifier = verifier or lossless_verifier(params)
    return decode(ModelTarget(model), drafter, verifier, prompts, params, Limits(tokens), k=k, seeds=seeds)


def outputs(decoded):
    return [transcript.output_ids for transcript in decoded.transcripts]


@torch.inference_mode()
def states_of(model, ids):
    return model.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states


FINAL_NORM = {"llama": "model.norm", "gpt2": "transformer.ln_f", "gpt_neox": "gpt_neox.final_layer_norm"}


@pytest.mark.parametrize("exit_layer", range(1, LAYERS))
@pytest.mark.parametrize("name", FINAL_NORM)
@torch.inference_mode()
def test_the_exit_is_the_norm_and_head_on_the_layers_hidden_state(name, exit_layer):
    model = build(name)
    ids = [3, 1, 4, 1, 5, 9]
    norm, head = model.model.get_submodule(FINAL_NORM[name]), model.model.get_output_embeddings()
    expected = head(norm(states_of(model, ids)[exit_layer]))
    split = model.split(exit_layer)
    torch.testing.assert_close(split.early.score_full(torch.tensor([ids]), [len(ids)]), expected)
    rows = model.open_rows(1, 10)
    rows.read([ids[:3]])
    lower = split.open_pass(rows)
    steps = [lower.step(torch.tensor([token])) for token in ids[3:]]
    torch.testing.assert_close(torch.stack(steps, 1), expected[:, 3:])


@pytest.mark.parametrize("exit_layer", range(1, LAYERS))
@torch.inference_mode()
def test_a_model_of_the_lower_layers_alone_gives_the_same(model, exit_layer):
    """Built anew with fewer layers and the target's weights, so that nothing of the views is trusted."""
    config = model.model.config.__class__(**{**model.model.config.to_dict(), **fewer(model.config, exit_layer)})
    small = model.model.__class__(config).to(torch.float64).eval()
    small.load_state_dict(model.model.state_dict(), strict=False)
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    early = model.split(exit_layer).early
    torch.testing.assert_close(early.score_full(ids, [8]), small(input_ids=ids).logits)


def fewer(config, layers):
    cut = {"n_layer" if hasattr(config, "n_layer") else "num_hidden_layers": layers}
    return {**cut, "layer_types": config.layer_types[:layers]} if getattr(config, "layer_types", None) else cut


@pytest.mark.parametrize("exit_layer", range(1, LAYERS))
@torch.inference_mode()
def test_a_continued_pass_gives_the_logits_and_the_cache_of_a_whole_one(model, exit_layer):
    """Over ragged rounds, with rows that leave, also where the lower part has read all or only some of the tokens."""
    split = model.split(exit_layer)
    assert split.continues
    rows, whole = model.open_rows(3, 40), model.open_rows(3, 40)
    draws = torch.Generator().manual_seed(exit_layer)
    for side in (rows, whole):
        side.read(PROMPTS)
    for width, read, kept, stay in [
        (4, 3, [4, 1, 2], [0, 1, 2]), (3, 1, [1, 3, 2], [2, 0, 1]), (2, 2, [2, 2, 1], [1, 2]), (5, 4, [5, 1], [0]),
        (3, 2, [2], [0]),
    ]:  # fmt: skip
        tokens = torch.randint(0, VOCABULARY, (len(kept), width), generator=draws)
        lower = split.open_pass(rows)
        for column in range(read):
            lower.step(tokens[:, column])
        continuation = lower.close()
        assert rows.lengths == whole.lengths
        torch.testing.assert_close(continuation(tokens), whole.forward(tokens), atol=1e-4, rtol=1e-4)
        for side in (rows, whole):
            side.commit_paths([list(range(count - 1)) for count in kept])
            side.keep(stay)
        assert_same_cache(rows, whole)


def assert_same_cache(rows, whole):
    assert rows.lengths == whole.lengths
    for one, other in zip(rows.cache.layers, whole.cache.layers, strict=True):
        for row, length in enumerate(rows.lengths):
            for kind in ("keys", "values"):
                held, expected = (getattr(layer, kind)[row, :, :length] for layer in (one, other))
                assert held.abs().sum() > 0
                torch.testing.assert_close(held, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("exit_layer", range(1, LAYERS))
def test_greedy_output_is_the_baselines(model, exit_layer):
    baseline = outputs(run(model, None, GREEDY))
    drafter = drafter_of(model, exit_layer)
    for k, batch in itertools.product((1, 3), (1, 3)):
        decoded = run(model, drafter, GREEDY, PROMPTS[:batch], k=k)
        assert outputs(decoded) == baseline[:batch]


def test_a_row_is_the_same_alone_and_in_a_batch(model):
    drafter, seeds = drafter_of(model, 2), [11, 12, 13]
    together = run(model, drafter, SAMPLED, seeds=seeds)
    assert sum(sum(transcript.rounds) for transcript in together.transcripts) > 0
    assert outputs(together) != outputs(run(model, drafter, SAMPLED, seeds=[21, 22, 23]))
    for prompt, seed, output in zip(PROMPTS, seeds, outputs(together), strict=True):
        assert outputs(run(model, drafter, SAMPLED, [prompt], seeds=[seed])) == [output]


def test_everything_is_accepted_where_the_layers_above_add_nothing():
    """Draft and target are one there, under every setting, on their shared cache rows."""
    own = build("llama")
    with torch.no_grad():
        for layer in own.model.model.layers[2:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    for params in (GREEDY, SAMPLED, SamplingParams(temperature=0.8, repetition_penalty=1.2, frequency_penalty=0.1)):
        decoded = run(own, drafter_of(own, 2), params, k=3, tokens=16)
        assert [t.rounds for t in decoded.transcripts] == [(3, 3, 3, 3)] * 3


class Tokens:
    """Counts the tokens that each decoder layer is given."""

    def __init__(self, layers):
        self.seen = [[] for _ in layers]
        self.hooks = [
            layer.register_forward_hook(lambda _module, args, _out, seen=seen: seen.append(args[0].shape[1]))
            for layer, seen in zip(layers, self.seen, strict=True)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()


@pytest.mark.parametrize("fixed", [False, True])
def test_no_key_is_computed_twice(llama, fixed):
    k, exit_layer = 3, 2
    target, drafter = ModelTarget(llama), drafter_of(llama, exit_layer)
    drafter = FixedWidthDrafter(drafter, k) if fixed else drafter
    target.start(PROMPTS, GREEDY, 40)
    drafter.start(PROMPTS, GREEDY, 40, target)
    with Tokens(llama.model.model.layers) as tokens, torch.inference_mode():
        target.score(drafter.propose([k, 0, 1], torch.zeros(3, k)))
    assert tokens.seen == [[1] * (k + 1)] * exit_layer + [[k + 1]] * (LAYERS - exit_layer)


def test_the_draws_are_from_the_recorded_distribution_which_replay_repeats(llama):
    """Teacher forcing, without a cache, finds what the rounds drew from."""
    drafter = drafter_of(llama, 2)
    target = ModelTarget(llama)
    for params in (SAMPLED, SamplingParams(temperature=0.7, repetition_penalty=1.3, presence_penalty=0.4)):
        target.start(PROMPTS, params, 40)
        drafter.start(PROMPTS, params, 40, target)
        with torch.inference_mode():
            proposal = drafter.propose([3, 3, 3], torch.full((3, 3), 0.6))
        sequences = list(zip(PROMPTS, proposal.tokens.tolist(), strict=True))
        replayed = dict(drafter.replay(sequences, params, 3))
        for row in range(3):
            torch.testing.assert_close(replayed[row].probs.to(proposal.draft_probs), proposal.draft_probs[row])
    assert proposal.draft_probs.gather(2, proposal.tokens.unsqueeze(-1)).min() > 0


def test_rows_that_keep_hidden_states_take_the_whole_pass(llama):
    target, drafter = ModelTarget(llama), drafter_of(llama, 1)
    target.start(PROMPTS, GREEDY, 40, hidden_layers=(1, LAYERS))
    drafter.start(PROMPTS, GREEDY, 40, target)
    with torch.inference_mode():
        proposal = drafter.propose([2, 2, 2], torch.zeros(3, 2))
        assert proposal.continuation is None
        probs = target.score(proposal)
    target.commit(
        [[0], [], [0, 1]], [[*row[:n], 1] for row, n in zip(proposal.tokens.tolist(), (1, 0, 2), strict=True)]
    )
    assert [states.shape for states in target.hidden] == [(2, 64), (1, 64), (3, 64)]
    states = states_of(llama, [*PROMPTS[0], *proposal.tokens[0].tolist()])
    torch.testing.assert_close(target.hidden[0], torch.cat([states[1], states[LAYERS]], -1)[0, 7:9])
    plain = llama.score_full(torch.tensor([[*PROMPTS[0], *proposal.tokens[0].tolist()]]), [10])[0, 7:]
    torch.testing.assert_close(probs[0], plain)
    assert processed_probs(plain, GREEDY).argmax(-1).tolist() == plain.argmax(-1).tolist()


def test_a_model_that_cannot_be_continued_takes_the_whole_pass():
    """Its layers look past the hidden state, at what the first of them was given."""
    model = build("llama")
    layers = model.model.model.layers
    given = []
    model.model.model.embed_tokens.register_forward_hook(lambda *_: given.clear())
    layers[0].register_forward_pre_hook(lambda _module, args: given.append(args[0]))
    layers[3].register_forward_hook(lambda _module, _args, output: output + 0.5 * given.pop() if given else output)
    drafter = drafter_of(model, 2)
    assert not drafter.split.continues
    given.clear()
    target = ModelTarget(model)
    target.start(PROMPTS, GREEDY, 40)
    drafter.start(PROMPTS, GREEDY, 40, target)
    with torch.inference_mode():
        proposal = drafter.propose([2, 2, 2], torch.zeros(3, 2))
    assert proposal.continuation is None
    assert target.rows.lengths == [len(prompt) - 1 for prompt in PROMPTS]


def test_forced_rounds_of_every_width_are_measured(llama):
    for width in (0, 1, 3):
        drafter = FixedWidthDrafter(drafter_of(llama, 1), width)
        decoded = run(llama, drafter, GREEDY, k=max(1, width), verifier=ForcedVerifier(lossless_verifier(GREEDY)))
        assert decoded.rounds[0].proposed == (width,) * 3


def test_the_target_is_left_as_it_was(llama):
    before = {name: id(module) for name, module in llama.model.named_modules()}
    baseline = outputs(run(llama, None, GREEDY))
    outputs(run(llama, drafter_of(llama, 2), GREEDY))
    assert {name: id(module) for name, module in llama.model.named_modules()} == before
    assert outputs(run(llama, None, GREEDY)) == baseline


@pytest.mark.parametrize("argument", ["0", "4", "-1", "1.5", "x", "²", "1:2"])
def test_layers_that_the_target_lacks_are_refused(llama, argument):
    with pytest.raises(InputError, match="M must be an integer from 1 to 3; use, for example, early-exit:1"):
        create_drafter(f"early-exit:{argument}", llama, no_model)


@pytest.mark.parametrize("name", ["early-exit", "early-exit:"])
def test_the_number_of_layers_must_be_given(llama, name):
    with pytest.raises(InputError, match="--draft = 'early-exit': needs the number of layers that draft, from 1 to 3"):
        create_drafter(name, llama, no_model)


def test_a_model_without_a_stack_of_layers_is_refused(llama):
    with pytest.raises(
        InputError, match="'early-exit:1': table has 0 decoder layers, and needs 2 or more; use prompt-lookup"
    ):
        create_drafter("early-exit:1", TabularModel(torch.zeros(4, 4), "table"), no_model)
    with pytest.raises(LookupError, match="table has no decoder layers"):
        TabularModel(torch.zeros(4, 4), "table").split(1)
    one = HuggingFaceModel(LlamaForCausalLM(LlamaConfig(**{**SMALL, "num_hidden_layers": 1})).eval(), None, "one", "")
    with pytest.raises(InputError, match="one has 1 decoder layers, and needs 2 or more"):
        create_drafter("early-exit:1", one, no_model)
    twice = build("llama")
    twice.model.model.others = torch.nn.ModuleList(torch.nn.Identity() for _ in range(LAYERS))
    with pytest.raises(InputError, match="the decoder of llama has 2 lists of 4 modules, and must have one"):
        create_drafter("early-exit:1", twice, no_model)
    wrapped = build("llama")
    wrapped.model.model.forward = wrapped.model.model.forward
    with pytest.raises(InputError, match="a forward of llama is wrapped"):
        create_drafter("early-exit:1", wrapped, no_model)
