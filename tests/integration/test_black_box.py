"""Two sets of transcripts of the same prompts, without any weights."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from commands import inside, refused, specaudit

from specaudit.audit import structure
from specaudit.audit.black_box import POSITIONS, compare
from specaudit.core.errors import InputError
from specaudit.core.types import SamplingParams, Transcript
from specaudit.engines.transcripts import write

SAMPLED, GREEDY = SamplingParams(temperature=0.8), SamplingParams(temperature=0)
KEYS = {"verdict", "tokens", "false_alarm_rate", "log10_e", "detectable_contamination", "cause", "tests"}
PROMPTS = 200


def outputs(seed, *, prompts=PROMPTS, each=1, tokens=20, contamination=0.0, params=SAMPLED, **fields):
    """Every prompt has a law of its own; ``contamination`` is the share of tokens that become token 0."""
    laws = np.random.default_rng(0).dirichlet(np.full(30, 0.3), prompts)
    rng = np.random.default_rng(seed)
    made = []
    for prompt in range(prompts):
        for copy in range(each):
            ids = np.where(rng.random(tokens) < contamination, 0, 1 + rng.choice(30, tokens, p=laws[prompt]))
            sampling = dataclasses.replace(params, seed=1 + 1000 * seed + copy)
            made.append(Transcript((prompt, 7), tuple(map(int, ids)), sampling, finish_reason="length", **fields))
    return made


def changed(transcripts, index, **fields):
    return [dataclasses.replace(t, **fields) if i == index else t for i, t in enumerate(transcripts)]


@pytest.mark.parametrize("each", [1, 3])
def test_two_samples_of_one_law(each):
    result = compare(outputs(1, each=each), outputs(2, each=each))
    assert result.keys() >= KEYS
    assert (result["verdict"], result["cause"], result["inconclusive_because"]) == ("no_violation_found", None, None)
    assert (result["tokens"], result["baseline_tokens"], result["prompts"]) == (20 * PROMPTS * each,) * 2 + (PROMPTS,)
    assert result["log10_e"] is None
    assert 0 < result["detectable_contamination"] < 1
    names = [f"position_{t}" for t in range(POSITIONS)]
    assert [test["name"] for test in result["tests"]] == [*names, "all_positions", *structure.EXPLANATIONS]
    assert result == compare(outputs(1, each=each), outputs(2, each=each))


def test_the_order_of_transcripts_does_not_matter():
    first, second = outputs(1), outputs(2, contamination=0.1)
    base = compare(first, second, false_alarm_rate=0.02)
    moved = compare(first[::-1], second[3:] + second[:3], false_alarm_rate=0.02)
    for one, other in zip(base["tests"], moved["tests"], strict=True):
        assert one["statistic"] == pytest.approx(other["statistic"])
        assert one["flagged"] == other["flagged"]


def test_a_contaminated_engine_is_found():
    """Five in a hundred tokens: too few at any one position, enough over whole outputs."""
    result = compare(outputs(1, contamination=0.05), outputs(2))
    assert (result["verdict"], result["cause"]["name"]) == ("violated", "all_positions")
    assert "over whole outputs, token 0 is written" in result["cause"]["text"]
    assert "0 by the baseline" in result["cause"]["text"]


def test_a_fault_at_one_position_is_found_there():
    """Where the detectable share of outputs has another token."""
    lossless = outputs(1, prompts=300)
    share = compare(lossless, outputs(2, prompts=300), false_alarm_rate=0.02)["detectable_contamination"]
    rng = np.random.default_rng(3)
    broken = [
        dataclasses.replace(t, output_ids=(*t.output_ids[:4], 99, *t.output_ids[5:])) if rng.random() < share else t
        for t in lossless
    ]
    result = compare(broken, outputs(2, prompts=300), false_alarm_rate=0.02)
    assert (result["verdict"], result["cause"]["name"]) == ("violated", "position_4")
    assert "at position 4, token 99 is written" in result["cause"]["text"]


def test_outputs_that_end_early_are_found():
    ended = [dataclasses.replace(t, output_ids=t.output_ids[:1], finish_reason="stop") for t in outputs(1)]
    result = compare(ended, outputs(2), false_alarm_rate=0.02)
    assert result["verdict"] == "violated"
    positions = [test for test in result["tests"] if test["name"].startswith("position_")]
    assert [test["flagged"] for test in positions] == [False] + [True] * (POSITIONS - 1)
    assert result["cause"]["text"] == "at position 1, 1 of the engine's outputs have ended and 0 of the baseline's"


def test_different_numbers_of_outputs_a_prompt():
    assert compare(outputs(1, each=1), outputs(2, each=4))["verdict"] == "no_violation_found"
    assert compare(outputs(1, each=2, contamination=0.1), outputs(2), false_alarm_rate=0.02)["verdict"] == "violated"


@pytest.mark.parametrize(("prompts", "why"), [(4, "no p-value can be below 0.12"), (60, "not even a token")])
def test_too_few_prompts_are_inconclusive_with_the_number_needed(prompts, why):
    result = compare(outputs(1, prompts=prompts), outputs(2, prompts=prompts))
    because = result["inconclusive_because"]
    assert (result["verdict"], result["detectable_contamination"]) == ("inconclusive", None)
    assert why in because
    needed = int(because.partition("; ")[2].partition(" are needed")[0])
    enough = [compare(outputs(1, prompts=n), outputs(2, prompts=n)) for n in (needed - 1, needed)]
    assert [r["verdict"] for r in enough] == ["inconclusive", "no_violation_found"]
    assert enough[1]["detectable_contamination"] == pytest.approx(1.0, rel=0.01)


def test_greedy_outputs():
    one = outputs(1, prompts=5, params=GREEDY)
    same = compare(one, one)
    assert (same["verdict"], same["tokens"], same["differences"]) == ("no_violation_found", 100, [])
    assert same["detectable_contamination"] == pytest.approx(1 - 0.05 ** (1 / 100))
    ids = one[3].output_ids
    other = changed(one, 3, output_ids=(*ids[:6], 99, *ids[7:]))
    other = changed(other, 4, output_ids=one[4].output_ids[:8], finish_reason="stop")
    result = compare(other, one)
    assert (result["verdict"], result["cause"]) == ("inconclusive", None)
    assert "2 of 5 greedy outputs differ" in result["inconclusive_because"]
    assert "near tie" in result["inconclusive_because"]
    assert result["differences"] == [
        {"transcript": 3, "position": 6, "emitted": 99, "baseline": ids[6]},
        {"transcript": 4, "position": 8, "emitted": None, "baseline": one[4].output_ids[8]},
    ]
    # A baseline that is not deterministic itself: any of its outputs will do.
    assert compare(other, [*one, *other])["verdict"] == "no_violation_found"


@pytest.mark.parametrize("params", [SAMPLED, GREEDY], ids=["sampled", "greedy"])
@pytest.mark.parametrize(
    ("fields", "cause"),
    [({"rounds": (3, 3)}, "structure"), ({"engine": {"preserves_target": False}}, "declared_lossy")],
)
def test_what_a_transcript_says_of_itself(params, fields, cause):
    first = outputs(1, prompts=3, params=params)
    result = compare(changed(first, 1, **fields), outputs(2, prompts=3, params=params))
    assert (result["verdict"], result["cause"]["name"]) == ("violated", cause)


@pytest.mark.parametrize(
    ("transcripts", "baseline", "said"),
    [
        (outputs(1), outputs(2, params=SamplingParams(temperature=0.7)), "baseline = .*made under .*sample both"),
        (outputs(1), outputs(2, prompts=150), "transcripts = '200 prompts': 50 of its prompts are not in the baseline"),
        (outputs(1, prompts=150), outputs(2), "baseline = '200 prompts': 50 of its prompts are not in the transcripts"),
        ([], outputs(2), "transcripts = 0: hold no output token"),
        (outputs(1), outputs(2, tokens=0), "baseline = 200: hold no output token"),
        (outputs(1) + outputs(2, params=GREEDY), outputs(3), r"transcripts = \{'temperature': \[0, 0.8\]\}: were made"),
        (outputs(1), outputs(2, tokens=21), r"\[20, 21\]: outputs of one prompt were cut.*give both the same max_new"),
        (outputs(1) + outputs(1), outputs(2), "transcripts = 1001: 2 outputs of one prompt have this seed"),
        (outputs(1), outputs(2, engine={"preserves_target": False}), "baseline = None: names a verification rule"),
    ],
)
def test_what_cannot_be_compared(transcripts, baseline, said):
    with pytest.raises(InputError, match=said):
        compare(transcripts, baseline)


# The command


@pytest.fixture
def here(tmp_path):
    write(tmp_path / "engine.jsonl", outputs(1))
    write(tmp_path / "broken.jsonl", outputs(1, contamination=0.05))
    write(tmp_path / "baseline.jsonl", outputs(2))
    write(tmp_path / "few.jsonl", outputs(2, prompts=5))
    write(tmp_path / "greedy.jsonl", outputs(1, prompts=5, params=GREEDY))
    write(tmp_path / "other-greedy.jsonl", outputs(2, prompts=5, params=GREEDY))
    (tmp_path / "empty.jsonl").touch()
    with inside(tmp_path):
        yield tmp_path


@pytest.mark.parametrize(
    ("files", "code", "said"),
    [
        (("engine", "baseline"), 0, "verdict: no_violation_found"),
        (("broken", "baseline"), 1, "likely cause: over whole outputs, token 0 is written 1"),
        (("few", "few"), 3, "because: too few outputs"),
        (("greedy", "other-greedy"), 3, "  transcript 0 position 0: emitted "),
    ],
)
def test_two_files_are_audited(here, files, code, said):
    argv = ("audit", "--transcripts", f"{files[0]}.jsonl", "--baseline", f"{files[1]}.jsonl")
    done = specaudit(*argv, "--out", "audit.json", "--json")
    assert done.code == code
    assert done.json["schema"] == "specaudit.audit/1"
    assert done.json["provenance"]["baseline_file"] == f"{files[1]}.jsonl"
    assert done.json["provenance"]["sampling"]["temperature"] == (0 if "greedy" in files else 0.8)
    words = specaudit(*argv)
    assert words.code == code
    assert said in words.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"--baseline": "empty.jsonl"}, ("--baseline = empty.jsonl: holds no transcript", "write some")),
        ({"--transcripts": "empty.jsonl"}, ("--transcripts = empty.jsonl: holds no transcript", "write some")),
        ({"--baseline": "nowhere.jsonl"}, ("--baseline = nowhere.jsonl: cannot be read", "check the path")),
        ({"--baseline": "few.jsonl"}, ("195 of its prompts are not in the baseline", "run both engines on")),
        ({"--baseline": "greedy.jsonl"}, ("baseline = ", "'temperature': 0.8", "sample both sides alike")),
        ({"--target": "zoo:tiny"}, ("--target = 'zoo:tiny': --baseline compares transcripts alone", "leave it out")),
        ({"--draft": "zoo:tiny"}, ("--draft = 'zoo:tiny': --baseline compares transcripts alone", "leave it out")),
        ({"--false-alarm-rate": 0.9}, ("--false-alarm-rate = 0.9: must be above 0", "use 0.001")),
        ({"--out": "empty.jsonl/new"}, ("--out = empty.jsonl/new: empty.jsonl is not a folder", "name a path")),
    ],
)
def test_unusable_files_are_refused(here, options, said):
    options = {"--transcripts": "engine.jsonl", "--baseline": "baseline.jsonl", "--out": "new.json", **options}
    refused(here, ["audit", *(part for pair in options.items() for part in pair)], *said)


def test_no_model_library_is_loaded(here):
    code = """
import sys
from specaudit.cli import main
sys.argv = ["specaudit", "audit", "--transcripts", "few.jsonl", "--baseline", "few.jsonl", "--json"]
try:
    main()
except SystemExit as ended:
    assert ended.code == 3
assert not {"torch", "transformers"} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("fault", "verdict"), [(None, "no_violation_found"), ("argmax", "violated")])
def test_the_own_decoder_beside_its_baseline(tabular_pair, faulty_verifiers, fault, verdict):
    """Every prompt several times over, each time under another seed; the engine's seeds are not the baseline's."""
    prompts, params = tabular_pair.prompts * 60, SamplingParams(temperature=0.8)
    expected = tabular_pair.decode(None, params, prompts, max_new_tokens=6, seeds=range(1, 301))
    made = tabular_pair.decode(
        "draft", params, prompts, k=3, max_new_tokens=6, seeds=range(301, 601), verifier=faulty_verifiers.get(fault)
    )
    result = compare(made.transcripts, expected.transcripts, false_alarm_rate=0.01)
    assert (result["verdict"], result["transcripts"], result["prompts"]) == (verdict, 300, 5)
