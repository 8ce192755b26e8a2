import dataclasses

import numpy as np
import pytest

from specaudit.audit.lossless import audit
from specaudit.core.errors import InputError
from specaudit.core.types import SamplingParams, Transcript
from specaudit.drafters import chain

PLAIN = SamplingParams(seed=20)
COLD = SamplingParams(temperature=0.6, seed=21)
TRUNCATED = SamplingParams(temperature=0.8, top_k=5, top_p=0.95, seed=22)
PENALISED = SamplingParams(temperature=0.9, repetition_penalty=1.2, presence_penalty=0.2, seed=23)
GREEDY = SamplingParams(temperature=0)
SETTINGS = {"plain": PLAIN, "cold": COLD, "truncated": TRUNCATED, "penalised": PENALISED, "greedy": GREEDY}


@pytest.fixture(scope="module")
def outputs(tabular_pair):
    """Some 2500 tokens of the decode loop, with a part of it broken where the test says so."""

    def made(draft, params, *, k=4, verifier=None, prompts=50, tokens=50):
        rows = np.random.default_rng(9).integers(0, 8, size=(prompts, 3)).tolist()
        decoded = tabular_pair.decode(draft, params, rows, k=k, max_new_tokens=tokens, verifier=verifier)
        return decoded.transcripts

    return made


def by_name(result):
    return {test["name"]: test for test in result["tests"]}


