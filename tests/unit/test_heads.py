"""Medusa and EAGLE heads: the published formats, their arithmetic, and what is refused."""

import itertools
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from specaudit.core.errors import InputError
from specaudit.core.tree import RankedTree, branching
from specaudit.drafters import eagle_checkpoint, medusa_heads
from specaudit.drafters.eagle_checkpoint import eagle_config, load_eagle, save_eagle
from specaudit.drafters.eagle_head import EagleHead, EagleShape
from specaudit.drafters.medusa_heads import MedusaHeads, load_medusa, save_medusa, searched_tree
from specaudit.drafters.membership import accepted_chains
from specaudit.models.kv_cache import RowCache

HIDDEN, VOCABULARY = 16, 24
FIELDS = {
    "hidden_size": HIDDEN, "intermediate_size": 20, "num_attention_heads": 4, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 64,
}  # fmt: skip


class Target:
    """What a loader asks of a target."""

    hidden_size, vocabulary, layer_count = HIDDEN, VOCABULARY, 8


def written(folder, weights, config, stem="model", ending=".safetensors"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if ending == ".safetensors":
        save_file({key: value.contiguous() for key, value in weights.items()}, folder / f"{stem}{ending}")
    else:
        torch.save(weights, folder / f"{stem}{ending}")
    return folder


def rand(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def original_medusa(heads=2, layers=1, prefix=""):
    weights = {}
    for head in range(heads):
        for layer in range(layers):
            weights[f"{prefix}{head}.{layer}.linear.weight"] = rand(HIDDEN, HIDDEN) + head
            weights[f"{prefix}{head}.{layer}.linear.bias"] = rand(HIDDEN)
        weights[f"{prefix}{head}.{layers}.weight"] = rand(VOCABULARY, HIDDEN) + head
    return weights


def vllm_medusa(heads=2, layers=1, prefix="", reduced=None):
    weights = {}
    for head in range(heads):
        for layer in range(layers):
            weights[f"{prefix}blocks.{head}.layers.{layer}.weight"] = rand(HIDDEN, HIDDEN) + head
        weights[f"{prefix}lm_heads.{head}.weight"] = rand(reduced or VOCABULARY, HIDDEN) + head
    if reduced:
        weights[f"{prefix}token_map"] = torch.arange(reduced) * 2
    return weights


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
@pytest.mark.parametrize(("stem", "ending"), [("medusa_lm_head", ".pt"), ("medusa_lm_head", ".safetensors")])
@pytest.mark.parametrize("layers", [1, 2])
def test_medusas_original_format(tmp_path, prefix, stem, ending, layers):
    weights = original_medusa(3, layers, prefix)
    config = {"medusa_num_heads": 5, "medusa_num_layers": 1, "base_model_name_or_path": "x"}
    heads, read = load_medusa(written(tmp_path, weights, config, stem, ending), HIDDEN, VOCABULARY)
    assert (heads.heads, heads.layers, heads.bias) == (3, layers, True)  # counted, whatever the configuration says
    assert read["base_model_name_or_path"] == "x"
    state = x = rand(5, HIDDEN)
    for layer in range(layers):
        weight, bias = (weights[f"{prefix}1.{layer}.linear.{name}"] for name in ("weight", "bias"))
        state = state + torch.nn.functional.silu(state @ weight.T + bias)
    torch.testing.assert_close(heads(x)[:, 1], state @ weights[f"{prefix}1.{layers}.weight"].T)


@pytest.mark.parametrize("prefix", ["", "medusa_heads."])
@pytest.mark.parametrize("reduced", [None, 10])
def test_medusa_as_vllm_has_it(tmp_path, prefix, reduced):
    heads, _ = load_medusa(written(tmp_path, vllm_medusa(2, 1, prefix, reduced), {}), HIDDEN, VOCABULARY)
    assert (heads.heads, heads.bias) == (2, False)
    assert heads(rand(3, HIDDEN)).shape == (3, 2, reduced or VOCABULARY)
    assert heads.ids(torch.tensor([3])).tolist() == [6 if reduced else 3]


def test_medusa_heads_are_read_back_as_they_were_written(tmp_path):
    heads = MedusaHeads(HIDDEN, VOCABULARY, 2, 1, token_map=torch.arange(7) * 3).to(torch.bfloat16)
    torch.nn.init.normal_(heads.blocks[1][0].weight)
    save_medusa(heads, tmp_path / "head", {"head_accuracies": [[0.5]]})
    again, config = load_medusa(tmp_path / "head", HIDDEN, VOCABULARY)
    assert config["head_accuracies"] == [[0.5]]
    for key, value in heads.state_dict().items():
        assert torch.equal(again.state_dict()[key].to(value), value), key


def broken(weights, how):
    key = next(iter(weights))
    if how == "missing":
        return {k: v for k, v in weights.items() if k != key}, key
    if how == "unknown":
        return {**weights, "something.else": rand(2)}, "something.else"
    return {**weights, key: rand(3, 3)}, key


@pytest.mark.parametrize("how", ["missing", "unknown", "misshaped"])
def test_a_medusa_weight_that_is_wrong_is_named(tmp_path, how):
    weights, key = broken(vllm_medusa(), how)
    with pytest.raises(InputError) as caught:
        load_medusa(written(tmp_path, weights, {}), HIDDEN, VOCABULARY)
    assert medusa_heads._renamed(key, tmp_path) in str(caught.value)
    assert {"missing": "missing", "unknown": "unknown", "misshaped": "shape [3, 3]"}[how] in str(caught.value)


@pytest.mark.parametrize(
    ("prepare", "problem"),
    [
        (lambda folder: folder.mkdir(), "config.json cannot be read"),
        (lambda folder: written(folder, {"fc.weight": rand(2)}, {}), "holds no Medusa head"),
        (lambda folder: written(folder, {"x": rand(2)}, {}, stem="other"), "has no weights under the names"),
    ],
)
def test_a_folder_that_holds_no_head_is_refused(tmp_path, prepare, problem):
    prepare(tmp_path / "head")
    with pytest.raises(InputError, match=problem):
        load_medusa(tmp_path / "head", HIDDEN, VOCABULARY)


def test_a_token_map_beyond_the_vocabulary_is_refused(tmp_path):
    weights = vllm_medusa(reduced=10) | {"token_map": torch.arange(10) * 3}
    with pytest.raises(InputError, match="token_map"):
        load_medusa(written(tmp_path, weights, {}), HIDDEN, VOCABULARY)


def eagle_shape(generation=1, layers=1, **changed):
    return EagleShape(
        config=eagle_config(FIELDS, VOCABULARY), generation=generation, target_hidden=HIDDEN, vocabulary=VOCABULARY,
        outputs=changed.pop("outputs", VOCABULARY), layers=layers, **changed,
    )  # fmt: skip


def eagle(generation=1, layers=1, **changed):
    torch.manual_seed(generation)
    head = EagleHead(eagle_shape(generation, layers, **changed)).eval()
    if generation == 3:
        head.d2t.copy_(torch.arange(head.shape.outputs))  # id i stands for 2 i
    return head


EAGLES = {
    "eagle 1": (eagle(), {}, ".safetensors"),
    "eagle 1, no bias": (eagle(fc_bias=False), {"bias": False}, ".bin"),
    "eagle 1, own embedding, two layers": (eagle(layers=2, own_embedding=True), {}, ".bin"),
    "eagle 3": (eagle(3, outputs=10), {}, ".safetensors"),
    "eagle 3, residual after the norm": (
        eagle(3, outputs=12, norm_before_residual=True), {"norm_before_residual": True}, ".bin",
    ),
}  # fmt: skip


def published(head):
    weights = dict(head.state_dict())
    if head.shape.generation == 3:
        weights["t2d"] = torch.isin(torch.arange(VOCABULARY), head.ids(torch.arange(head.shape.outputs)))
        weights = {key.replace("layers.0.", "midlayer."): value for key, value in weights.items()}
    return weights


@pytest.mark.parametrize("name", EAGLES)
def test_eagles_published_formats(tmp_path, name):
    head, extra, ending = EAGLES[name]
    stem = "model" if ending == ".safetensors" else "pytorch_model"
    folder = written(tmp_path, published(head), {**FIELDS, **extra}, stem, ending)
    again, layers = load_eagle(folder, Target())
    assert again.shape == head.shape or again.shape.config.to_dict() == head.shape.config.to_dict()
    assert layers == ((8,) if head.shape.generation == 1 else (2, 4, 5))
    token, given = rand(2, 5, HIDDEN), head.feature(rand(2, 5, HIDDEN * (3 if head.shape.generation == 3 else 1)))
    for mine, theirs in zip(head.unroll(token, given, 2), again.unroll(token, given, 2), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_eagle_3_reads_the_layers_that_its_configuration_names(tmp_path):
    head, _, _ = EAGLES["eagle 3"]
    name = "eagle_aux_hidden_state_layer_ids"
    for fields in ({name: [1, 3, 6]}, {"eagle_config": {name: [1, 3, 6]}}):
        assert load_eagle(written(tmp_path, published(head), {**FIELDS, **fields}), Target())[1] == (1, 3, 6)
    with pytest.raises(InputError, match=name):
        load_eagle(written(tmp_path, published(head), {**FIELDS, name: [1, 99, 2]}), Target())


def test_an_absent_rope_theta_is_ten_thousand():
    assert eagle_config(FIELDS, VOCABULARY).rope_parameters["rope_theta"] == 10000.0
    assert eagle_config({**FIELDS, "rope_theta": 5e5}, VOCABULARY).rope_parameters["rope_theta"] == 5e5


@pytest.mark.parametrize("name", ["eagle 1", "eagle 3"])
@pytest.mark.parametrize("how", ["missing", "unknown", "misshaped"])
def test_an_eagle_weight_that_is_wrong_is_named(tmp_path, name, how):
    weights, key = broken(published(EAGLES[name][0]), how)
    with pytest.raises(InputError) as caught:
        load_eagle(written(tmp_path, weights, FIELDS), Target())
    assert eagle_checkpoint._renamed(key) in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"d2t": torch.full((10,), 99)}, "d2t"),
        ({"d2t": torch.arange(10) * -1}, "d2t"),
        ({"t2d": torch.ones(VOCABULARY)}, "t2d"),
    ],
)
def test_vocabulary_maps_that_contradict_themselves_are_refused(tmp_path, changed, problem):
    with pytest.raises(InputError, match=problem):
        load_eagle(written(tmp_path, published(EAGLES["eagle 3"][0]) | changed, FIELDS), Target())


