"""EAGLE heads in the speculators format: published names and fields, the arithmetic of each option, what is refused."""

import copy
import json
import math

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import silu

from specaudit.core.errors import InputError
from specaudit.drafters import eagle
from specaudit.drafters.eagle_checkpoint import load_eagle
from specaudit.drafters.speculators_checkpoint import LossyDeclarationWarning, lossy_declaration
from specaudit.models.kv_cache import RowCache

HIDDEN, VOCABULARY, INNER, HEADS, GROUPS, DIM, EPSILON = 16, 24, 20, 4, 2, 4, 1e-5
LAYER = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "head_dim": DIM,
    "hidden_act": "silu", "hidden_size": HIDDEN, "initializer_range": 0.02, "intermediate_size": INNER,
    "max_position_embeddings": 64, "mlp_bias": False, "model_type": "llama", "num_attention_heads": HEADS,
    "num_hidden_layers": 1, "num_key_value_heads": GROUPS, "pretraining_tp": 1, "rms_norm_eps": EPSILON,
    "rope_scaling": None, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "use_cache": True,
    "vocab_size": VOCABULARY,
}  # fmt: skip
GREEDY = {"accept_tolerance": 0.0, "proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1}


class Target:
    """What a loader asks of a target."""

    hidden_size, vocabulary, layer_count = HIDDEN, VOCABULARY, 8
    device, dtype = torch.device("cpu"), torch.float32


def config_of(kind, **fields):
    """A configuration as the format's own files have it."""
    common = {
        "auto_map": {"": f"{kind}.SpeculatorConfig"}, "has_no_defaults_at_init": False, "speculators_model_type": kind,
        "speculators_config": {
            "algorithm": kind, "default_proposal_method": "greedy", "proposal_methods": [dict(GREEDY)],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "example/target"},
        },
        "speculators_version": "0.3.0", "tie_word_embeddings": False, "torch_dtype": "float32",
        "transformer_layer_config": dict(LAYER), "transformers_version": "4.57.0",
    }  # fmt: skip
    own = {
        "eagle": {
            "architectures": ["EagleSpeculator", "LlamaDecoderLayer"], "fusion_bias": False, "layernorms": False,
            "transformer_layer_architecture": "LlamaDecoderLayer",
        },
        "eagle3": {
            "architectures": ["Eagle3Speculator"], "draft_vocab_size": 10, "eagle_aux_hidden_state_layer_ids": None,
            "embed_requires_grad": False, "norm_before_fc": False, "norm_before_residual": False, "norm_output": False,
            "fc_norm": False, "target_hidden_size": None,
        },
    }[kind]  # fmt: skip
    return copy.deepcopy(common | own) | fields


def layer_weights(prefix, inputs, *norms):
    shapes = {
        "self_attn.q_proj": (HEADS * DIM, inputs), "self_attn.k_proj": (GROUPS * DIM, inputs),
        "self_attn.v_proj": (GROUPS * DIM, inputs), "self_attn.o_proj": (HIDDEN, HEADS * DIM),
        "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
        **{norm: (HIDDEN,) for norm in norms},
    }  # fmt: skip
    return {f"{prefix}{name}.weight": shape for name, shape in shapes.items()}


