import dataclasses
import itertools

import pytest
import torch
from transformers import GenerationConfig

from specaudit.core.errors import InputError
from specaudit.core.types import Limits, SamplingParams
from specaudit.decode import decode_batches
from specaudit.models.target import ModelTarget
from specaudit.verify import lossless_verifier

GREEDY = SamplingParams(temperature=0)
TREES = ["lookahead:4,3,4"]
DRAFTS = ["draft", "prompt-lookup", *TREES]
WITH_LAYERS = [*DRAFTS, "early-exit:1"]
ACCEPTING = [  # pairs and drafters whose tokens are often accepted
    ("tabular_pair", "draft"),
    ("tabular_pair", "prompt-lookup"),
    ("tabular_pair", "lookahead:4,3,4"),
    ("llama_pair", "draft"),
    ("llama_pair", "lookahead:8,4,6"),
]
SAMPLED = {
    "truncated": SamplingParams(temperature=0.8, top_p=0.9, seed=5),
    "penalised": SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.1, seed=6),
}


@pytest.fixture(autouse=True)
def _layers_where_the_draft_is_made_of_them(request):
    """A table has no layers to exit from, and says so; what remains of such a test is skipped."""
    params = getattr(request.node, "callspec", None) and request.node.callspec.params
    if params and params.get("draft") == "early-exit:1" and "tabular_pair" in (params.get("pair"), params.get("name")):
        with pytest.raises(
            InputError, match="--draft = 'early-exit:1': tabular target has 0 decoder layers, and needs"
        ):
            request.getfixturevalue("tabular_pair").drafter("early-exit:1")
        pytest.skip("a tabular model has no layers; the other pairs run this test")


def outputs(decoded):
    return [transcript.output_ids for transcript in decoded.transcripts]


@pytest.mark.parametrize("batch", [1, 5])
@pytest.mark.parametrize("draft", WITH_LAYERS)
def test_greedy_output_is_the_baselines(pair, draft, batch, assert_equal_or_tied):
    prompts = pair.prompts[:batch]
    decoded, baseline = pair.decode(draft, GREEDY, prompts), pair.decode(None, GREEDY, prompts)
    assert_equal_or_tied(pair.target, decoded.transcripts, baseline.transcripts)
    assert all(len(ids) == 24 for ids in outputs(decoded))
    assert all(set(t.rounds) == {0} for t in baseline.transcripts)


@pytest.mark.parametrize(
    ("name", "draft"),
    ACCEPTING,
)
def test_speculation_takes_fewer_rounds(name, draft, request):
    pair = request.getfixturevalue(name)
    decoded = pair.decode(draft, GREEDY)
    rounds = sum(len(transcript.rounds) for transcript in decoded.transcripts)
    assert rounds < 0.9 * sum(len(ids) for ids in outputs(pair.decode(None, GREEDY)))


@pytest.mark.parametrize("penalty", [{"repetition_penalty": 1.3}, {"presence_penalty": 0.7, "frequency_penalty": 0.4}])
@pytest.mark.parametrize("draft", WITH_LAYERS)
def test_greedy_output_under_penalties_is_the_baselines(llama_pair, draft, penalty, assert_equal_or_tied):
    params = SamplingParams(temperature=0, **penalty)
    baseline = llama_pair.decode(None, params)
    assert_equal_or_tied(llama_pair.target, llama_pair.decode(draft, params).transcripts, baseline.transcripts)
    assert outputs(baseline) != outputs(llama_pair.decode(None, GREEDY))


@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize("name", ["llama_pair", "zoo_pair"])
def test_the_baseline_is_what_generate_gives(name, penalty, request, assert_equal_or_tied):
    pair = request.getfixturevalue(name)
    params = SamplingParams(temperature=0, repetition_penalty=penalty)
    end_ids = sorted(pair.target.end_ids)
    baseline = pair.decode(None, params, max_new_tokens=12, end_ids=end_ids)
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=12, repetition_penalty=penalty, eos_token_id=end_ids or None, pad_token_id=0
    )
    generated = []
    for prompt, transcript in zip(pair.prompts, baseline.transcripts, strict=True):
        ids = torch.tensor([prompt])
        whole = pair.target.model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        generated.append(tuple(whole[0, len(prompt) :].tolist()))
        assert len(generated[-1]) == len(transcript.output_ids)
    if outputs(baseline) != generated:
        pairs = zip(baseline.transcripts, generated, strict=True)
        expected = [dataclasses.replace(transcript, output_ids=ids) for transcript, ids in pairs]
        assert_equal_or_tied(pair.target, expected, baseline.transcripts)