def test_a_head_of_another_width_is_refused(tmp_path):
    with pytest.raises(InputError, match="hidden_size is 32"):
        load_eagle(written(tmp_path, published(EAGLES["eagle 1"][0]), {**FIELDS, "hidden_size": 32}), Target())


@pytest.mark.parametrize("name", ["eagle 1", "eagle 3"])
def test_an_eagle_head_is_read_back_as_it_was_written(tmp_path, name):
    head = EAGLES[name][0]
    save_eagle(head, tmp_path / "head", {"provenance": {}})
    assert load_file(tmp_path / "head" / "model.safetensors").keys() == published(head).keys()
    again, _ = load_eagle(tmp_path / "head", Target())
    for key, value in head.state_dict().items():
        expected = value.to(torch.bfloat16).float() if value.is_floating_point() else value
        assert torch.equal(again.state_dict()[key], expected), key


@pytest.mark.parametrize("generation", [1, 3])
@pytest.mark.parametrize("layers", [1, 2])
@torch.inference_mode()
def test_unrolling_gives_what_a_chain_predicts_step_by_step(generation, layers):
    """From every position on, a chain that is fed the same tokens through the cache."""
    head = eagle(generation, layers).double()
    length, depth = 7, 3
    token = rand(1, length, HIDDEN).double()
    states = head.feature(rand(1, length, HIDDEN * (3 if generation == 3 else 1)).double())
    unrolled = head.unroll(token, states, depth)
    for start in range(length):
        rows = RowCache(layers, 1, 16, "cpu")
        rows.prepare(start + 1)
        feature = head(token[:, : start + 1], states[:, : start + 1], rows)[:, -1:]
        rows.commit([start + 1])
        torch.testing.assert_close(unrolled[0][:, start : start + 1], feature)
        for step in range(1, min(depth, length - start)):
            rows.prepare(1)
            feature = head(token[:, start + step : start + step + 1], feature, rows)
            rows.commit([1])
            torch.testing.assert_close(unrolled[step][:, start + step : start + step + 1], feature)


