"""Lookahead: its window by hand on a chain, its pool and tries against a search, its columns against a real model."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from specaudit.core.errors import InputError
from specaudit.core.sequences import scoring_order
from specaudit.core.tree import Tree
from specaudit.core.types import Limits, SamplingParams
from specaudit.cost.forced import FixedWidthDrafter, ForcedVerifier
from specaudit.decode import decode
from specaudit.drafters import create_drafter
from specaudit.drafters.lookahead import Lookahead, NgramPool, trie, window_parents
from specaudit.models.causal import HuggingFaceModel
from specaudit.models.tabular import TabularModel
from specaudit.models.target import ModelTarget
from specaudit.verify import GreedyVerifier

GREEDY = SamplingParams(temperature=0)
TOKENS = st.lists(st.integers(0, 2), max_size=24)


def chain_model(following):
    """A target whose argmax after token i is ``following[i]``."""
    return TabularModel(5.0 * torch.eye(len(following), dtype=torch.float64)[torch.tensor(following)])


def counter(size):
    return chain_model([(token + 1) % size for token in range(size)])


class Rounds:
    """Drives target and drafter by hand, in the order of the decode loop."""

    def __init__(self, drafter, model, prompts, k=8):
        self.target, self.drafter, self.k = ModelTarget(model), drafter, k
        self.texts = [list(prompt) for prompt in prompts]
        capacity = 60
        self.target.start(prompts, GREEDY, capacity)
        drafter.start(prompts, GREEDY, capacity, self.target)

    def turn(self, limits=None):
        nodes, _ = self.drafter.room(self.k)
        uniforms = torch.zeros(len(self.texts), nodes + 1)
        proposal = self.drafter.propose(limits or [self.k] * len(self.texts), uniforms[:, :nodes])
        self.scored = self.target.score(proposal)
        found = GreedyVerifier()(self.scored, proposal, uniforms)
        emitted = [
            [*proposal.tokens[row, path].tolist(), int(found.extra_token[row])] for row, path in enumerate(found.nodes)
        ]
        self.target.commit(found.nodes, emitted)
        self.drafter.observe(emitted)
        for text, tokens in zip(self.texts, emitted, strict=True):
            text.extend(tokens)
        return proposal, emitted

    def keep(self, rows):
        self.target.keep(rows)
        self.drafter.keep(rows)
        self.texts = [self.texts[row] for row in rows]


def known(pool):
    return {first: list(rests) for first, rests in pool.after.items()}


def row_of(proposal, row):
    """A row's verified tokens and their parents, and its window."""
    length = proposal.lengths[row]
    parents = proposal.tree.parents[row]
    return proposal.tokens[row, :length].tolist(), parents[:length].tolist(), proposal.extra_tokens[row].tolist()


def test_the_window_by_hand():
    """Counting modulo ten; the guesses 2 and 7 are the prompt, and 2 comes up as the root in the sixth round."""
    drafter = Lookahead(2, 3, 2)
    rounds = Rounds(drafter, counter(10), [[2, 7]])
    # Tokens and parents verified, window, emitted; and after the round the levels and the pool.
    expected = [
        ([], [], [2, 7], [8], [[2, 7], [3, 8]], {2: [(7, 8)]}),
        ([], [], [2, 7, 3, 8], [9], [[3, 8], [4, 9]], {2: [(7, 8), (3, 4)], 7: [(8, 9)]}),
        ([], [], [3, 8, 4, 9], [0], [[4, 9], [5, 0]], {3: [(4, 5)], 8: [(9, 0)]}),
        ([], [], [4, 9, 5, 0], [1], [[5, 0], [6, 1]], {4: [(5, 6)], 9: [(0, 1)]}),
        ([], [], [5, 0, 6, 1], [2], [[6, 1], [7, 2]], {5: [(6, 7)], 0: [(1, 2)]}),
        # Round 6 reads three n-grams from the text; (2, 3, 4) comes again and stays the newest.
        ([3, 7, 4, 8], [-1, -1, 0, 1], [6, 1, 7, 2], [3, 4, 5], [[7, 2], [8, 3]],
         {2: [(7, 8), (3, 4)], 6: [(7, 8)], 1: [(2, 3)]}),
        ([6, 7], [-1, 0], [7, 2, 8, 3], [6, 7, 8], [[8, 3], [9, 4]], {}),
    ]  # fmt: skip
    pool = {}
    for tokens, parents, window, emitted, levels, news in expected:
        proposal, found = rounds.turn()
        pool |= news
        assert row_of(proposal, 0) == (tokens, parents, window)
        assert found == [emitted]
        assert drafter.levels == [levels]
        assert known(drafter.pools[0]) == pool
    first = proposal.width
    assert proposal.tree.parents[0, first:].tolist() == [-1, first, first, first + 1]


