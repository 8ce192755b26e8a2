"""What no audit can use ends in an error that says so, and what a model excludes is counted and never a crash."""

import dataclasses
import json

import pytest
import torch
from commands import refused
from safetensors.torch import load_file, save_file

from specaudit.acceptance.scoring import score_outputs
from specaudit.audit.lossless import audit
from specaudit.audit.noise import measure_noise
from specaudit.core.errors import InputError
from specaudit.core.types import Replay, SamplingParams, Transcript
from specaudit.core.zoo import ZOO
from specaudit.engines.transcripts import to_line, write
from specaudit.models.tabular import TabularModel

PLAIN, GREEDY = SamplingParams(seed=20), SamplingParams(temperature=0)
SETTINGS = {
    "plain": PLAIN,
    "truncated": SamplingParams(temperature=0.8, top_k=3, top_p=0.9, min_p=0.02),
    "penalised": SamplingParams(temperature=0.9, repetition_penalty=1.3),
    "greedy": GREEDY,
}
settings = pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS)
values = pytest.mark.parametrize("value", [float("nan"), float("inf")])


def spoiled(model, value, token=1):
    """The same model, one of whose logits after ``token`` is ``value``."""
    logits = model.logits.clone()
    logits[token, 2] = value
    return TabularModel(logits, f"spoiled {model.name}")


def outputs(pair, params, draft=None, **options):
    return pair.decode(draft, params, [[i % 8, 1] for i in range(6)], max_new_tokens=12, **options).transcripts


@settings
@values
def test_a_target_that_gives_no_number_is_named(tabular_pair, params, value):
    transcripts = outputs(tabular_pair, params)
    target = spoiled(tabular_pair.target, value)
    for drafter in (None, tabular_pair.drafter("draft")):
        with pytest.raises(InputError, match=r"model = 'spoiled tabular target': .*--dtype"):
            audit(target, drafter, transcripts)
    with pytest.raises(InputError, match=rf"at token \d+ of output \d the largest logit is {value}; .*--dtype"):
        list(score_outputs(target, tabular_pair.drafter("draft"), transcripts, params, 4))


@settings
@values
def test_a_draft_that_gives_no_number_is_named(tabular_pair, params, value):
    """Where the audit looks at the draft at all."""
    pair = dataclasses.replace(tabular_pair, draft=spoiled(tabular_pair.draft, value))
    transcripts = outputs(tabular_pair, params)
    if params.greedy:
        assert audit(pair.target, pair.drafter("draft"), transcripts)["verdict"] != "violated"
    else:
        with pytest.raises(InputError, match="model = 'spoiled tabular draft'"):
            audit(pair.target, pair.drafter("draft"), transcripts)


def test_a_law_of_a_draft_that_is_no_law_is_refused():
    """It would pass for a place where nothing is drafted."""
    with pytest.raises(InputError, match=r"draft = 'nan': .* at output token 1; .*--dtype"):
        Replay(probs=torch.tensor([[0.5, 0.5], [float("nan"), 0.5]]))


@settings
@values
@pytest.mark.parametrize("draft", [None, "draft"])
def test_the_decoder_stops_at_a_target_that_gives_no_number(tabular_pair, params, value, draft):
    pair = dataclasses.replace(tabular_pair, target=spoiled(tabular_pair.target, value))
    with pytest.raises(InputError, match=r"target = 'nan': it gives probabilities that are not numbers; .*--dtype"):
        outputs(pair, params, draft)


@values
def test_the_decoder_stops_at_a_draft_that_gives_no_number(tabular_pair, value):
    """A greedy draft's guesses are verified all the same, so there it only drafts badly."""
    pair = dataclasses.replace(tabular_pair, draft=spoiled(tabular_pair.draft, value))
    with pytest.raises(InputError, match="draft = 'nan': it gives probabilities that are not numbers"):
        outputs(pair, PLAIN, "draft")
    drafted, alone = (outputs(pair, GREEDY, draft) for draft in ("draft", None))
    assert [t.output_ids for t in drafted] == [t.output_ids for t in alone]


def test_noise_that_cannot_be_measured_is_no_noise(tabular_pair, monkeypatch):
    """Numbers in one shape and none in another."""
    transcripts = outputs(tabular_pair, PLAIN)
    target = tabular_pair.target
    monkeypatch.setattr(target, "score_full", spoiled(target, float("nan")).score_full)
    with pytest.raises(InputError, match="model = 'tabular target': gives logits that are not numbers"):
        measure_noise(target, transcripts, PLAIN)


