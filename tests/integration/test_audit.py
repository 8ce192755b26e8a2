import dataclasses

import numpy as np
import pytest
import torch

from specaudit.audit import checkpoint
from specaudit.audit.lossless import Audit, audit
from specaudit.audit.noise import Noise
from specaudit.audit.sequential import audit_until_decided
from specaudit.core.errors import InputError
from specaudit.core.types import SamplingParams, Transcript
from specaudit.drafters import chain
from specaudit.models.tabular import TabularModel

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


# Piece by piece


def test_pieces_make_the_same_audit(tabular_pair, outputs):
    """But for the scorer's padding, which is another one: the numbers agree to rounding."""
    transcripts = [*outputs("draft", PLAIN), Transcript((1, 2), (), PLAIN)]
    drafter = tabular_pair.drafter("draft")
    whole = audit(tabular_pair.target, drafter, transcripts)
    pieces = Audit(tabular_pair.target, drafter)
    for start in range(0, len(transcripts), 7):
        pieces.add(transcripts[start : start + 7])
    parts = pieces.result()
    assert by_name(parts).keys() == by_name(whole).keys()
    for name, test in by_name(whole).items():
        assert by_name(parts)[name]["statistic"] == pytest.approx(test["statistic"], abs=1e-9), name
    for name in ("verdict", "tokens", "transcripts", "detectable_contamination", "contamination_bound"):
        assert parts[name] == pytest.approx(whole[name], abs=1e-12) if "bound" in name else parts[name] == whole[name]


@pytest.mark.parametrize("params", [PLAIN, GREEDY], ids=["plain", "greedy"])
def test_pieces_must_be_made_alike(tabular_pair, outputs, params):
    whole = Audit(tabular_pair.target, None)
    whole.add(outputs(None, params)[:3])
    with pytest.raises(InputError, match="made under different sampling parameters"):
        whole.add(outputs(None, COLD)[:3])


def test_an_audit_of_nothing_has_no_result(tabular_pair):
    whole = Audit(tabular_pair.target, None)
    whole.add([])
    with pytest.raises(InputError, match="hold no output token"):
        whole.result()


def test_greedy_pieces_count_every_divergence_once(tabular_pair, outputs):
    right = outputs("draft", GREEDY)
    transcripts = right
    for index, position in ((2, 11), (44, 3)):
        transcripts = corrupted(transcripts, index, position, (right[index].output_ids[position] + 1) % 8)
    whole = audit(tabular_pair.target, None, transcripts)
    pieces = Audit(tabular_pair.target, None)
    for start in range(0, len(transcripts), 10):
        pieces.add(transcripts[start : start + 10])
    assert pieces.result()["greedy"] == whole["greedy"]
    assert {2, 44} <= {one["transcript"] for one in whole["greedy"]["divergences"]}


def pieces_of(transcripts, size=4):
    return [transcripts[start : start + size] for start in range(0, len(transcripts), size)]


def test_it_stops_where_contamination_is_excluded(tabular_pair, outputs):
    drafter = tabular_pair.drafter("draft")
    pieces = iter(pieces_of(outputs("draft", PLAIN)))
    result = audit_until_decided(Audit(tabular_pair.target, drafter, looks=True), pieces, wanted=0.4)
    assert (result["decided"], result["verdict"]) == ("excluded", "no_violation_found")
    assert result["contamination_bound"] <= 0.4
    assert result["tokens"] < 2500
    assert list(pieces)


def test_it_stops_at_a_violation(tabular_pair, outputs, faulty_verifiers):
    transcripts = outputs("draft", PLAIN, verifier=faulty_verifiers["lenient"])
    drafter = tabular_pair.drafter("draft")
    result = audit_until_decided(Audit(tabular_pair.target, drafter, looks=True), pieces_of(transcripts), wanted=0.01)
    assert (result["decided"], result["verdict"]) == ("violated", "violated")
    assert result["tokens"] < 2500
    assert result["cause"]["text"]


def test_it_says_where_the_transcripts_did_not_decide(tabular_pair, outputs):
    drafter = tabular_pair.drafter("draft")
    result = audit_until_decided(
        Audit(tabular_pair.target, drafter, looks=True), pieces_of(outputs("draft", PLAIN)), wanted=0.001
    )
    assert (result["decided"], result["tokens"], result["looks"] > 1) == (None, 2500, True)