def test_the_window_of_bigrams_is_plain_jacobi_iteration():
    drafter = Lookahead(3, 2, 4)
    rounds = Rounds(drafter, counter(6), [[4]])
    assert drafter.levels == [[[4, 4, 4]]]
    for level in ([5, 5, 5], [0, 0, 0], [1, 1, 1]):
        proposal, _ = rounds.turn()
        assert proposal.tree.parents[0, proposal.width :].tolist() == [-1, proposal.width, proposal.width + 1]
        assert drafter.levels == [[level]]
    assert known(drafter.pools[0]) == {4: [(5,)], 5: [(0,)], 0: [(1,)]}


@pytest.mark.parametrize(("size", "rounds"), [(2, 1), (3, 2), (5, 4)])
def test_levels_grow_by_one_a_round_until_there_are_n_minus_one(size, rounds):
    drafter = Lookahead(4, size, 3)
    driven = Rounds(drafter, counter(7), [[1, 5, 3, 2, 6]])
    for turn in range(rounds + 2):
        proposal, _ = driven.turn()
        assert proposal.extra_tokens.shape[1] == 4 * min(turn + 1, size - 1)
    assert len(drafter.levels[0]) == size - 1


def test_parents_of_a_window_after_the_verified_nodes():
    assert window_parents(3, 2, 5) == [-1, 5, 5, 6, 7, 8]
    assert window_parents(1, 3, 0) == [-1, 0, 1]
    shape = Tree([-1, -1, 0, *window_parents(3, 3, 3)])
    assert shape.depths[0, 4:].tolist() == [1, 2, 3, 2, 3, 4, 3, 4, 5]


def tiny_llama():
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=24, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=96, initializer_range=0.4, pad_token_id=0, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    return HuggingFaceModel(LlamaForCausalLM(config).double().eval(), None, "tiny", "")


@torch.inference_mode()
def test_every_window_token_is_scored_after_its_own_guesses_and_every_output_enters_its_column():
    """Against ordinary passes over the root's text, level 0 up to the column, and the column; rows of many lengths."""
    model = tiny_llama()
    drafter = Lookahead(3, 4, 2)
    rounds = Rounds(drafter, model, [[5, 6, 7, 5, 6, 7, 5, 6], [9], [3, 1, 3]])
    for turn in range(6):
        before = [[*text] for text in rounds.texts]
        levels = [[*window] for window in drafter.levels]
        proposal, _ = rounds.turn()
        places = list(itertools.product(range(len(levels)), range(len(levels[0])), range(3)))
        seen = [
            [*before[row], *levels[row][0][: column + 1], *(levels[row][up][column] for up in range(1, level + 1))]
            for row, level, column in places
        ]
        padded = torch.tensor([ids + [0] * (max(map(len, seen)) - len(ids)) for ids in seen])
        logits = model.score_full(padded, [len(ids) for ids in seen])
        for (row, level, column), ids, own in zip(places, seen, logits, strict=True):
            expected = own[len(ids) - 1]
            found = rounds.scored[row, 1 + proposal.width + 3 * level + column]
            torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
            if level == len(levels[row]) - 1:
                assert drafter.levels[row][-1][column] == int(expected.argmax())
        if turn == 3:
            rounds.keep([2, 0])


