"""Medusa and EAGLE through the one loop: lossless in chains and trees, and predicted by the walk as they decode."""

import collections
import dataclasses
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from specaudit.acceptance.pair import load_pair
from specaudit.acceptance.profile import from_tokens, token_table
from specaudit.acceptance.scoring import score_outputs
from specaudit.audit.lossless import audit
from specaudit.core.errors import InputError
from specaudit.core.types import Limits, SamplingParams
from specaudit.decode import decode
from specaudit.drafters import create_drafter
from specaudit.drafters.eagle_checkpoint import eagle_config, save_eagle
from specaudit.drafters.eagle_head import EagleHead, EagleShape
from specaudit.drafters.medusa_heads import MedusaHeads, save_medusa
from specaudit.drafters.speculators_checkpoint import NAMES, LossyDeclarationWarning
from specaudit.models.target import ModelTarget
from specaudit.verify import lossless_verifier

GREEDY = SamplingParams(temperature=0)
SETTINGS = {
    "truncated": SamplingParams(temperature=0.8, top_p=0.9, seed=5),
    "penalised": SamplingParams(temperature=0.8, repetition_penalty=1.2, frequency_penalty=0.1, seed=6),
}
DRAFTS = {
    "medusa": ("medusa", None),
    "medusa, tree": ("medusa", "3,2,1"),
    "medusa, searched tree": ("medusa", "auto"),
    "eagle": ("eagle", None),
    "eagle, tree": ("eagle", "3,2,1"),
    "eagle, dynamic tree": ("eagle", "auto:3,8"),
    "speculators, eagle": ("eagle", None),
    "speculators, eagle3": ("eagle", None),
    "speculators, eagle3, tree": ("eagle", "3,2,1"),
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory, exact_llama_pair):
    """Untrained heads near enough to the target's own that some of what they propose is accepted."""
    target = exact_llama_pair.target
    hidden, vocabulary = target.hidden_size, target.vocabulary
    root = tmp_path_factory.mktemp("heads")
    torch.manual_seed(0)
    heads = MedusaHeads(hidden, vocabulary, 3, 1)
    for head in heads.lm_heads:
        head.weight.data.copy_(target.model.get_output_embeddings().weight)
    save_medusa(heads, root / "medusa", {"head_accuracies": [[0.5, 0.3, 0.1], [0.4, 0.2, 0.1], [0.3, 0.2, 0.1]]})
    fields = {
        "hidden_size": hidden, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 64,
    }  # fmt: skip
    shape = EagleShape(eagle_config(fields, vocabulary), 1, hidden, vocabulary, vocabulary)
    head = EagleHead(shape)
    with torch.no_grad():  # the token's own embedding, which the residual stream of a random llama stays close to
        head.fc.weight.copy_(torch.cat([torch.eye(hidden), 0.01 * torch.randn(hidden, hidden)], 1))
        head.fc.bias.zero_()
        for name, weight in head.layers.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight.mul_(0.2)
    save_eagle(head, root / "eagle", {})
    return root


@pytest.fixture(scope="session")
def speculators_folders(tmp_path_factory, exact_llama_pair):
    """Untrained heads in the speculators format, whose output heads know the few tokens that the target likes best."""
    target, root = exact_llama_pair.target, tmp_path_factory.mktemp("speculators")
    hidden, vocabulary = target.hidden_size, target.vocabulary
    fields = {
        "hidden_size": hidden, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 64,
    }  # fmt: skip
    shape = EagleShape(eagle_config(fields, vocabulary), 1, hidden, vocabulary, vocabulary, fc_bias=False)
    torch.manual_seed(1)
    outputs = ids(run(exact_llama_pair, None, GREEDY))
    frequent = collections.Counter(token for output in outputs for token in output).most_common(6)
    known = torch.tensor(sorted(token for token, _ in frequent))
    first = EagleHead(dataclasses.replace(shape, layernorms=True, own_head=True))
    first.lm_head.weight.data[~torch.isin(torch.arange(vocabulary), known)] = 0.0
    save_speculators(first, root / "eagle", fields, layernorms=True)
    options = {"norm_before_residual": True, "fc_norm": True, "norm_output": True}
    third = EagleHead(dataclasses.replace(shape, generation=3, states=2, outputs=len(known), **options))
    third.d2t.copy_(known - torch.arange(len(known)))
    save_speculators(third, root / "eagle3", fields, eagle_aux_hidden_state_layer_ids=[0, 1], **options)
    return root