def test_excluded_tokens_leave_a_gap_without_noise():
    """One token is possible at each context: the gap to the next is infinite in every shape."""
    target = TabularModel(torch.full((3, 3), -torch.inf).fill_diagonal_(0.0).roll(1, 1))
    assert measure_noise(target, [Transcript((0,), (1, 2, 0, 1), PLAIN)], PLAIN).margin == 0.0


@settings
@pytest.mark.parametrize("draft", [None, "draft", "prompt-lookup"])
def test_tokens_that_the_target_excludes_are_counted(tabular_pair, params, draft):
    """One of them, after which the context is another, and then nothing else."""
    never = tabular_pair.target.logits.clone()
    never[:, 3] = -torch.inf
    pair = dataclasses.replace(tabular_pair, target=TabularModel(never, "never 3"))
    one = outputs(pair, params, draft)
    one[2] = dataclasses.replace(one[2], output_ids=(*one[2].output_ids[:4], 3, *one[2].output_ids[5:]))
    seeded = [dataclasses.replace(params, seed=1 + n) for n in range(4)]
    for transcripts, count in ((one, 1), ([Transcript((1,), (3,) * 5, own) for own in seeded], 20)):
        result = audit(pair.target, pair.drafter(draft), transcripts)
        found = result["greedy"]["defects"] if params.greedy else result["impossible_tokens"]
        assert found == count if params is PLAIN else found >= count
        assert result["verdict"] == "violated"
        json.dumps(result["cause"], allow_nan=False)


def test_a_prompt_without_an_output_is_no_evidence(tabular_pair):
    with pytest.raises(InputError, match="transcripts = 2: hold no output token; give outputs of"):
        audit(tabular_pair.target, None, [Transcript((1,), (), PLAIN)] * 2)


def test_settings_that_differ_are_named(tabular_pair):
    mixed = [Transcript((1,), (2,), SamplingParams(temperature=t, top_k=k)) for t, k in ((0.5, 3), (1.0, 3), (0.5, 3))]
    with pytest.raises(InputError, match=r"transcripts = \{'temperature': \[0.5, 1.0\]\}: were made .*, 2 settings"):
        audit(tabular_pair.target, None, mixed)


# On the command line: one line, exit code 2, nothing written


@pytest.fixture
def transcripts(zoo_pair, tmp_path):
    prompts = [list(prompt) for prompt in zoo_pair.prompts]
    made = zoo_pair.decode(None, SamplingParams(temperature=0.8), prompts, max_new_tokens=6).transcripts
    write(tmp_path / "transcripts.jsonl", made)
    return made


def rewritten(folder, transcripts, index, **fields):
    """Another file in which some fields of one line are others."""
    rows = [json.loads(to_line(one)) for one in transcripts]
    rows[index] |= fields
    (folder / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_transcripts_that_cannot_be_audited(tmp_path, transcripts):
    audited = ("audit", "--target", "zoo:tiny", "--out", tmp_path / "audit.json", "--transcripts")
    for fields, said in [
        ({"output_ids": [1, 2048]}, "transcripts = 2048: a token id is outside the target's vocabulary of 2048"),
        ({"prompt_ids": []}, "has no token to condition on"),
        ({"sampling": {"top_p": 0.9}}, "has a wrong field (sampling must be an object with the temperature"),
        ({"sampling": {"temperature": 0.7}}, "transcripts = {'temperature': [0.7, 0.8]}: were made under different"),
    ]:
        rewritten(tmp_path, transcripts, 2, **fields)
        refused(tmp_path, (*audited, tmp_path / "other.jsonl"), said)
    write(tmp_path / "other.jsonl", [dataclasses.replace(one, output_ids=()) for one in transcripts])
    refused(tmp_path, (*audited, tmp_path / "other.jsonl"), "hold no output token")


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_model_that_is_spoiled_where_no_look_at_loading_sees_it(tmp_path, transcripts, role):
    """One token's embedding. Read from transcripts, and in the own decoder."""
    model = tmp_path / "model"
    model.mkdir()
    for file in (ZOO / "tiny" / role).iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}), encoding="utf-8")
    weights = load_file(model / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.embed_tokens.weight"][transcripts[0].prompt_ids[2]] = float("nan")
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    (tmp_path / "prompts.txt").write_text("def main():\n", encoding="utf-8")
    pair = {"target": "zoo:tiny", "draft": "zoo:tiny", role: model}
    audited = ("audit", "--target", pair["target"], "--draft", pair["draft"], "--out", tmp_path / "audit.json")
    refused(tmp_path, (*audited, "--transcripts", tmp_path / "transcripts.jsonl"), str(model), "--dtype float32")
    decoded = (*audited, "--dataset", tmp_path / "prompts.txt", "--max-new-tokens", 4)
    refused(tmp_path, decoded, f"{role} = 'nan': it gives probabilities that are not numbers")
