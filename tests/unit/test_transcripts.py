import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.core.errors import InputError
from specaudit.core.types import SamplingParams, Transcript
from specaudit.engines.transcripts import read, to_line, write

IDS = st.lists(st.integers(0, 200_000), max_size=8).map(tuple)
TRANSCRIPTS = st.builds(
    Transcript,
    prompt_ids=IDS,
    output_ids=IDS,
    sampling=st.builds(
        SamplingParams,
        temperature=st.floats(0, 3),
        top_k=st.integers(0, 100),
        top_p=st.floats(0.01, 1),
        min_p=st.floats(0, 0.9),
        repetition_penalty=st.sampled_from([1.0, 1.1]),
        frequency_penalty=st.sampled_from([0.0, -0.3]),
        seed=st.integers(0, 2**53 - 1),
    ),
    rounds=st.none() | st.lists(st.integers(0, 9), max_size=4).map(tuple),
    engine=st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers(), max_size=3),
    finish_reason=st.none() | st.sampled_from(["stop", "length"]),
    category=st.none() | st.text(max_size=8),
)


@settings(max_examples=60)
@given(st.lists(TRANSCRIPTS, min_size=1, max_size=4))
def test_what_is_written_is_read_back(tmp_path_factory, transcripts):
    file = tmp_path_factory.mktemp("round") / "transcripts.jsonl"
    assert write(file, transcripts) == len(transcripts)
    assert list(read(file)) == transcripts
    assert len(file.read_text(encoding="utf-8").splitlines()) >= len(transcripts)


def test_a_line_carries_the_schema_and_the_documented_fields():
    row = json.loads(to_line(Transcript((1, 2), (3,), SamplingParams(temperature=0.8, seed=1))))
    assert row == {
        "schema": "specaudit.transcript/1", "prompt_ids": [1, 2], "output_ids": [3],
        "sampling": {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1},
        "rounds": None, "engine": {}, "finish_reason": None, "category": None,
    }  # fmt: skip


def test_another_engines_line_needs_only_ids_and_sampling(tmp_path):
    file = tmp_path / "other.jsonl"
    row = {"schema": "specaudit.transcript/1", "prompt_ids": [1], "output_ids": [2, 3], "sampling": {"temperature": 1}}
    file.write_text("\n" + json.dumps(row) + "\n\n", encoding="utf-8")
    (transcript,) = read(file)
    assert transcript.output_ids == (2, 3)
    assert transcript.rounds is None


def test_writing_stops_without_a_trace_when_the_source_fails(tmp_path):
    def source():
        yield Transcript((1,), (2,), SamplingParams())
        raise RuntimeError("the engine died")

    with pytest.raises(RuntimeError, match="the engine died"):
        write(tmp_path / "transcripts.jsonl", source())
    assert list(tmp_path.iterdir()) == []


GOOD = json.loads(to_line(Transcript((1,), (2,), SamplingParams())))
BAD_LINES = [
    ("{not json", "is not JSON"),
    ("[1, 2]", "has the schema 'list'"),
    (json.dumps({**GOOD, "schema": "specaudit.transcript/2"}), "has the schema 'specaudit.transcript/2'"),
    (json.dumps({key: value for key, value in GOOD.items() if key != "schema"}), "has the schema None"),
    (json.dumps({key: value for key, value in GOOD.items() if key != "output_ids"}), "has no field 'output_ids'"),
    (json.dumps({key: value for key, value in GOOD.items() if key != "sampling"}), "has no field 'sampling'"),
    (json.dumps({**GOOD, "prompt_ids": "12"}), "prompt_ids must be a list"),
    (json.dumps({**GOOD, "output_ids": [1, -2]}), "output_ids must be a list of non-negative integers"),
    (json.dumps({**GOOD, "output_ids": [1, 2.5]}), "output_ids must be a list of non-negative integers"),
    (json.dumps({**GOOD, "output_ids": [True]}), "output_ids must be a list of non-negative integers"),
    (json.dumps({**GOOD, "rounds": ["many"]}), "rounds must be a list of non-negative integers"),
    (json.dumps({**GOOD, "rounds": [1.5]}), "rounds must be a list of non-negative integers"),
    (json.dumps({**GOOD, "engine": "vllm"}), "engine must be an object"),
    (json.dumps({**GOOD, "sampling": {"temperature": 1, "topp": 1}}), "unexpected keyword argument 'topp'"),
    (json.dumps({**GOOD, "sampling": {"temprature": 1}}), "sampling must be an object with the temperature"),
    (json.dumps({**GOOD, "sampling": {"top_p": 0.9}}), "sampling must be an object with the temperature"),
    (json.dumps({**GOOD, "sampling": None}), "sampling must be an object with the temperature"),
    (json.dumps({**GOOD, "sampling": {"temperature": "hot"}}), "has a wrong field"),
    (json.dumps({**GOOD, "sampling": {"temperature": -1}}), "temperature = -1: must be zero"),
    (json.dumps({**GOOD, "sampling": {"temperature": 1, "top_p": float("nan")}}), "top_p = nan: must be above 0"),
]


@pytest.mark.parametrize(("line", "problem"), BAD_LINES, ids=[problem for _, problem in BAD_LINES])
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path, line, problem):
    file = tmp_path / "transcripts.jsonl"
    file.write_text(f"{json.dumps(GOOD)}\n\n{line}\n", encoding="utf-8")
    reader = read(file, "--transcripts")
    assert next(reader).output_ids == (2,)
    with pytest.raises(InputError) as caught:
        next(reader)
    assert caught.value.argument == "--transcripts"
    assert f"{file}:3" in str(caught.value.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "cannot be read"), (b"", "holds no transcript"), (b"\xff\xfe", "is not UTF-8")]
)
def test_a_file_that_is_no_transcript_file_is_refused(tmp_path, content, problem):
    file = tmp_path / "transcripts.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=problem):
        list(read(file))