def shapes_of(config, extra=()):
    """The published names and shapes of the weights that go with a configuration; ``extra`` names optional ones."""
    optional = {"embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN)}
    if config["speculators_model_type"] == "eagle":
        norms = ("input_layernorm",) if config["layernorms"] else ()
        found = layer_weights("transformer.", HIDDEN, *norms, "post_attention_layernorm")
        found["fusion_fc.weight"] = (HIDDEN, 2 * HIDDEN)
        if config["fusion_bias"]:
            found["fusion_fc.bias"] = (HIDDEN,)
        if config["layernorms"]:
            found |= {"embedding_layernorm.weight": (HIDDEN,), "pre_lm_head_layernorm.weight": (HIDDEN,)}
    else:
        states, outputs = len(config["eagle_aux_hidden_state_layer_ids"] or range(3)), config["draft_vocab_size"]
        norms = ("input_layernorm", "post_attention_layernorm")
        found = layer_weights("layers.0.", 2 * HIDDEN, "hidden_norm", *norms)
        for index in range(1, config["transformer_layer_config"]["num_hidden_layers"]):
            found |= layer_weights(f"layers.{index}.", HIDDEN, *norms)
        found |= {"fc.weight": (HIDDEN, states * HIDDEN), "norm.weight": (HIDDEN,)}
        optional["lm_head.weight"] = found["lm_head.weight"] = (outputs, HIDDEN)
        if config["norm_before_fc"]:
            found["input_norm.weight"] = (states * HIDDEN,)
        if config["fc_norm"]:
            found |= {f"fc_norm.{index}.weight": (HIDDEN,) for index in range(states)}
    return found | {name: optional[name] for name in extra}


def weights_of(config, extra=()):
    generator = torch.Generator().manual_seed(5)
    found = {}
    for name, shape in shapes_of(config, extra).items():
        drawn = torch.randn(shape, generator=generator)
        found[name] = 1 + 0.3 * drawn if len(shape) == 1 else drawn / math.sqrt(shape[-1])
    if config["speculators_model_type"] == "eagle3" and config["draft_vocab_size"] != VOCABULARY:
        found["d2t"] = torch.arange(config["draft_vocab_size"])  # id i stands for 2 i
        found["t2d"] = torch.isin(torch.arange(VOCABULARY), 2 * found["d2t"])
    return found


def written(folder, config, weights):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({key: value.clone() for key, value in weights.items()}, folder / "model.safetensors")
    return folder


def normed(state, weight):
    return state / torch.sqrt(state.pow(2).mean(-1, keepdim=True) + EPSILON) * weight


def after_attention(weights, prefix, residual, inputs):
    """A layer on a single token, whose attention is its own value."""
    value = (weights[f"{prefix}self_attn.v_proj.weight"] @ inputs).view(GROUPS, DIM)
    value = value.repeat_interleave(HEADS // GROUPS, dim=0).flatten()
    state = residual + weights[f"{prefix}self_attn.o_proj.weight"] @ value
    inner = normed(state, weights[f"{prefix}post_attention_layernorm.weight"])
    gate, up, down = (weights[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return state + down @ (silu(gate @ inner) * (up @ inner))


def eagle1_by_hand(config, weights, token, state):
    """What is fed back, and what the output head reads, of one pair."""
    if config["layernorms"]:
        token = normed(token, weights["embedding_layernorm.weight"])
    merged = weights["fusion_fc.weight"] @ torch.cat([token, state])
    if config["fusion_bias"]:
        merged = merged + weights["fusion_fc.bias"]
    inputs = normed(merged, weights["transformer.input_layernorm.weight"]) if config["layernorms"] else merged
    found = after_attention(weights, "transformer.", merged, inputs)
    return found, normed(found, weights["pre_lm_head_layernorm.weight"]) if config["layernorms"] else found


def eagle3_by_hand(config, weights, token, states):
    if config["norm_before_fc"]:
        states = normed(states, weights["input_norm.weight"])
    if config["fc_norm"]:
        parts = states.view(-1, HIDDEN)
        states = torch.cat([normed(part, weights[f"fc_norm.{i}.weight"]) for i, part in enumerate(parts)])
    merged = weights["fc.weight"] @ states
    beside = normed(merged, weights["layers.0.hidden_norm.weight"])
    inputs = torch.cat([normed(token, weights["layers.0.input_layernorm.weight"]), beside])
    found = after_attention(weights, "layers.0.", beside if config["norm_before_residual"] else merged, inputs)
    for index in range(1, config["transformer_layer_config"]["num_hidden_layers"]):
        inputs = normed(found, weights[f"layers.{index}.input_layernorm.weight"])
        found = after_attention(weights, f"layers.{index}.", found, inputs)
    read = normed(found, weights["norm.weight"])
    return read if config["norm_output"] else found, read


BOTH_LAYERS = {"transformer_layer_config": LAYER | {"num_hidden_layers": 2}}
HEADS_READ = {
    "eagle": ("eagle", {}, ()),
    "eagle, fusion_bias": ("eagle", {"fusion_bias": True}, ()),
    "eagle, layernorms": ("eagle", {"layernorms": True}, ()),
    "eagle, both": ("eagle", {"layernorms": True, "fusion_bias": True}, ()),
    "eagle, own embedding and head": ("eagle", {}, ("embed_tokens.weight", "lm_head.weight")),
    "eagle, own head under its norm": ("eagle", {"layernorms": True}, ("lm_head.weight",)),
    "eagle3": ("eagle3", {}, ()),
    "eagle3, norm_before_residual": ("eagle3", {"norm_before_residual": True}, ()),
    "eagle3, norm_before_fc": ("eagle3", {"norm_before_fc": True}, ()),
    "eagle3, fc_norm": ("eagle3", {"fc_norm": True}, ()),
    "eagle3, norm_output": ("eagle3", {"norm_output": True}, ()),
    "eagle3, all but one": ("eagle3", {"norm_before_residual": True, "fc_norm": True, "norm_output": True}, ()),
    "eagle3, two layers": ("eagle3", BOTH_LAYERS | {"norm_output": True}, ()),
    "eagle3, five states": (
        "eagle3", {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 5, 7], "fc_norm": True, "target_hidden_size": HIDDEN},
        (),
    ),
    "eagle3, one state": ("eagle3", {"eagle_aux_hidden_state_layer_ids": [4], "norm_before_fc": True}, ()),
    "eagle3, own embedding": ("eagle3", {}, ("embed_tokens.weight",)),
    "eagle3, the whole vocabulary": ("eagle3", {"draft_vocab_size": VOCABULARY}, ()),
}  # fmt: skip


def made(name):
    kind, fields, extra = HEADS_READ[name]
    config = config_of(kind, **fields)
    return config, weights_of(config, extra)


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


every_head = pytest.mark.parametrize("name", HEADS_READ)


@every_head
@torch.inference_mode()
def test_each_option_is_the_formats_own_arithmetic(tmp_path, name):
    config, weights = made(name)
    head, layers = load_eagle(written(tmp_path, config, weights), Target())
    third = config["speculators_model_type"] == "eagle3"
    ids = config.get("eagle_aux_hidden_state_layer_ids") or ([2, 4, 5] if third else [8])
    assert layers == tuple(ids)
    token, states = drawn(HIDDEN), drawn(len(ids) * HIDDEN)
    fed_back, read = (eagle3_by_hand if third else eagle1_by_hand)(config, weights, token, states)
    found = head.unroll(token.view(1, 1, -1), head.feature(states).view(1, 1, -1), 1)[0][0, 0]
    torch.testing.assert_close(found, fed_back, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.readout(found), read, rtol=1e-4, atol=1e-5)
    assert (head.embed_tokens is None) == ("embed_tokens.weight" not in weights)
    assert (head.lm_head is None) == ("lm_head.weight" not in weights)
    if head.lm_head is not None:
        torch.testing.assert_close(head.logits(found), weights["lm_head.weight"] @ read, rtol=1e-4, atol=1e-5)
    if third:
        most = config["draft_vocab_size"] - 1
        assert head.ids(torch.tensor([most])).tolist() == [2 * most if "d2t" in weights else most]


@every_head
@torch.inference_mode()
def test_unrolling_gives_what_a_chain_predicts_step_by_step(tmp_path, name):
    config, weights = made(name)
    head, layers = load_eagle(written(tmp_path, config, weights), Target())
    head = head.double()
    length, depth = 7, 3
    token = drawn(1, length, HIDDEN).double()
    states = head.feature(drawn(1, length, len(layers) * HIDDEN).double())
    unrolled = head.unroll(token, states, depth)
    for start in range(length):
        rows = RowCache(len(head.layers), 1, 16, "cpu")
        rows.prepare(start + 1)
        feature = head(token[:, : start + 1], states[:, : start + 1], rows)[:, -1:]
        rows.commit([start + 1])
        for step in range(min(depth, length - start)):
            if step > 0:
                rows.prepare(1)
                feature = head(token[:, start + step : start + step + 1], feature, rows)
                rows.commit([1])
            # The norms work in float32, so the two ways round differently there.
            expected = unrolled[step][:, start + step : start + step + 1]
            torch.testing.assert_close(expected, feature, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", ["missing", "unknown", "misshaped"])
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("eagle", "fusion_fc.weight"),
        ("eagle", "transformer.mlp.up_proj.weight"),
        ("eagle, both", "fusion_fc.bias"),
        ("eagle, layernorms", "embedding_layernorm.weight"),
        ("eagle, layernorms", "pre_lm_head_layernorm.weight"),
        ("eagle, layernorms", "transformer.input_layernorm.weight"),
        ("eagle3", "fc.weight"),
        ("eagle3", "layers.0.hidden_norm.weight"),
        ("eagle3", "norm.weight"),
        ("eagle3", "d2t"),
        ("eagle3, norm_before_fc", "input_norm.weight"),
        ("eagle3, fc_norm", "fc_norm.1.weight"),
    ],
)
def test_a_weight_that_is_wrong_is_named_as_it_is_published(tmp_path, name, key, how):
    config, weights = made(name)
    assert key in weights
    if how == "missing":
        del weights[key]
    elif how == "misshaped":
        weights[key] = torch.zeros(3, 3, dtype=weights[key].dtype)
    else:
        weights[f"more.{key}"] = weights[key]
        key = f"more.{key}"
    with pytest.raises(InputError) as caught:
        load_eagle(written(tmp_path, config, weights), Target())
    assert f"the weight {key!r}" in str(caught.value)
    assert {"missing": "missing", "unknown": "unknown", "misshaped": "shape [3, 3]"}[how] in str(caught.value)


@pytest.mark.parametrize(
    ("name", "option", "key"),
    [
        ("eagle", "layernorms", "embedding_layernorm.weight"),
        ("eagle", "fusion_bias", "fusion_fc.bias"),
        ("eagle3", "norm_before_fc", "input_norm.weight"),
        ("eagle3", "fc_norm", "fc_norm.0.weight"),
    ],
)
def test_an_option_and_its_weights_must_go_together(tmp_path, name, option, key):
    config, weights = made(name)
    with pytest.raises(InputError, match=f"the weight '{key}' is missing"):
        load_eagle(written(tmp_path / "on", config | {option: True}, weights), Target())
    both = made(name)[1] | {k: v for k, v in weights_of(config | {option: True}).items() if k not in weights}
    with pytest.raises(InputError, match=f"the weight '{key}' is unknown"):
        load_eagle(written(tmp_path / "off", config, both), Target())


def test_a_head_without_its_output_head_is_refused(tmp_path):
    config, weights = made("eagle3")
    del weights["lm_head.weight"]
    with pytest.raises(InputError, match=r"the weight 'lm_head\.weight' is missing"):
        load_eagle(written(tmp_path, config, weights), Target())


def test_a_weight_under_two_names_is_refused(tmp_path):
    config, weights = made("eagle")
    weights["fc.weight"] = weights["fusion_fc.weight"]
    with pytest.raises(InputError, match="there under two names"):
        load_eagle(written(tmp_path, config, weights), Target())


def changed(config, path, value):
    *where, last = path.split("/")
    inner = config
    for part in where:
        inner = inner[part]
    inner[last] = value
    return config


@pytest.mark.parametrize(
    ("kind", "path", "value", "problem"),
    [
        ("eagle3", "speculators_model_type", "dflash", "speculators_model_type is 'dflash'"),
        ("eagle3", "speculators_model_type", ["eagle3"], "speculators_model_type is ['eagle3']"),
        ("eagle3", "speculators_model_type", "peagle", "'eagle' and 'eagle3' can be read"),
        ("eagle3", "speculators_config/algorithm", "eagle", "speculators_config.algorithm is 'eagle'"),
        ("eagle3", "some_option", True, "some_option is True"),
        ("eagle3", "some_option", False, "some_option is False"),
        ("eagle3", "layernorms", False, "layernorms is False"),
        ("eagle", "norm_output", True, "norm_output is True"),
        ("eagle3", "quantization_config", {"bits": 4}, "quantization_config is"),
        ("eagle3", "norm_output", "true", "norm_output is 'true'"),
        ("eagle", "layernorms", 1, "layernorms is 1"),
        ("eagle", "transformer_layer_architecture", "Qwen3DecoderLayer", "transformer_layer_architecture is"),
        ("eagle3", "transformer_layer_config", None, "transformer_layer_config is None"),
        ("eagle3", "transformer_layer_config/model_type", "qwen3", "transformer_layer_config.model_type is 'qwen3'"),
        ("eagle3", "transformer_layer_config/hidden_act", "gelu", "transformer_layer_config.hidden_act is 'gelu'"),
        ("eagle3", "transformer_layer_config/mlp_bias", True, "transformer_layer_config.mlp_bias is True"),
        ("eagle3", "transformer_layer_config/logit_scale", 2.0, "transformer_layer_config.logit_scale is 2.0"),
        ("eagle3", "transformer_layer_config/layer_types", ["sliding_attention"], "layer_types is"),
        ("eagle3", "transformer_layer_config/rope_parameters", {"full_attention": {}}, "rope_parameters is"),
        (
            "eagle3", "transformer_layer_config/rope_parameters", {"partial_rotary_factor": 0.5},
            "partial_rotary_factor is 0.5",
        ),
        ("eagle3", "transformer_layer_config/vocab_size", 25, "transformer_layer_config.vocab_size is 25"),
        ("eagle3", "transformer_layer_config/num_hidden_layers", 2, "num_hidden_layers is 2"),
        ("eagle3", "transformer_layer_config/hidden_size", None, "config.json does not say hidden_size"),
        ("eagle3", "transformer_layer_config/hidden_size", 32, "its hidden_size is 32"),
        ("eagle3", "target_hidden_size", 32, "target_hidden_size is 32"),
        ("eagle3", "draft_vocab_size", 11, "draft_vocab_size is 11"),
        ("eagle3", "eagle_aux_hidden_state_layer_ids", [], "eagle_aux_hidden_state_layer_ids is []"),
        ("eagle3", "eagle_aux_hidden_state_layer_ids", [2, 4, 8], "eagle_aux_hidden_state_layer_ids is [2, 4, 8]"),
        ("eagle3", "eagle_aux_hidden_state_layer_ids", [2, 4, 9], "eagle_aux_hidden_state_layer_ids is [2, 4, 9]"),
        ("eagle3", "eagle_aux_hidden_state_layer_ids", [2, 4, 4], "eagle_aux_hidden_state_layer_ids is [2, 4, 4]"),
        ("eagle3", "eagle_aux_hidden_state_layer_ids", [2, 4], "the weight 'fc.weight' has shape"),
    ],
)  # fmt: skip
def test_a_field_that_is_not_understood_is_named(tmp_path, kind, path, value, problem):
    config, weights = made(kind)
    with pytest.raises(InputError) as caught:
        load_eagle(written(tmp_path, changed(config, path, value), weights), Target())
    assert problem in str(caught.value)
    assert str(caught.value).startswith("--draft = ")


def test_one_norm_before_the_merge_excludes_the_other(tmp_path):
    config = config_of("eagle3", norm_before_fc=True, fc_norm=True)
    with pytest.raises(InputError, match="norm_before_fc and fc_norm"):
        load_eagle(written(tmp_path, config, weights_of(config)), Target())


def test_a_smaller_vocabulary_needs_its_map(tmp_path):
    config, weights = made("eagle3")
    del weights["d2t"], weights["t2d"]
    with pytest.raises(InputError, match="the weight 'd2t' is missing, and the head proposes 10 of 24 tokens"):
        load_eagle(written(tmp_path, config, weights), Target())


def test_the_nested_configuration_reaches_the_layer(tmp_path):
    rope = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3",
            "original_max_position_embeddings": 32}  # fmt: skip
    config, weights = made("eagle3")
    config["transformer_layer_config"] |= {"rope_scaling": rope, "attention_bias": True}
    biases = {"q_proj": HEADS * DIM, "k_proj": GROUPS * DIM, "v_proj": GROUPS * DIM, "o_proj": HIDDEN}
    weights |= {f"layers.0.self_attn.{name}.bias": drawn(width) for name, width in biases.items()}
    layer = load_eagle(written(tmp_path, config, weights), Target())[0].shape.config
    assert layer.rope_parameters == rope | {"rope_theta": 500000.0}
    assert (layer.rms_norm_eps, layer.head_dim, layer.attention_bias) == (EPSILON, DIM, True)


def test_the_plain_format_knows_the_options_of_eagle_3_1(tmp_path):
    """Heads in the plain format state them beside the layer's fields, or in an ``eagle_config``."""
    config, weights = made("eagle3, all but one")
    plain = LAYER | {"norm_before_residual": True}
    options = {"fc_norm": True, "norm_output": True}
    expected, _ = load_eagle(written(tmp_path / "speculators", config, weights), Target())
    for number, fields in enumerate((plain | options, plain | {"eagle_config": options})):
        head, _ = load_eagle(written(tmp_path / str(number), fields, weights), Target())
        token, given = drawn(1, 3, HIDDEN), drawn(1, 3, 3 * HIDDEN)
        for mine, theirs in zip(
            head.unroll(token, head.feature(given), 2), expected.unroll(token, expected.feature(given), 2), strict=True
        ):
            torch.testing.assert_close(mine, theirs)


def declaring(*methods, kind="eagle3", **inner):
    config = config_of(kind)
    config["speculators_config"] |= {"proposal_methods": list(methods), **inner}
    return config


SAMPLING = {"proposal_type": "sampling", "speculative_tokens": 3}
LOSSY = [
    ([GREEDY | {"verifier_accept_k": 3}], ["verifier_accept_k = 3 in proposal method 'greedy'"]),
    ([GREEDY | {"accept_tolerance": 0.5}], ["accept_tolerance = 0.5 in proposal method 'greedy'"]),
    ([GREEDY, GREEDY | {"verifier_accept_k": 2, "accept_tolerance": 5}], ["verifier_accept_k = 2", "tolerance = 5"]),
    ([GREEDY, SAMPLING | {"accept_lenience": 0.9}], ["accept_lenience = 0.9 in proposal method 'sampling'"]),
]
LOSSLESS = [
    [GREEDY],
    [{"speculative_tokens": 3}],
    [GREEDY | {"verifier_accept_k": None, "accept_tolerance": 0}],
    [SAMPLING | {"accept_lenience": 1.0}],
    [{"proposal_type": "static_tree", "initial_branching_factor": 4, "branching_factor": 2, "depth": 5}],
    [{"proposal_type": "dynamic_tree", "speculative_tokens": 48, "expansion_factor": 10, "depth": 6}],
    [],
]


def created(folder, config, weights):
    return eagle.create(str(written(folder, config, weights)), Target(), lambda _: None)


@pytest.mark.parametrize(("methods", "said"), LOSSY)
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_lossy_declaration_is_said_and_kept(tmp_path, kind, methods, said):
    config, weights = declaring(*methods, kind=kind), made(kind)[1]
    with pytest.warns(LossyDeclarationWarning) as caught:
        drafter = created(tmp_path, config, weights)
    for words in said:
        assert words in str(caught[0].message)
        assert words in drafter.declares_lossy
    assert "a server that honours this" in str(caught[0].message)
    assert "specaudit's own decoding does not use it" in str(caught[0].message)


@pytest.mark.parametrize("methods", LOSSLESS)
def test_a_lossless_declaration_is_silent(tmp_path, methods):
    assert created(tmp_path, declaring(*methods), made("eagle3")[1]).declares_lossy is None


def test_what_declares_nothing_is_silent(tmp_path):
    config, weights = made("eagle3")
    for number, inner in enumerate((None, {"algorithm": "eagle3"})):
        drafter = created(tmp_path / str(number), config | {"speculators_config": inner}, weights)
        assert drafter.declares_lossy is None
    plain = created(tmp_path / "plain", LAYER, weights)
    assert plain.declares_lossy is None


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (declaring(GREEDY | {"accept_entropy": 0.3}), "proposal_methods[0].accept_entropy is 0.3"),
        (declaring(GREEDY, {"proposal_type": "typical"}), "proposal_methods[1].proposal_type is 'typical'"),
        (declaring(GREEDY | {"verifier_accept_k": "3"}), "proposal_methods[0].verifier_accept_k is '3'"),
        (declaring(GREEDY | {"verifier_accept_k": 0}), "proposal_methods[0].verifier_accept_k is 0"),
        (declaring(GREEDY | {"accept_tolerance": math.nan}), "proposal_methods[0].accept_tolerance is nan"),
        (declaring(GREEDY | {"accept_tolerance": True}), "proposal_methods[0].accept_tolerance is True"),
        (declaring("greedy"), "proposal_methods[0] is 'greedy'"),
        (declaring(relaxed=True), "speculators_config.relaxed is True"),
        (declaring(proposal_methods={"greedy": {}}), "speculators_config.proposal_methods is"),
        (config_of("eagle3", speculators_config=["greedy"]), "speculators_config is ['greedy']"),
    ],
)
def test_an_acceptance_rule_that_is_not_understood_is_named(tmp_path, config, problem):
    with pytest.raises(InputError) as caught:
        lossy_declaration(tmp_path, config)
    assert problem in str(caught.value)