@pytest.mark.parametrize("params", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("draft", ["draft", "prompt-lookup"])
def test_the_own_decoder_is_not_accused(tabular_pair, outputs, draft, params):
    result = audit(tabular_pair.target, tabular_pair.drafter(draft), outputs(draft, params))
    assert result["verdict"] == "no_violation_found", result["tests"]
    assert (result["tokens"], result["transcripts"]) == (2500, 50)
    assert result["cause"] is result["inconclusive_because"] is None
    assert 0 < result["detectable_contamination"] < 0.6
    assert result["preserves_target"] is True
    assert result["noise"]["total_variation"] < 1e-9


def test_a_plain_engine_is_not_accused_without_a_drafter(tabular_pair, outputs):
    result = audit(tabular_pair.target, None, outputs(None, PLAIN))
    assert result["verdict"] == "no_violation_found"
    assert {"contamination_sharper", "contamination_flatter", "pit_lag"} <= set(by_name(result))


@pytest.mark.parametrize("name", ["llama_pair", "zoo_pair"])
def test_a_real_model_is_not_accused(name, request):
    pair = request.getfixturevalue(name)
    transcripts = pair.decode("draft", COLD, pair.prompts * 2, max_new_tokens=40).transcripts
    result = audit(pair.target, pair.drafter("draft"), transcripts)
    assert result["verdict"] == "no_violation_found", result["tests"]
    assert 0 < result["noise"]["total_variation"] < 1e-4


@pytest.mark.parametrize("fault", ["lenient", "residual from target", "argmax"])
def test_a_faulty_verifier_is_found(tabular_pair, outputs, faulty_verifiers, fault):
    transcripts = outputs("draft", PLAIN, verifier=faulty_verifiers[fault])
    result = audit(tabular_pair.target, tabular_pair.drafter("draft"), transcripts)
    assert result["verdict"] == "violated"
    assert result["preserves_target"] is False
    assert result["cause"]["text"]


def test_a_lenient_verifier_leans_towards_the_draft(tabular_pair, outputs, faulty_verifiers):
    transcripts = outputs("draft", PLAIN, verifier=faulty_verifiers["lenient"])
    result = audit(tabular_pair.target, tabular_pair.drafter("draft"), transcripts)
    assert by_name(result)["contamination_draft"]["flagged"]
    assert by_name(result)["bug_laws"]["flagged"]
    assert result["log10_e"] > 3


def test_an_argmax_draft_scored_as_sampled_is_found(tabular_pair, outputs, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(chain, "sample", lambda probs, uniforms: probs.argmax(-1))
        transcripts = outputs("draft", PLAIN)
    result = audit(tabular_pair.target, tabular_pair.drafter("draft"), transcripts)
    assert result["verdict"] == "violated"
    assert result["preserves_target"] is True  # the decoder believes so
    assert result["cause"]["name"] == "argmax_draft"


def test_a_draft_temperature_left_out_of_the_ratio_is_found(tabular_pair, outputs, monkeypatch):
    """Drafted at temperature 0.6 but weighed as if at 1."""
    at_one = dataclasses.replace(COLD, temperature=1.0)
    processed_probs, sample = chain.processed_probs, chain.sample
    with monkeypatch.context() as broken:
        broken.setattr(chain, "processed_probs", lambda logits, params: processed_probs(logits, at_one))
        broken.setattr(chain, "sample", lambda probs, uniforms: sample(probs ** (1 / 0.6), uniforms))
        transcripts = outputs("draft", COLD, prompts=200)
    result = audit(tabular_pair.target, tabular_pair.drafter("draft"), transcripts)
    assert result["verdict"] == "violated"
    assert result["cause"]["name"] == "temperature_missing_from_ratio"


@pytest.mark.parametrize(("claimed", "cause"), [(1.0, "sharper"), (0.6, "flatter")])
def test_a_wrong_temperature_is_found_without_a_drafter_and_named(tabular_pair, outputs, claimed, cause):
    made = [
        dataclasses.replace(t, sampling=SamplingParams(claimed)) for t in outputs(None, SamplingParams(0.8, seed=3))
    ]
    result = audit(tabular_pair.target, None, made)
    assert result["verdict"] == "violated"
    assert result["cause"]["name"] == cause


def test_output_of_the_draft_alone_is_found(tabular_pair):
    swapped = dataclasses.replace(tabular_pair, target=tabular_pair.draft)
    transcripts = swapped.decode(None, PLAIN, [[i % 8] for i in range(20)], max_new_tokens=20).transcripts
    result = audit(tabular_pair.target, tabular_pair.drafter("draft"), transcripts)
    assert result["verdict"] == "violated"
    assert result["cause"]["name"] == "draft_unverified"


def corrupted(transcripts, index, position, token):
    ids = list(transcripts[index].output_ids)
    ids[position] = token
    return [
        *transcripts[:index],
        dataclasses.replace(transcripts[index], output_ids=tuple(ids)),
        *transcripts[index + 1 :],
    ]


@pytest.mark.parametrize("name", ["tabular_pair", "llama_pair", "zoo_pair"])
def test_one_wrong_greedy_token_is_found_where_it_is(name, request):
    pair = request.getfixturevalue(name)
    transcripts = pair.decode("draft", GREEDY, max_new_tokens=12).transcripts
    clean = audit(pair.target, pair.drafter("draft"), transcripts)
    assert clean["verdict"] == "no_violation_found"
    assert clean["greedy"]["defects"] == 0
    wrong = (transcripts[2].output_ids[11] + 1) % pair.target.vocabulary
    result = audit(pair.target, pair.drafter("draft"), corrupted(transcripts, 2, 11, wrong))
    assert result["verdict"] == "violated"
    assert result["cause"]["name"] == "greedy"
    assert result["greedy"]["defects"] == 1
    defect = result["greedy"]["divergences"][0]
    assert (defect["transcript"], defect["position"], defect["emitted"]) == (2, 11, wrong)
    assert defect["argmax"] == transcripts[2].output_ids[11]
    assert defect["margin"] > result["greedy"]["noise_margin"]


def test_an_impossible_token_is_found_by_itself(tabular_pair, outputs):
    params = SamplingParams(top_k=3, seed=8)
    transcripts = outputs("draft", params, prompts=10, tokens=10)
    transcript = transcripts[4]
    before = transcript.output_ids[8]
    least = int(tabular_pair.target.logits[before].argmin())
    result = audit(tabular_pair.target, tabular_pair.drafter("draft"), corrupted(transcripts, 4, 9, least))
    assert result["verdict"] == "violated"
    assert result["impossible_tokens"] == 1
    assert result["cause"]["name"] == "impossible_token"


def test_rounds_that_do_not_add_up_are_found(tabular_pair, outputs):
    transcripts = outputs("draft", PLAIN)
    wrong = dataclasses.replace(transcripts[0], rounds=(*transcripts[0].rounds, 4))
    result = audit(tabular_pair.target, tabular_pair.drafter("draft"), [wrong, *transcripts[1:]])
    assert result["verdict"] == "violated"
    assert result["cause"]["name"] == "structure"


def test_too_few_tokens_are_inconclusive(tabular_pair, outputs):
    result = audit(tabular_pair.target, tabular_pair.drafter("draft"), outputs("draft", PLAIN, prompts=2, tokens=4))
    assert result["verdict"] == "inconclusive"
    assert "too few tokens" in result["inconclusive_because"]
    assert result["detectable_contamination"] is None


def test_speculation_that_never_happened_is_inconclusive(tabular_pair, outputs):
    result = audit(tabular_pair.target, tabular_pair.drafter("draft"), outputs(None, PLAIN))
    assert result["verdict"] == "inconclusive"
    assert "no drafted token was ever accepted" in result["inconclusive_because"]


def test_an_output_without_tokens_belongs_to_an_audit(tabular_pair, outputs):
    transcripts = outputs("draft", PLAIN)
    empty = [Transcript((1,), (), PLAIN), Transcript((1, 2, 3), (), PLAIN)]
    whole = audit(tabular_pair.target, tabular_pair.drafter("draft"), [*transcripts, *empty])
    assert whole["verdict"] == "no_violation_found"
    assert whole["tokens"] == 2500


def test_the_same_audit_gives_the_same_result(tabular_pair, outputs):
    first, again, other = (
        audit(tabular_pair.target, tabular_pair.drafter("draft"), outputs("draft", PLAIN), seed=seed)
        for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("transcripts", "problem"),
    [
        ([Transcript((1,), (2,), PLAIN), Transcript((1,), (2,), COLD)], "made under different sampling parameters"),
        ([Transcript((1,), (2, 8), PLAIN)], "transcripts = 8: a token id is outside the target's vocabulary of 8"),
        ([Transcript((9,), (2,), PLAIN)], "transcripts = 9: a token id is outside"),
        ([Transcript((1,), (), PLAIN)], "hold no output token"),
        ([], "hold no output token"),
        ([Transcript((), (2,), PLAIN)], "has no token to condition on"),
        ([Transcript((), (), PLAIN), Transcript((1,), (2,), PLAIN)], "has no token to condition on"),
    ],
)
def test_what_cannot_be_audited_is_refused(tabular_pair, transcripts, problem):
    with pytest.raises(InputError, match=problem):
        audit(tabular_pair.target, None, transcripts)


def test_seeds_may_differ_within_an_audit(tabular_pair):
    transcripts = [Transcript((1,), (2, 3), dataclasses.replace(PLAIN, seed=seed)) for seed in range(3)]
    assert audit(tabular_pair.target, None, transcripts)["tokens"] == 6