@pytest.mark.parametrize("params", SAMPLED.values(), ids=SAMPLED)
@pytest.mark.parametrize("draft", [None, *WITH_LAYERS])
@pytest.mark.parametrize("name", ["tabular_pair", "exact_llama_pair"])
def test_a_row_is_the_same_alone_and_in_any_batch_in_any_order(name, draft, params, request):
    pair = request.getfixturevalue(name)
    seeds = [101, 102, 103, 104, 105]
    together = outputs(pair.decode(draft, params, seeds=seeds))
    alone = [
        outputs(pair.decode(draft, params, [prompt], seeds=[seed]))[0]
        for prompt, seed in zip(pair.prompts, seeds, strict=True)
    ]
    assert together == alone
    order = [3, 0, 4, 1]
    some = pair.decode(draft, params, [pair.prompts[i] for i in order], seeds=[seeds[i] for i in order])
    assert outputs(some) == [together[i] for i in order]
    assert outputs(pair.decode(draft, params, seeds=[s + 1000 for s in seeds])) != together


@pytest.mark.parametrize("draft", [None, *DRAFTS])
def test_the_batch_size_changes_nothing(tabular_pair, draft):
    found = []
    for batch_size in (1, 2, 5):
        batches = decode_batches(
            ModelTarget(tabular_pair.target), tabular_pair.drafter(draft), lossless_verifier(SAMPLED["truncated"]),
            tabular_pair.prompts, SAMPLED["truncated"], Limits(16), k=3, batch_size=batch_size,
        )  # fmt: skip
        by_prompt = {i: ids for indexes, decoded in batches for i, ids in zip(indexes, outputs(decoded), strict=True)}
        found.append([by_prompt[index] for index in range(len(tabular_pair.prompts))])
    assert found[0] == found[1] == found[2]


def test_a_transcripts_own_seed_reproduces_it(tabular_pair):
    decoded = tabular_pair.decode("draft", SAMPLED["truncated"])
    for transcript in decoded.transcripts:
        seeds = [transcript.sampling.seed]
        again = tabular_pair.decode("draft", SAMPLED["truncated"], [transcript.prompt_ids], seeds=seeds)
        assert again.transcripts == [transcript]


@pytest.mark.parametrize(
    ("name", "draft"),
    ACCEPTING,
)
def test_an_end_token_ends_its_row_in_mid_round(name, draft, request, adds_up):
    """The end token is one that was accepted in the middle of a round, so tokens after it must be dropped."""
    pair = request.getfixturevalue(name)
    params = SamplingParams(temperature=0.4, seed=2)
    prompts = [[*t.prompt_ids, *t.output_ids] for t in pair.decode(None, GREEDY, max_new_tokens=12).transcripts]
    free = pair.decode(draft, params, prompts, max_new_tokens=40)
    ends = set()
    for transcript in free.transcripts:
        starts = itertools.accumulate((count + 1 for count in transcript.rounds), initial=0)
        for start, count in zip(starts, transcript.rounds, strict=False):
            if count >= 2:
                ends.add(transcript.output_ids[start])
    ended_in_mid_round = 0
    for end in sorted(ends)[:6]:
        ended = pair.decode(draft, params, prompts, max_new_tokens=40, end_ids=[end])
        for transcript, whole in zip(ended.transcripts, free.transcripts, strict=True):
            assert adds_up(transcript)
            if end in whole.output_ids:
                at = whole.output_ids.index(end)
                assert transcript.output_ids == whole.output_ids[: at + 1]
                assert transcript.finish_reason == "stop"
                ended_in_mid_round += sum(transcript.rounds) + len(transcript.rounds) > at + 1
            else:
                assert transcript.output_ids == whole.output_ids
                assert transcript.finish_reason == "length"
    assert ended_in_mid_round