def test_a_row_proposes_the_same_alone_and_in_a_batch():
    draws = torch.Generator().manual_seed(5)
    model = TabularModel(torch.randn(6, 6, generator=draws, dtype=torch.float64))
    prompts = [[1, 2, 3, 1, 2, 4, 1, 2], [5], [0, 3, 0, 3, 0]]
    together = Rounds(Lookahead(3, 3, 2), model, prompts)
    alone = [Rounds(Lookahead(3, 3, 2), model, [prompt]) for prompt in prompts]
    widths = set()
    for turn in range(8):
        proposal, emitted = together.turn()
        widths.add(proposal.lengths)
        for row, single in enumerate(alone):
            own, own_emitted = single.turn()
            assert row_of(proposal, row) == row_of(own, 0)
            assert emitted[row] == own_emitted[0]
        if turn == 4:
            together.keep([2, 0])
            alone = [alone[2], alone[0]]
    assert any(len(set(lengths)) > 1 for lengths in widths)  # the batch was ragged


def test_rows_keep_to_their_limits_and_padding_hangs_on_the_root():
    prompts = [[1, 2, 3, 4, 1], [1, 2, 3, 1, 4, 5, 1], [0, 5]]
    rounds = Rounds(Lookahead(2, 3, 4), counter(6), prompts)
    nodes, width = rounds.drafter.room(2)
    assert (nodes, width) == (8, 12)
    assert rounds.drafter.room(1) == (4, 8)
    proposal = rounds.drafter.propose([2, 1, 2], torch.zeros(3, nodes))
    assert proposal.draft_probs == "point_mass"
    assert proposal.lengths == (2, 2, 0)
    assert row_of(proposal, 0)[:2] == ([2, 3], [-1, 0])
    assert row_of(proposal, 1)[:2] == ([4, 2], [-1, -1])  # newest first
    assert proposal.tree.parents[:, :2].tolist() == [[-1, 0], [-1, -1], [-1, -1]]
    none = rounds.drafter.propose([0, 0, 0], torch.zeros(3, nodes))
    assert none.lengths == (0, 0, 0)
    assert none.tokens.shape == (3, 0)


def found_by_search(texts, size, most):
    """The latest distinct n-grams that start with the last text's last token, newest first."""
    found = []
    for text in reversed(texts):
        for start in range(len(text) - size, -1, -1):
            ngram = tuple(text[start : start + size])
            if ngram[0] == texts[-1][-1] and ngram[1:] not in found:
                found.append(ngram[1:])
    return found[:most]


@settings(max_examples=200)
@given(st.lists(TOKENS.filter(len), min_size=1, max_size=4), st.integers(2, 4), st.integers(1, 3))
def test_the_pool_holds_the_latest_ngrams_of_each_first_token(pieces, size, most):
    pool, text = NgramPool(size, most), []
    for piece in pieces:
        pool.extend(piece)
        text += piece
        assert pool.candidates() == found_by_search([text], size, most)
    assert all(len(rests) <= most for rests in pool.after.values())
    assert len(pool.tail) <= size


def test_an_ngram_that_comes_again_is_the_newest():
    pool = NgramPool(2, 2)
    pool.extend([0])
    for rest in (1, 2, 1, 3):
        pool.add((0, rest))
    assert pool.candidates() == [(3,), (1,)]


@settings(max_examples=200)
@given(st.lists(st.tuples(*[st.integers(0, 2)] * 4), max_size=6, unique=True), st.integers(0, 4))
def test_a_trie_holds_each_prefix_once(candidates, depth):
    tokens, parents = trie(candidates, depth)
    paths = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    prefixes = {candidate[:n] for candidate in candidates for n in range(1, depth + 1)}
    assert sorted(paths) == sorted(prefixes)  # each once, so siblings are distinct and prefixes shared
    assert [len(path) for path in paths] == sorted(len(path) for path in paths)
    for n in range(1, depth + 1):  # within a depth in the candidates' order
        assert [p for p in paths if len(p) == n] == list(dict.fromkeys(candidate[:n] for candidate in candidates))


