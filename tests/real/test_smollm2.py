"""SmolLM2-135M-Instruct from its GGUF file, on the real workloads."""

import contextlib
import io
import json
import sys
from dataclasses import dataclass

import pytest
import torch
from transformers import GenerationConfig

import specaudit.cli as cli
from specaudit.acceptance.pair import decode_prompts, encode, limits_of, load_pair
from specaudit.acceptance.workloads import load_workload
from specaudit.audit import greedy
from specaudit.audit.noise import measure_noise
from specaudit.cli import setting
from specaudit.core.types import SamplingParams, Transcript

GREEDY = SamplingParams(temperature=0)
TOKENS = 64
WORKLOADS = {
    "spec_bench.jsonl": 480,
    "humaneval.jsonl.gz": 164,
    "gsm8k_test.jsonl": 1319,
    "mt_bench.jsonl": 80,
    "mgsm_de.tsv": 250,
    "mgsm_ja.tsv": 250,
    "mgsm_zh.tsv": 250,
}


def specaudit(*argv):
    """Exit code and standard output of a command, run in this process."""
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(sys, "argv", ["specaudit", *map(str, argv)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return ended.value.code, out.getvalue()


# Greedy, in float32: the model is loaded once


@dataclass(frozen=True)
class GreedyRuns:
    """Twenty short word problems, and how to continue them."""

    pair: object
    prompts: object

    def decode(self, *, k, batch_size):
        limits = limits_of(self.pair.target, TOKENS)
        return decode_prompts(self.pair, self.prompts, GREEDY, limits, k=k, batch_size=batch_size)

    def assert_equal_or_tied(self, transcripts, expected):
        """A mismatch must lie within the machine's own noise, and is printed."""
        if [t.output_ids for t in transcripts] == [t.output_ids for t in expected]:
            return
        noise = measure_noise(self.pair.target, expected, GREEDY)
        defects, details = greedy.check(self.pair.target, transcripts, GREEDY, noise)
        print(f"greedy outputs differ from the baseline's: {details}")
        assert defects == 0, details


@pytest.fixture(scope="module")
def runs(smollm2_gguf, shared_data):
    pair = load_pair(str(smollm2_gguf), "prompt-lookup", dtype="float32", device="cpu")
    workload = load_workload(str(shared_data / "workloads" / "gsm8k_test.jsonl"))
    shortest = sorted(workload.prompts, key=lambda prompt: (len(prompt.text), prompt.index))[:20]
    few = type(workload)(workload.name, workload.fingerprint, tuple(shortest), {})
    return GreedyRuns(pair, encode(few, pair.target, chat=None))


@pytest.fixture(scope="module")
def alone(runs):
    """The baseline, a prompt at a time."""
    return runs.decode(k=0, batch_size=1)


def test_greedy_output_of_a_prompt_is_the_baselines(runs, alone):
    drafted = runs.decode(k=4, batch_size=1)
    runs.assert_equal_or_tied(drafted, alone)
    assert any(any(transcript.rounds) for transcript in drafted)
    assert sum(len(t.rounds) for t in drafted) < sum(len(t.rounds) for t in alone)


def test_greedy_output_in_batches_is_the_baselines(runs, alone):
    baseline, drafted = (runs.decode(k=k, batch_size=8) for k in (0, 4))
    assert len(drafted) == 20
    runs.assert_equal_or_tied(drafted, baseline)
    runs.assert_equal_or_tied(baseline, alone)


def test_greedy_output_is_what_transformers_generates(runs, alone):
    model, count = runs.pair.target, 32
    config = GenerationConfig(
        max_new_tokens=count, do_sample=False, eos_token_id=sorted(model.end_ids), pad_token_id=min(model.end_ids)
    )
    generated, expected = [], []
    for transcript in alone[:3]:
        ids = torch.tensor([transcript.prompt_ids])
        # The mask says that the prompt is not padded, where its tokens and the padding share an id.
        full = model.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        generated.append(Transcript(transcript.prompt_ids, tuple(full[0, ids.shape[1] :].tolist()), GREEDY))
        expected.append(Transcript(transcript.prompt_ids, transcript.output_ids[:count], GREEDY))
    assert [len(t.output_ids) for t in generated] == [len(t.output_ids) for t in expected]
    runs.assert_equal_or_tied(generated, expected)


# Everything else, in bfloat16: loaded once, by a command


@pytest.fixture(scope="module")
def model(smollm2_gguf):
    """Options of a command on the model; the first one loads it, and every other is handed what that one loaded."""
    named = ("--target", smollm2_gguf, "--draft", "prompt-lookup", "--dtype", "bfloat16", "--device", "cpu")
    load, loaded = setting.load, []

    def once(*arguments):
        if not loaded:
            loaded.append(load(*arguments))
        return loaded[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setting, "load", once)
        code, text = specaudit("generate", *named, "--prompt", "What is the capital of France?", "--max-new-tokens", 8)
        assert code == 0
        assert "Paris" in text
        yield named, loaded[0]


def test_the_loaded_model_is_what_the_file_says(model):
    target = model[1].target
    assert (target.vocabulary, target.max_context, target.layer_count) == (49152, 8192, 30)
    assert target.dtype_name == "bfloat16"
    assert target.tokenizer.chat_template
    assert target.content.startswith("sha256:")
    assert {target.tokenizer.decode([token]) for token in target.end_ids} == {"<|im_end|>"}


def test_sampled_output_is_not_called_violated(model, shared_data):
    few = ("--limit", 4, "--max-prompt-tokens", 200, "--max-new-tokens", 48, "--batch-size", 4)
    file = shared_data / "workloads" / "gsm8k_test.jsonl"
    code, text = specaudit("audit", *model[0], "--dataset", file, *few, "--temperature", 0.8, "--json")
    result = json.loads(text)
    assert (code, result["verdict"]) in {(0, "no_violation_found"), (3, "inconclusive")}, result
    assert result["transcripts"] == 4
    assert result["provenance"]["draft"] == "prompt-lookup:3"


def options_of(name):
    return {"prompt_column": "0"} if name.endswith(".tsv") else {}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_profiled_as_it_is(model, shared_data, tmp_path, name):
    named, pair = model
    file, columns = shared_data / "workloads" / name, options_of(name)
    every = load_workload(str(file), **columns)
    assert (len(every.prompts), every.skipped, every.name) == (WORKLOADS[name], {}, name)
    three = encode(load_workload(str(file), limit=3, **columns), pair.target, chat=None)
    assert len(three.ids) == 3
    assert all(len(set(ids)) > 10 for ids in three.ids)

    # A seed that draws a short prompt.
    drawn = {seed: load_workload(str(file), limit=1, seed=seed, **columns).prompts[0] for seed in range(6)}
    seed = min(drawn, key=lambda seed: len(drawn[seed].text.encode()))
    column = ("--prompt-column", 0) if columns else ()
    few = ("--limit", 1, "--seed", seed, "--max-new-tokens", 4, "--json")
    code, text = specaudit("profile", *named, "--dataset", file, *column, *few, "--out", tmp_path / "profile")
    assert code == 0
    profile = json.loads(text)
    assert (profile["prompts"], profile["provenance"]["dataset"]) == (1, name)
    assert 1 <= profile["tokens"] <= 4
    assert 1 <= profile["tokens_per_round"]["1"] <= 2
    assert list(profile["by_category"]) == ([drawn[seed].category] if drawn[seed].category else [])
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == ["profile.json", "tokens.parquet"]
