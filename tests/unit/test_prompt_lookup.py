import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.core.errors import InputError
from specaudit.core.sequences import scoring_order
from specaudit.core.types import SamplingParams
from specaudit.drafters import create_drafter
from specaudit.drafters.prompt_lookup import NgramIndex, PromptLookup
from specaudit.models.tabular import TabularModel

TOKENS = st.lists(st.integers(0, 3), max_size=24)


def found_by_search(text, longest, count):
    """What follows the latest earlier occurrence of the longest final n-gram that has one."""
    for size in range(min(longest, len(text)), 0, -1):
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == text[-size:]:
                return text[start + size : start + size + count]
    return []


@settings(max_examples=300)
@given(st.lists(TOKENS, max_size=4), st.integers(1, 4), st.integers(0, 6))
def test_the_index_finds_what_a_search_finds(pieces, longest, count):
    index, text = NgramIndex(longest), []
    for piece in pieces:
        index.extend(piece)
        text += piece
        assert index.continuation(count) == found_by_search(text, longest, count)


def test_a_longer_match_goes_before_a_later_one():
    text = [1, 2, 3, 9, 3, 8, 1, 2, 3]
    index = NgramIndex(3)
    index.extend(text)
    assert index.continuation(2) == [9, 3]
    shortest = NgramIndex(1)
    shortest.extend(text)
    assert shortest.continuation(2) == [8, 1]


@pytest.fixture
def prompts():
    return [[1, 2, 3, 1, 2], [4, 5, 6], [7, 7, 7, 7]]


def test_rows_propose_within_their_limits_and_pad(prompts):
    drafter = PromptLookup(2)
    drafter.start(prompts, SamplingParams(), 64, None)
    proposal = drafter.propose([2, 4, 1], torch.zeros(3, 4))
    assert proposal.draft_probs == "point_mass"
    assert proposal.lengths == (2, 0, 1)
    assert proposal.tokens.shape == (3, 2)
    assert [proposal.tokens[row, :n].tolist() for row, n in enumerate(proposal.lengths)] == [[3, 1], [], [7]]


def test_nothing_to_propose_is_a_proposal_of_width_zero(prompts):
    drafter = PromptLookup(2)
    drafter.start([prompts[1]], SamplingParams(), 64, None)
    proposal = drafter.propose([4], torch.zeros(1, 4))
    assert proposal.width == 0
    assert proposal.lengths == (0,)


def test_rows_learn_what_was_emitted_and_leave_alone(prompts):
    drafter = PromptLookup(2)
    drafter.start(prompts, SamplingParams(), 64, None)
    drafter.observe([[3], [4], [7]])
    drafter.keep([2, 1])
    proposal = drafter.propose([3, 3], torch.zeros(2, 3))
    assert [proposal.tokens[row, :n].tolist() for row, n in enumerate(proposal.lengths)] == [[7], [5, 6, 4]]


@settings(max_examples=40)
@given(st.lists(st.tuples(TOKENS.filter(len), TOKENS), min_size=1, max_size=4), st.integers(1, 4))
def test_replay_proposes_what_a_round_there_would(sequences, depth):
    replayed = list(PromptLookup(3).replay(sequences, SamplingParams(), depth))
    assert [index for index, _ in replayed] == scoring_order(sequences)
    for index, replay in replayed:
        prompt, output = sequences[index]
        assert replay.chains.shape == (len(output), depth)
        for position in range(len(output)):
            chain = found_by_search([*prompt, *output[:position]], 3, depth)
            assert replay.chains[position].tolist() == chain + [-1] * (depth - len(chain))


def never(name):
    raise AssertionError("prompt lookup needs no model")


@pytest.mark.parametrize(("name", "longest"), [("prompt-lookup", 3), ("prompt-lookup:1", 1), ("prompt-lookup:5", 5)])
def test_it_is_made_by_name(name, longest):
    drafter = create_drafter(name, TabularModel(torch.zeros(3, 3)), never)
    assert drafter.longest == longest
    assert drafter.name == f"prompt-lookup:{longest}"


@pytest.mark.parametrize("name", ["prompt-lookup:0", "prompt-lookup:-1", "prompt-lookup:x", "prompt-lookup:1.5"])
def test_a_bad_length_is_refused(name):
    with pytest.raises(InputError, match=f"{name}.*at least 1"):
        create_drafter(name, TabularModel(torch.zeros(3, 3)), never)


def test_any_other_name_is_a_model():
    draft = TabularModel(torch.zeros(4, 4), "small")
    loaded = []
    drafter = create_drafter("org/small:v1", TabularModel(torch.zeros(3, 3)), lambda name: loaded.append(name) or draft)
    assert loaded == ["org/small:v1"]
    assert (drafter.name, drafter.vocabulary) == ("small", 3)