def test_a_trie_by_hand():
    assert trie([(1, 2, 3), (4, 2, 3), (1, 2, 5)], 3) == ([1, 4, 2, 2, 3, 3, 5], [-1, -1, 0, 1, 2, 3, 2])
    assert trie([(1, 2, 3), (1, 5, 3)], 1) == ([1], [-1])
    assert trie([(1, 2)], 0) == trie([], 2) == ([], [])


@settings(max_examples=40)
@given(st.lists(st.tuples(TOKENS.filter(len), TOKENS), min_size=1, max_size=4), st.integers(1, 4))
def test_replay_follows_the_newest_ngram_of_the_text(sequences, depth):
    replayed = list(Lookahead(2, 3, 2).replay(sequences, SamplingParams(), depth))
    assert [index for index, _ in replayed] == scoring_order(sequences)
    for index, replay in replayed:
        prompt, output = sequences[index]
        assert replay.chains.shape == (len(output), depth)
        for position in range(len(output)):
            found = found_by_search([[*prompt, *output[:position]]], 3, 1)
            chain = list(found[0][:depth]) if found else []
            assert replay.chains[position].tolist() == chain + [-1] * (depth - len(chain))


@pytest.mark.parametrize("cycle", [6, 11])
def test_a_repetitive_chain_makes_more_than_one_and_a_half_tokens_a_round(cycle):
    target = counter(cycle)
    found = decode(ModelTarget(target), Lookahead(), GreedyVerifier(), [[0], [1, 3]], GREEDY, Limits(48), k=8)
    for transcript in found.transcripts:
        ids = [transcript.prompt_ids[-1], *transcript.output_ids]
        assert all(after == (before + 1) % cycle for before, after in itertools.pairwise(ids))
        assert len(transcript.output_ids) > 1.5 * len(transcript.rounds)


def test_the_window_alone_finds_what_the_text_has_not_shown():
    """Thirty tokens that never repeat: every accepted token comes from the window."""
    target = counter(64)
    prompt = [20, 10, 0]
    found = decode(ModelTarget(target), Lookahead(3, 3, 4), GreedyVerifier(), [prompt], GREEDY, Limits(30), k=4)
    assert found.transcripts[0].output_ids == tuple(range(1, 31))
    assert sum(found.transcripts[0].rounds) > 0


def test_a_forced_round_keeps_the_tree_and_accepts_a_branch_of_it():
    """What a tree costs is measured with its window, and with every depth of its branches accepted in turn."""
    drafter = FixedWidthDrafter(Lookahead(4, 3, 4), 2)
    decoded = decode(
        ModelTarget(counter(5)),
        drafter,
        ForcedVerifier(GreedyVerifier()),
        [[1, 2, 3, 4, 0, 1]],
        GREEDY,
        Limits(30),
        k=2,
    )
    assert {round_.proposed for round_ in decoded.rounds} >= {(2,)}
    assert set(decoded.transcripts[0].rounds) >= {0, 1, 2}


def never(name):
    raise AssertionError("lookahead needs no draft model")


@pytest.mark.parametrize(
    ("name", "numbers"), [("lookahead", (10, 5, 10)), ("lookahead:4,3,6", (4, 3, 6)), ("lookahead:1,2,1", (1, 2, 1))]
)
def test_it_is_made_by_name(name, numbers):
    drafter = create_drafter(name, counter(3), never)
    assert (drafter.window, drafter.size, drafter.most) == numbers
    assert drafter.name == "lookahead:" + ",".join(map(str, numbers))


@pytest.mark.parametrize(
    "argument", ["0,5,10", "a", "10", "10,5", "10,5,10,1", "10,1,10", "10,5,0", "-1,5,10", "1.5,5,10", "10,5,", " "]
)
def test_a_bad_argument_is_refused(argument):
    with pytest.raises(InputError, match=rf"--draft = 'lookahead:{argument}': takes W,N,G.*lookahead:10,5,10"):
        create_drafter(f"lookahead:{argument}", counter(3), never)
