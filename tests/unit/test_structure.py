"""What transcripts say of themselves: every rule by a transcript that breaks it, and by all that come near."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.audit import structure
from specaudit.audit.structure import EXPLANATIONS, ROOM, Claims, adds_up
from specaudit.core.types import SamplingParams, Transcript

END, OTHER_END = 7, 8
SAMPLED = SamplingParams(temperature=0.8)
OWN = {"end_ids": [END], "stop_strings": []}


def transcript(*output, prompt=(1, 2), rounds=None, finish=None, sampling=SAMPLED, **engine):
    return Transcript(prompt, output, sampling, rounds, engine, finish)


def broken(*transcripts, end_ids=(END, OTHER_END)):
    """The rules that are broken, with how many transcripts break each."""
    return {test.name: int(test.statistic) for test in structure.tests(transcripts, end_ids) if test.flagged}


@pytest.mark.parametrize(
    "one",
    [
        transcript(1, 2, 3),
        transcript(),
        transcript(1, 2, 3, max_new_tokens=3, finish="length"),
        transcript(1, 2, max_new_tokens=3, finish="stop"),
        transcript(1, 2, max_new_tokens=3),
        transcript(1, 2, 3, max_new_tokens=True),  # not a number of tokens
        transcript(1, 2, 3, max_new_tokens=-1, finish="length"),  # no limit, for some engines
        transcript(1, 2, 3, max_new_tokens="two"),
        transcript(1, 2, finish="length"),  # whose limit is not known
        transcript(1, 2, 3, rounds=(2,)),
        transcript(1, 2, 3, rounds=(1, 3), finish="length"),  # cut by the limit after one token of its last round
        transcript(1, 2, rounds=(1, 0), finish="stop"),  # without the end token
        transcript(rounds=(0,), finish="stop"),
        transcript(rounds=()),
        transcript(1, 2, END, finish="stop", **OWN),
        transcript(1, 2, END, finish="length", **OWN),
        transcript(1, 2, 3, finish="stop", end_ids=[END], stop_strings=["c"]),
        transcript(1, 2, 3, finish="stop", end_ids=[END]),  # strings that may have stopped it are not known
        transcript(finish="stop", **OWN),
        transcript(1, END, 3, end_ids="7"),
        transcript(1, END, 3, end_ids=[]),
    ],
)
def test_nothing_is_said_of_what_is_consistent_or_not_known(one):
    assert broken(one) == {}


@pytest.mark.parametrize(
    ("one", "rule"),
    [
        (transcript(1, 2, 3, max_new_tokens=2), "past_limit"),
        (transcript(1, 2, 3, max_new_tokens=2, finish="stop"), "past_limit"),
        (transcript(1, 2, 3, rounds=(1,)), "structure"),
        (transcript(1, 2, 3, rounds=(1, 1, 1)), "structure"),
        (transcript(1, 2, rounds=(1, 3), finish="length"), "structure"),  # its last round left no token
        (transcript(1, rounds=()), "structure"),
        (transcript(1, 2, rounds=(-1, 2)), "structure"),
        (transcript(1, END, 3, **OWN), "after_end"),
        (transcript(END, END, finish="stop", **OWN), "after_end"),
        (transcript(1, 2, 3, finish="stop", **OWN), "stop_without_end"),
        (transcript(1, OTHER_END, finish="stop", **OWN), "stop_without_end"),  # the transcript's list, not the target's
        (transcript(1, preserves_target=False), "declared_lossy"),
    ],
)
def test_one_transcript_contradicts_itself(one, rule):
    assert broken(one) == {rule: 1}
    assert rule in EXPLANATIONS


def test_an_output_that_stopped_at_an_end_token_speaks_against_one_that_went_on():
    stopped, went_on = transcript(3, END, finish="stop"), transcript(END, 3)
    assert broken(stopped, went_on, went_on) == {"after_end": 2}
    assert broken(went_on, stopped) == {"after_end": 1}


@pytest.mark.parametrize(
    ("others", "end_ids"),
    [
        ([], (END,)),  # an engine that was told to go on
        ([transcript(3, 4, finish="stop")], (END,)),  # by a stop string
        ([transcript(3, OTHER_END, finish="stop")], (END, OTHER_END)),  # which knows one of the two
        ([transcript(3, END, finish="length")], (END,)),
        ([transcript(3, END)], (END,)),
        ([transcript(3, END, finish="stop")], ()),  # without a target, the last of a stop string
        ([transcript(finish="stop")], (END,)),
    ],
)
def test_a_token_ends_outputs_only_where_one_of_them_shows_it(others, end_ids):
    assert broken(transcript(1, END, 3), *others, end_ids=end_ids) == {}


def test_a_short_output_was_cut_by_the_context_unless_another_is_longer():
    short = [transcript(*range(n), prompt=tuple(range(100 - n)), max_new_tokens=90, finish="length") for n in (5, 60)]
    assert broken(*short) == {}
    near, longer = (transcript(*range(n), prompt=(1,), max_new_tokens=200) for n in (99 + ROOM, 100 + ROOM))
    assert broken(*short, near) == {}
    assert broken(*short, longer) == {"past_limit": 2}
    assert broken(longer, *short) == {"past_limit": 2}


def test_the_tests_come_in_one_order_whatever_is_broken():
    assert [test.name for test in structure.tests([transcript(1)])] == list(EXPLANATIONS)
    assert list(EXPLANATIONS)[-1] == "declared_lossy"


@settings(max_examples=100)
@given(
    st.lists(
        st.builds(
            transcript,
            *[st.sampled_from([1, END, OTHER_END])] * 3,
            rounds=st.sampled_from([None, (2,), (0, 0)]),
            finish=st.sampled_from([None, "stop", "length"]),
            max_new_tokens=st.sampled_from([None, 2, 3, 4]),
            end_ids=st.sampled_from([None, [END]]),
        ),
        max_size=6,
    ),
    st.integers(0, 6),
)
def test_read_in_pieces_and_taken_up_again_they_say_the_same(transcripts, cut):
    first, second = Claims((END, OTHER_END)), Claims((END, OTHER_END))
    first.add(transcripts[:cut])
    second.resume(json.loads(json.dumps(first.state())))
    second.add(transcripts[cut:])
    assert second.tests() == structure.tests(transcripts, (END, OTHER_END))
    assert second.tests() == structure.tests(transcripts[::-1], (END, OTHER_END))


def test_rounds_may_be_cut_at_their_end_alone():
    one = transcript(*range(7), rounds=(2, 0, 4), finish="length")
    lengths = [n for n in range(12) if adds_up(dataclasses.replace(one, output_ids=tuple(range(n))))]
    assert lengths == [5, 6, 7, 8, 9]