def save_speculators(head, folder, layer, k=1, **options):
    """A head in the speculators format, its norms moved away from one."""
    folder.mkdir()
    weights = {}
    for key, value in head.state_dict().items():
        for published, own in NAMES.items() if head.shape.generation == 1 else ():
            key = published + key.removeprefix(own) if key.startswith(own) else key
        weights[key] = 1 + 0.2 * torch.randn(len(value)) if "norm" in key else value.contiguous()
    save_file(weights, folder / "model.safetensors")
    kind = {1: "eagle", 3: "eagle3"}[head.shape.generation]
    methods = [{"proposal_type": "greedy", "speculative_tokens": 4, "verifier_accept_k": k, "accept_tolerance": 0.0}]
    config = {
        "speculators_model_type": kind, "transformer_layer_config": {"model_type": "llama", **layer}, **options,
        "speculators_config": {"algorithm": kind, "proposal_methods": methods},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture
def drafter(request, exact_llama_pair):
    kind, tree = DRAFTS[request.param]
    if request.param.startswith("speculators"):
        folder = request.getfixturevalue("speculators_folders") / request.param.split(", ")[1]
    else:
        folder = request.getfixturevalue("folders") / kind
    return create_drafter(f"{kind}:{folder}", exact_llama_pair.target, lambda _: None, tree)


def run(pair, drafter, params, prompts=None, *, k=4, tokens=20, end_ids=(), seeds=None):
    prompts = pair.prompts if prompts is None else prompts
    limits = Limits(tokens, frozenset(end_ids))
    return decode(
        ModelTarget(pair.target), drafter, lossless_verifier(params), prompts, params, limits, k=k, seeds=seeds
    )


def ids(decoded):
    return [transcript.output_ids for transcript in decoded.transcripts]


every_draft = pytest.mark.parametrize("drafter", DRAFTS, indirect=True)


@every_draft
@pytest.mark.parametrize("k", [1, 2, 4])
def test_greedy_ids_are_the_baselines(exact_llama_pair, drafter, k):
    expected = ids(run(exact_llama_pair, None, GREEDY))
    assert ids(run(exact_llama_pair, drafter, GREEDY, k=k)) == expected
    alone = [ids(run(exact_llama_pair, drafter, GREEDY, [prompt], k=k))[0] for prompt in exact_llama_pair.prompts]
    assert alone == expected


@every_draft
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_row_does_not_depend_on_its_batch(exact_llama_pair, drafter, setting):
    together = run(exact_llama_pair, drafter, SETTINGS[setting])
    for prompt, transcript in zip(exact_llama_pair.prompts, together.transcripts, strict=True):
        alone = run(exact_llama_pair, drafter, SETTINGS[setting], [prompt], seeds=[transcript.sampling.seed])
        assert alone.transcripts[0].output_ids == transcript.output_ids


@every_draft
def test_penalties_hold_in_every_branch(exact_llama_pair, drafter):
    params = SamplingParams(temperature=0, repetition_penalty=1.3, presence_penalty=0.2)
    assert ids(run(exact_llama_pair, drafter, params)) == ids(run(exact_llama_pair, None, params))


@every_draft
def test_an_end_token_ends_its_row_inside_a_branch(exact_llama_pair, drafter):
    free = ids(run(exact_llama_pair, None, GREEDY, tokens=30))
    ends = {free[0][5], free[1][9]}
    expected = run(exact_llama_pair, None, GREEDY, tokens=30, end_ids=ends)
    found = run(exact_llama_pair, drafter, GREEDY, tokens=30, end_ids=ends)
    assert ids(found) == ids(expected)
    assert [t.finish_reason for t in found.transcripts] == [t.finish_reason for t in expected.transcripts]


@every_draft
@pytest.mark.parametrize("k", [2, 3])
def test_the_walk_counts_a_greedy_decoders_own_rounds(exact_llama_pair, drafter, k):
    """At temperature zero acceptance is certain or impossible, so the walk's rounds are the decoder's to the last."""
    tokens = 20
    decoded = run(exact_llama_pair, drafter, GREEDY, k=k, tokens=tokens)
    assert sum(sum(t.rounds) for t in decoded.transcripts) > 0
    scored = list(score_outputs(exact_llama_pair.target, drafter, decoded.transcripts, GREEDY, k))
    profile = from_tokens(token_table(scored, decoded.transcripts, tokens), k)
    rounds = [len(transcript.rounds) for transcript in decoded.transcripts]
    assert profile.walk.rounds[:, k - 1] == pytest.approx(np.array(rounds, dtype=float))


@every_draft
def test_an_audit_of_a_lossless_head_finds_no_violation(exact_llama_pair, drafter):
    """A tree's walk looks at the output's own token, which no direction of an audit may do."""
    params = SamplingParams(temperature=0.8, top_p=0.9, seed=11)
    prompts = [[i, i + 1, i + 2] for i in range(40)]
    decoded = run(exact_llama_pair, drafter, params, prompts, tokens=40)
    result = audit(exact_llama_pair.target, drafter, decoded.transcripts, false_alarm_rate=1e-6)
    assert result["verdict"] in ("no_violation_found", "inconclusive"), result["tests"]


def test_a_tree_is_refused_where_there_is_none_to_choose(exact_llama_pair, folders):
    medusa, eagle = (f"{kind}:{folders / kind}" for kind in ("medusa", "eagle"))
    for name, tree in (
        ("prompt-lookup", "2,1"),
        (medusa, "1,1,1,1"),
        (eagle, "auto:0,3"),
        (eagle, "auto:2,3,4,5"),
        (eagle, "0,1"),
    ):
        with pytest.raises(InputError, match="--tree"):
            create_drafter(name, exact_llama_pair.target, lambda _: None, tree)


@pytest.mark.parametrize("name", ["medusa:nowhere", "eagle:./nowhere", "medusa:", "eagle:zoo:none"])
def test_a_head_that_is_not_there_is_refused(exact_llama_pair, name):
    with pytest.raises(InputError, match="--draft"):
        create_drafter(name, exact_llama_pair.target, lambda _: None)


@pytest.mark.parametrize(("k", "declared"), [(1, None), (5, "verifier_accept_k = 5 in proposal method 'greedy'")])
def test_what_a_head_declares_goes_into_the_provenance(tmp_path, k, declared):
    target = load_pair("zoo:tiny", None, dtype="float32", device="cpu").target
    fields = {"hidden_size": target.hidden_size, "intermediate_size": 32, "num_attention_heads": 4}
    config = eagle_config(fields, target.vocabulary)
    shape = EagleShape(config, 1, target.hidden_size, target.vocabulary, target.vocabulary, fc_bias=False)
    save_speculators(EagleHead(shape), tmp_path / "head", fields, k=k)
    draft, options = f"eagle:{tmp_path / 'head'}", {"dtype": "float32", "device": "cpu"}
    if declared is None:
        assert load_pair("zoo:tiny", draft, **options).facts["declares_lossy"] is None
        return
    with pytest.warns(LossyDeclarationWarning, match="verifier_accept_k = 5"):
        pair = load_pair("zoo:tiny", draft, **options)
    assert pair.facts["declares_lossy"] == declared