def expected_accepted(tree, accuracies):
    return sum(
        torch.tensor([accuracies[depth][rank] for depth, rank in enumerate(path)]).prod().item() for path in tree
    )


def test_the_searched_tree_is_the_best_of_all():
    accuracies = [[0.5, 0.3, 0.1], [0.6, 0.1, 0.05]]
    paths = [(a,) for a in range(3)] + [(a, b) for a in range(3) for b in range(3)]
    for nodes in range(1, 7):
        closed = (
            tree
            for tree in itertools.combinations(paths, nodes)
            if all(len(path) == 1 or path[:1] in tree for path in tree)
        )
        best = max(expected_accepted(tree, accuracies) for tree in closed)
        found = searched_tree(accuracies, nodes)
        assert expected_accepted(found, accuracies) == pytest.approx(best)
        RankedTree(found)  # ordered, and closed under prefixes


def test_shapes_by_their_widths():
    assert branching("2,1").paths == [(0,), (1,), (0, 0), (1, 0)]
    assert branching("2,2").cut(1).paths == [(0,), (1,)]
    assert [branching("3,2").within(depth) for depth in (0, 1, 2, 5)] == [0, 3, 9, 9]
    for shape in ("", "0", "2,x", "-1", "100,100"):
        with pytest.raises(InputError, match="--tree"):
            branching(shape)


def test_membership_follows_the_output_down_the_tree():
    tree = branching("2,1")
    ranked = torch.tensor([[[5, 6], [7, 8]], [[9, 9], [7, 7]], [[1, 3], [2, 2]]])
    chains = accepted_chains(tree, ranked, torch.tensor([6, 7, 3]), 3)
    assert chains.tolist() == [[6, 7, -1], [-2, -2, -1], [3, -2, -1]]