def test_what_an_earlier_look_found_stays_found(tabular_pair, outputs, faulty_verifiers):
    """And later looks spend less on the tests of a fixed sample."""
    transcripts = outputs("draft", PLAIN, verifier=faulty_verifiers["argmax"])
    whole = Audit(tabular_pair.target, tabular_pair.drafter("draft"), looks=True)
    whole.add(transcripts)
    first = {name for name, test in by_name(whole.result()).items() if test["flagged"]}
    assert "pit_chi_square" in first
    whole.add(outputs("draft", PLAIN) * 4)
    assert first <= {name for name, test in by_name(whole.result()).items() if test["flagged"]}


# Under noise


def test_noise_makes_the_bets_robust_and_decides_no_uniformity(tabular_pair, outputs, monkeypatch):
    monkeypatch.setattr("specaudit.audit.lossless.measure_noise", lambda *_: Noise(0.1, 0.01, 100))
    drafter = tabular_pair.drafter("draft")
    noisy = audit(tabular_pair.target, drafter, outputs("draft", PLAIN))
    monkeypatch.undo()
    exact = audit(tabular_pair.target, drafter, outputs("draft", PLAIN))
    assert noisy["verdict"] == "no_violation_found"
    assert noisy["noise"]["robust"] is True
    assert exact["noise"]["robust"] is False
    for name in ("detectable_contamination", "contamination_bound"):
        assert noisy[name] > exact[name]
    assert not any(test["flagged"] for name, test in by_name(noisy).items() if name.startswith("pit"))


def test_a_fault_larger_than_the_noise_is_found_all_the_same(tabular_pair, outputs, faulty_verifiers, monkeypatch):
    monkeypatch.setattr("specaudit.audit.lossless.measure_noise", lambda *_: Noise(0.1, 0.01, 100))
    transcripts = outputs("draft", PLAIN, verifier=faulty_verifiers["argmax"])
    result = audit(tabular_pair.target, tabular_pair.drafter("draft"), transcripts)
    assert result["verdict"] == "violated"
    assert by_name(result)["bug_laws"]["flagged"]


def test_an_engine_whose_noise_is_within_the_bound_is_not_accused(tabular_pair, outputs, monkeypatch):
    """It draws from (1 - 0.03) p + 0.03 q: contamination, but no more than the noise was measured to be."""
    monkeypatch.setattr("specaudit.audit.lossless.measure_noise", lambda *_: Noise(0.1, 0.03, 100))
    laws = [torch.softmax(model.logits, -1) for model in (tabular_pair.target, tabular_pair.draft)]
    assert float((laws[0] - laws[1]).abs().sum(-1).max()) / 2 < 1
    noisy = dataclasses.replace(tabular_pair, target=TabularModel((0.97 * laws[0] + 0.03 * laws[1]).log()))
    transcripts = noisy.decode(None, PLAIN, [[i % 8] for i in range(400)], max_new_tokens=50).transcripts
    result = audit(tabular_pair.target, tabular_pair.drafter("draft"), transcripts)
    assert not [test["name"] for test in result["tests"] if test["flagged"]]


# Gone on with


def test_an_interrupted_audit_goes_on_where_it_was(tabular_pair, outputs, tmp_path):
    transcripts, key = outputs("draft", PLAIN), {"target": "a", "seed": 0}
    drafter, file = tabular_pair.drafter("draft"), tmp_path / "audit.npz"
    first = Audit(tabular_pair.target, drafter, looks=True)
    first.add(transcripts[:20])
    first.result()
    checkpoint.save(file, first, key)
    second = Audit(tabular_pair.target, drafter, looks=True)
    checkpoint.load(file, second, key)
    for whole in (first, second):
        whole.add(transcripts[20:])
    assert first.result() == second.result()


def test_a_finished_audit_leaves_no_checkpoint(tabular_pair, outputs, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "SAVE_SECONDS", 0.0)
    file, whole = tmp_path / "audit.npz", Audit(tabular_pair.target, None)
    seen = []
    for piece in checkpoint.kept(pieces_of(outputs(None, PLAIN), 10), file, whole, {}):
        seen.append(file.exists())
        whole.add(piece)
    assert seen == [False, True, True, True, True]
    assert not file.exists()


def test_another_audits_checkpoint_is_refused(tabular_pair, outputs, tmp_path):
    file, whole = tmp_path / "audit.npz", Audit(tabular_pair.target, None)
    whole.add(outputs(None, PLAIN))
    checkpoint.save(file, whole, {"target": "a", "seed": 0})
    with pytest.raises(InputError, match="is of another audit: seed differ"):
        checkpoint.load(file, Audit(tabular_pair.target, None), {"target": "a", "seed": 1})
    file.write_text("what is this")
    with pytest.raises(InputError, match="is not a checkpoint"):
        checkpoint.load(file, Audit(tabular_pair.target, None), {})
