"""The own decoder's transcripts contradict themselves nowhere: every drafter, limit and end."""

import dataclasses

import pytest

from specaudit.audit import structure
from specaudit.core.types import SamplingParams

SETTINGS = [SamplingParams(temperature=0.9, seed=5), SamplingParams(temperature=0)]
DRAFTS = {
    "llama_pair": [None, "draft", "prompt-lookup", "lookahead:4,3,4", "early-exit:1"],
    "zoo_pair": ["draft", "medusa:zoo:tiny", "eagle:zoo:tiny"],
}
EVERY = [(pair, draft) for pair, drafts in DRAFTS.items() for draft in drafts]


def broken(transcripts, end_ids):
    return {test.name for test in structure.tests(transcripts, end_ids) if test.flagged}


@pytest.mark.parametrize("params", SETTINGS, ids=["sampled", "greedy"])
@pytest.mark.parametrize(("name", "draft"), EVERY)
def test_own_transcripts_are_consistent(name, draft, params, request):
    """Cut by the limit, by the context where it is short, at end tokens, and at strings."""
    pair = request.getfixturevalue(name)
    ends = range(0, pair.target.vocabulary, 6)
    ways = {
        "limit": {"max_new_tokens": 9}, "context": {"max_new_tokens": 80}, "end": {"end_ids": ends},
        "string": {"stop": ("e", "t"), "text": pair.target.tokenizer.decode, "end_ids": ends},
    }  # fmt: skip
    if name == "zoo_pair":
        del ways["context"]
    made = {way: pair.decode(draft, params, **options).transcripts for way, options in ways.items()}
    for way, transcripts in made.items():
        assert not broken(transcripts, ends), way
        unlisted = [dataclasses.replace(t, engine={**t.engine, "end_ids": None}) for t in transcripts]
        assert not broken(unlisted, ends), way
    assert {t.finish_reason for t in made["limit"]} == {"length"}
    assert "stop" in {t.finish_reason for way in ("end", "string") for t in made[way]}


def test_an_end_token_passed_over_is_found_by_the_list_and_by_the_other_outputs(llama_pair):
    """The list alone finds what no other output speaks against."""
    ends = range(0, llama_pair.target.vocabulary, 6)
    stopped = llama_pair.decode("draft", SETTINGS[0], end_ids=ends).transcripts
    went_on = llama_pair.decode("draft", SETTINGS[0]).transcripts
    end_ids = stopped[0].engine["end_ids"]
    assert end_ids == list(ends)
    listed = [dataclasses.replace(t, engine={**t.engine, "end_ids": end_ids}) for t in went_on]
    assert broken(listed, ends) == {"after_end"}
    unlisted = [dataclasses.replace(t, engine={}) for t in [*stopped, *went_on]]
    assert broken(unlisted[len(stopped) :], ends) == set()
    assert broken(unlisted, ends) == {"after_end"}