@pytest.mark.parametrize("params", [GREEDY, SAMPLED["penalised"]], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", [None, *WITH_LAYERS])
@pytest.mark.parametrize("wanted", [1, 2, 3, 7])
def test_the_token_limit_is_met_exactly_also_below_k(llama_pair, draft, wanted, params, adds_up):
    decoded = llama_pair.decode(draft, params, k=6, max_new_tokens=wanted)
    assert [len(ids) for ids in outputs(decoded)] == [wanted] * 5
    assert all(transcript.finish_reason == "length" for transcript in decoded.transcripts)
    assert all(adds_up(transcript) for transcript in decoded.transcripts)


@pytest.mark.parametrize("draft", [None, *WITH_LAYERS])
def test_a_prompt_near_the_contexts_end_is_decoded_up_to_it(llama_pair, draft, assert_equal_or_tied):
    context = llama_pair.target.max_context
    prompts = [(llama_pair.prompts[2] * 10)[: context - room] for room in (1, 2, 5)] + [[3, 4]]
    decoded = llama_pair.decode(draft, GREEDY, prompts, max_new_tokens=9)
    assert [len(ids) for ids in outputs(decoded)] == [1, 2, 5, 9]
    expected = llama_pair.decode(None, GREEDY, prompts, max_new_tokens=9)
    assert_equal_or_tied(llama_pair.target, decoded.transcripts, expected.transcripts)
    with pytest.raises(InputError, match=f"prompt 1 of {context} tokens': the context holds {context}"):
        llama_pair.decode(draft, GREEDY, [[1], [1] * context])


@pytest.mark.parametrize("draft", [None, *WITH_LAYERS])
def test_a_stop_string_ends_a_row_where_it_first_appears(llama_pair, draft):
    """Also where it spans tokens, and in the middle of a round."""
    text = llama_pair.target.tokenizer.decode
    params = SamplingParams(temperature=0.7, seed=3)
    free = llama_pair.decode(draft, params)
    wholes = [text(ids) for ids in outputs(free)]
    stop = wholes[0][9:11]
    assert len(stop.encode()) >= 2
    stopped = llama_pair.decode(draft, params, stop=[stop, "never to be seen"], text=text)
    for transcript, whole in zip(stopped.transcripts, outputs(free), strict=True):
        ends = [n for n in range(1, len(whole) + 1) if stop in text(whole[:n])]
        assert transcript.output_ids == (whole[: ends[0]] if ends else whole)
        assert transcript.finish_reason == ("stop" if ends else "length")
    assert len(outputs(stopped)[0]) < 24


@pytest.mark.parametrize("draft", [None, *WITH_LAYERS])
def test_rounds_account_for_every_token(pair, draft, adds_up):
    decoded = pair.decode(draft, SamplingParams(temperature=0.9, seed=4), end_ids=[7], max_new_tokens=20)
    emitted, counted = [0] * 5, [0] * 5
    for round_ in decoded.rounds:
        for row, proposed, count in zip(round_.rows, round_.proposed, round_.emitted, strict=True):
            assert 1 <= count <= proposed + 1
            deepest = count - 1 if draft in TREES else proposed
            assert emitted[row] + deepest + 1 <= 20  # no deeper than there is room for
            emitted[row] += count
            counted[row] += 1
        assert 0 <= round_.propose_seconds + round_.score_seconds + round_.verify_seconds <= round_.total_seconds
    for row, transcript in enumerate(decoded.transcripts):
        assert adds_up(transcript)
        assert len(transcript.rounds) == counted[row]
        assert emitted[row] >= len(transcript.output_ids) > emitted[row] - 5
        assert transcript.prompt_ids == tuple(pair.prompts[row])
    assert decoded.tokens == sum(len(ids) for ids in outputs(decoded))
    assert decoded.prefill_seconds >= 0
    assert decoded.decode_seconds > 0


def test_a_transcript_says_what_made_it(tabular_pair, faulty_verifiers):
    params = SamplingParams(temperature=0.9)
    spec, base = tabular_pair.decode("prompt-lookup:2", params, k=3), tabular_pair.decode(None, params, k=3)
    lossy = tabular_pair.decode("draft", params, verifier=faulty_verifiers["lenient"])
    assert spec.transcripts[0].engine["method"] == "prompt-lookup:2"
    assert (spec.transcripts[0].engine["k"], base.transcripts[0].engine["k"]) == (3, 0)
    assert base.transcripts[0].engine["method"] == "baseline"
    assert spec.transcripts[0].engine["preserves_target"] is True
    assert lossy.transcripts[0].engine["preserves_target"] is False
    assert lossy.transcripts[0].engine["verifier"] == "lenient"


@pytest.mark.parametrize("extra", [20, -20])
def test_a_draft_with_more_or_fewer_logits_drafts_for_the_same_output(llama_pair, extra, assert_equal_or_tied):
    """As where one of a pair pads its embedding: what the other lacks is impossible to it."""
    draft = llama_pair.draft
    width = draft.vocabulary + extra
    padded = draft.model.__class__(draft.config.__class__(**{**draft.config.to_dict(), "vocab_size": width})).eval()
    weights = dict(draft.model.state_dict())
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        own = padded.state_dict()[name].clone()
        shared = min(width, draft.vocabulary)
        own[:shared] = weights[name][:shared]
        weights[name] = own
    padded.load_state_dict(weights)
    other = draft.__class__(padded, draft.tokenizer, "padded", "")
    pair = llama_pair.__class__(llama_pair.target, other, [[5, 6, 7], [8]])
    for params in (GREEDY, SamplingParams(temperature=0.6, repetition_penalty=1.1)):
        decoded = pair.decode("draft", params, max_new_tokens=10)
        assert [len(ids) for ids in outputs(decoded)] == [10, 10]
        if params.greedy:
            baseline = pair.decode(None, params, max_new_tokens=10)
            assert_equal_or_tied(pair.target, decoded.transcripts, baseline.transcripts)


def test_what_cannot_be_decoded_is_refused(tabular_pair):
    with pytest.raises(InputError, match="k = 0: must be at least 1 with a drafter"):
        tabular_pair.decode("draft", GREEDY, k=0)
    with pytest.raises(InputError, match="prompt 1': has no tokens"):
        tabular_pair.decode("draft", GREEDY, [[1], []])
    with pytest.raises(InputError, match="there are no prompts"):
        tabular_pair.decode(None, GREEDY, [])
    with pytest.raises(InputError, match="stop strings need a function from ids to text"):
        tabular_pair.decode(None, GREEDY, stop=["x"])
