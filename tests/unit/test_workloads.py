"""Prompts from every format, and a one-line refusal that names the argument for everything that cannot be read."""

import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specaudit.acceptance.workloads import Prompt, load_workload, prompt_ids
from specaudit.core.errors import InputError

ROWS = [
    {"prompt": "Say ein Wort: Straße.", "category": "german"},
    {"prompt": 'a "quoted", longer\nprompt\u2028with separators', "category": "odd"},
    {"prompt": "2020-01-01 00:00:00", "category": None},
]


def write(path: Path, content) -> str:
    """Write text, bytes or rows (as JSON lines), compressed where the name ends in .gz."""
    if isinstance(content, list):
        content = "".join(json.dumps(row) + "\n" for row in content)
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def write_csv(path: Path, rows, header=None) -> str:
    with path.open("w", newline="", encoding="utf-8") as handle:
        csv.writer(handle).writerows(([header] if header else []) + rows)
    return str(path)


def texts(workload) -> list[str]:
    return [prompt.text for prompt in workload.prompts]


def refused(argument: str, *parts: str, **arguments) -> InputError:
    """Assert that loading is refused in one line with the argument's name and these parts in it."""
    with pytest.raises(InputError) as caught:
        load_workload(**arguments)
    message = str(caught.value)
    assert caught.value.argument == argument
    assert message.startswith(f"{argument} = ")
    assert "\n" not in message
    assert caught.value.remedy
    for part in parts:
        assert part in message
    return caught.value


# Formats


@pytest.fixture(params=["", ".gz"], ids=["plain", "gz"])
def gz(request) -> str:
    return request.param


def check_rows(dataset: str) -> None:
    workload = load_workload(dataset)
    assert texts(workload) == [row["prompt"] for row in ROWS]
    assert [prompt.category for prompt in workload.prompts] == ["german", "odd", None]
    assert [prompt.index for prompt in workload.prompts] == [0, 1, 2]
    assert all(prompt.turns == (prompt.text,) and prompt.messages is None for prompt in workload.prompts)
    assert workload.name == Path(dataset).name
    assert workload.skipped == {}


def test_jsonl(tmp_path, gz):
    check_rows(write(tmp_path / f"x.jsonl{gz}", ROWS))


@pytest.mark.parametrize(
    "document",
    [
        json.dumps(ROWS),
        json.dumps({"version": "1", "data": ROWS, "tags": ["a"]}, indent=1),
        "".join(json.dumps(r) + "\n" for r in ROWS),
    ],
    ids=["list", "object", "lines"],
)
def test_json(tmp_path, gz, document):
    check_rows(write(tmp_path / f"x.json{gz}", document))


def test_json_with_a_single_row(tmp_path):
    row = {"messages": [{"role": "user", "content": "hi"}], "category": "c"}
    assert texts(load_workload(write(tmp_path / "x.json", json.dumps(row)))) == ["hi"]


def test_csv(tmp_path, gz):
    plain = Path(write_csv(tmp_path / "x.csv", [[r["prompt"], r["category"]] for r in ROWS], ["prompt", "category"]))
    check_rows(write(tmp_path / f"y.csv{gz}", plain.read_bytes()))


def test_parquet(tmp_path, gz):
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame(ROWS).to_parquet(tmp_path / "x.parquet")
    check_rows(write(tmp_path / f"y.parquet{gz}", (tmp_path / "x.parquet").read_bytes()))


def test_tsv_takes_quotes_literally(tmp_path, gz):
    content = 'question\ttask\n"Hi" she said\tone\n"open\ttwo\r\n'
    workload = load_workload(write(tmp_path / f"x.tsv{gz}", content))
    assert texts(workload) == ['"Hi" she said', '"open']
    assert [prompt.category for prompt in workload.prompts] == ["one", "two"]


def test_text_is_a_prompt_a_line(tmp_path, gz):
    workload = load_workload(write(tmp_path / f"x.txt{gz}", "one\u2028still one\r\n\n  \n two \nthree"))
    assert texts(workload) == ["one\u2028still one", " two ", "three"]
    assert [prompt.index for prompt in workload.prompts] == [0, 3, 4]
    assert workload.skipped == {"blank line": 2}


@pytest.mark.parametrize("name", ["x.csv", "x.tsv"])
def test_a_number_reads_a_file_without_a_header(tmp_path, name):
    sep = "," if name.endswith("csv") else "\t"
    dataset = write(tmp_path / name, f"first{sep}a\nsecond{sep}b\n")
    workload = load_workload(dataset, prompt_column="0", category_column="1")
    assert [(p.text, p.category, p.index) for p in workload.prompts] == [("first", "a", 0), ("second", "b", 1)]
    refused("--prompt-column", "'2'", "'0', '1'", dataset=dataset, prompt_column="2")


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    for name, content in [("x.csv", "prompt\nhi\n"), ("x.jsonl", '{"prompt": "hi"}\n'), ("x.txt", "hi")]:
        assert texts(load_workload(write(tmp_path / name, b"\xef\xbb\xbf" + content.encode()))) == ["hi"]


def test_a_csv_field_longer_than_the_csv_module_allows(tmp_path):
    limit = csv.field_size_limit()
    long = "word " * 40_000
    assert texts(load_workload(write_csv(tmp_path / "x.csv", [[long]], ["prompt"]))) == [long]
    assert csv.field_size_limit() == limit


def test_upper_case_extension_and_home(tmp_path, monkeypatch):
    write(tmp_path / "X.JSONL", ROWS)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    check_rows("~/X.JSONL")


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), min_size=1, max_size=5))
def test_any_text_survives_json_lines_and_csv(tmp_path_factory, prompts):
    folder = tmp_path_factory.mktemp("any")
    assert texts(load_workload(write(folder / "x.jsonl", [{"prompt": text} for text in prompts]))) == prompts
    # The csv module of Python 3.10 cannot read NUL, and a bare carriage return is a line end to it.
    tame = [text.replace("\0", " ").replace("\r", " ") for text in prompts]
    if all(text.strip() for text in tame):
        assert texts(load_workload(write_csv(folder / "x.csv", [[t, "c"] for t in tame], ["prompt", "task"]))) == tame


# Layouts

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "2"},
]
SHARE_GPT = [{"from": "human", "value": "One?"}, {"from": "gpt", "value": "1"}]


def only(tmp_path, row, **arguments) -> Prompt:
    (prompt,) = load_workload(write(tmp_path / "x.jsonl", [row]), **arguments).prompts
    return prompt


@pytest.mark.parametrize(
    ("row", "turns"),
    [
        ({"text": "t", "turns": ["a", "b"], "prompt": "p"}, ("a", "b")),
        ({"turns": 3, "prompt": "p"}, ("p",)),
        ({"messages": CHAT, "prompt": "p"}, ("One?", "Two?")),
        ({"conversations": SHARE_GPT, "question": "q"}, ("One?",)),
        ({"prompt": "p", "question": "q", "text": "t"}, ("p",)),
        ({"prompt": CHAT}, ("One?", "Two?")),
        ({"question": "q", "instruction": "i"}, ("q",)),
        ({"instruction": "i", "input": "", "text": "t"}, ("i",)),
        ({"instruction": "i", "input": "more", "output": "o"}, ("i\n\nmore",)),
        ({"text": "t", "other": 1}, ("t",)),
    ],
)
def test_known_layouts(tmp_path, row, turns):
    assert only(tmp_path, row).turns == turns


@pytest.mark.parametrize(("value", "turns"), [("a", ("a",)), (["a", "b"], ("a", "b")), (CHAT, ("One?", "Two?"))])
def test_a_named_column_holds_text_turns_or_messages(tmp_path, value, turns):
    assert only(tmp_path, {"ask": value, "prompt": "p"}, prompt_column="ask").turns == turns


def test_a_named_instruction_is_taken_alone(tmp_path):
    assert only(tmp_path, {"instruction": "i", "input": "x"}, prompt_column="instruction").turns == ("i",)


def test_messages_are_kept(tmp_path):
    assert only(tmp_path, {"messages": CHAT}).messages == tuple(CHAT)
    expected = ({"role": "user", "content": "One?"}, {"role": "assistant", "content": "1"})
    assert only(tmp_path, {"conversations": SHARE_GPT}).messages == expected
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert only(tmp_path, {"messages": parts}).turns == ("ab",)


def test_messages_from_parquet_lose_the_fields_that_arrow_adds(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    called = [{"role": "user", "content": "x"}, {"role": "tool", "content": "y", "name": "f"}]
    parquet.write_table(pyarrow.table({"messages": [CHAT, called]}), tmp_path / "rows.parquet")
    first, second = load_workload(str(tmp_path / "rows.parquet")).prompts
    assert first.messages == tuple(CHAT)
    assert second.messages == tuple(called)
    lists = {"role": ["user", "assistant"], "content": ["x", "y"]}
    parquet.write_table(pyarrow.table({"messages": [lists]}), tmp_path / "lists.parquet")
    assert load_workload(str(tmp_path / "lists.parquet")).prompts[0].turns == ("x",)


@pytest.mark.parametrize(
    ("row", "named", "category"),
    [
        ({"category": "c", "task": "t"}, None, "c"),
        ({"task": "t", "subset": "s"}, None, "t"),
        ({"subset": "s"}, None, "s"),
        ({"other": "o"}, None, None),
        ({"category": "c", "other": "o"}, "other", "o"),
        ({"other": 7}, "other", "7"),
        ({"category": ""}, None, None),
    ],
)
def test_category(tmp_path, row, named, category):
    assert only(tmp_path, {"prompt": "p", **row}, category_column=named).category == category


# Skips


def test_every_skip_is_counted_by_name(tmp_path):
    rows = [
        {"prompt": "good"},
        {"prompt": 5},
        {"prompt": ["a", 5]},
        {"prompt": {"a": 1}},
        {"prompt": " \n"},
        {"prompt": []},
        {"prompt": None},
        {"other": 1},
        {"prompt": [{"role": "assistant", "content": "a"}]},
        {"prompt": [{"content": "a"}]},
        {"prompt": "half \ud800"},
        {"prompt": [{"role": "user", "content": None}]},
        {"prompt": "last"},
    ]
    workload = load_workload(write(tmp_path / "x.jsonl", rows[:5]))
    assert workload.skipped == {"prompt is not text": 3, "empty prompt": 1}
    path = tmp_path / "y.jsonl"
    path.write_text("\n" + "\n\n".join(json.dumps(row) for row in rows))
    workload = load_workload(str(path))
    assert [(prompt.text, prompt.index) for prompt in workload.prompts] == [("good", 0), ("last", 12)]
    assert workload.skipped == {
        "blank line": 13,
        "prompt is not text": 4,
        "empty prompt": 2,
        "prompt is missing": 2,
        "chat has no user turn": 1,
        "chat message has no role": 1,
        "prompt is not valid Unicode": 1,
    }


def test_no_usable_row_is_an_error(tmp_path):
    rows = [{"prompt": 1}, {"prompt": 2}, {"prompt": ""}]
    dataset = write(tmp_path / "x.jsonl", rows)
    refused("--dataset", "2 x prompt is not text", "1 x empty prompt", "--prompt-column", dataset=dataset)


# Limit, seed, fingerprint


@pytest.fixture
def hundred(tmp_path) -> str:
    return write(tmp_path / "hundred.jsonl", [{"prompt": f"p{i}" if i % 10 else ""} for i in range(100)])


def test_limit_draws_by_seed_in_order_without_replacement(hundred):
    def draw(limit, seed):
        return [prompt.index for prompt in load_workload(hundred, limit=limit, seed=seed).prompts]

    ten = draw(10, 0)
    assert len(ten) == 10
    assert ten == sorted(set(ten))
    assert ten != list(range(1, 11))
    assert ten == draw(10, 0) != draw(10, 1)
    assert set(ten) < set(draw(30, 0))
    assert len(draw(90, 0)) == len(draw(91, 3)) == len(draw(None, 0)) == 90


def test_limit_draws_every_row_alike(hundred):
    counts = dict.fromkeys((i for i in range(100) if i % 10), 0)
    for seed in range(200):
        for prompt in load_workload(hundred, limit=9, seed=seed).prompts:
            counts[prompt.index] += 1
    # Each of 90 rows is drawn 20 times on average, with a standard deviation of 4.2.
    assert min(counts.values()) > 3
    assert max(counts.values()) < 41


def test_skips_are_counted_over_the_whole_data_set(hundred):
    assert load_workload(hundred, limit=1).skipped == {"empty prompt": 10}


@pytest.mark.parametrize("limit", [0, -3])
def test_limit_below_one(hundred, limit):
    refused("--limit", str(limit), "at least 1", dataset=hundred, limit=limit)


def test_fingerprint_is_of_what_was_selected(tmp_path, hundred):
    whole = load_workload(hundred)
    copy = write(tmp_path / "copy.jsonl.gz", Path(hundred).read_bytes())
    assert load_workload(copy).fingerprint == whole.fingerprint
    assert load_workload(hundred, limit=50).fingerprint != whole.fingerprint
    changed = write(tmp_path / "changed.jsonl", Path(hundred).read_text().replace("p99", "p98"))
    assert load_workload(changed).fingerprint != whole.fingerprint
    assert len(whole.fingerprint) == 16


# Refusals


def test_missing_file(tmp_path):
    refused("--dataset", "no such file", dataset=str(tmp_path / "none.jsonl"))
    refused("--dataset", "no such file", dataset="folder/none.jsonl.gz")
    refused("--dataset", "no such file", "owner/name", dataset="./none")
    # A bare word would be a reader's name to the datasets library, and load whatever lies in the folder.
    refused("--dataset", "no such file", "owner/name", dataset="json")
    refused("--dataset", "no such file", dataset="a prompt, given by mistake " * 40)


def test_folder(tmp_path):
    refused("--dataset", "folder", dataset=str(tmp_path))


@pytest.mark.parametrize("name", ["x.xml", "x", "x.gz", "x.jsonl.zip"])
def test_unknown_extension(tmp_path, name):
    refused("--dataset", ".jsonl, .json, .csv, .tsv, .parquet, .txt", dataset=write(tmp_path / name, "hello"))


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.csv", "x.tsv", "x.parquet", "x.txt", "x.jsonl.gz"])
def test_empty_file(tmp_path, name):
    (tmp_path / name).touch()
    refused("--dataset", "0 bytes", dataset=str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl", "\n\n"),
        ("x.jsonl.gz", ""),
        ("x.json", "[]"),
        ("x.json", '{"data": []}'),
        ("x.csv", "prompt,category\n"),
        ("x.csv", "\n"),
        ("x.tsv", "prompt\n\n"),
        ("x.txt", " \n\n"),
    ],
)
def test_no_rows(tmp_path, name, content):
    refused("--dataset", "no rows", dataset=write(tmp_path / name, content))


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.json"])
@pytest.mark.parametrize("bad", ['{"prompt": "b"', "{'prompt': 1}", "1" * 5000, "[" * 100_000])
def test_line_that_is_not_json(tmp_path, name, bad):
    content = f'{{"prompt": "a"}}\n\n{bad}\n{{"prompt": "c"}}\n'
    refused("--dataset", "line 3 is", "JSON", dataset=write(tmp_path / name, content))


def test_line_that_is_no_object(tmp_path):
    refused("--dataset", "line 2", "object", dataset=write(tmp_path / "x.jsonl", '{"prompt": "a"}\n"b"\n'))


@pytest.mark.parametrize(
    ("document", "part"),
    [
        ('[\n {"prompt": "a"},\n {"prompt" "b"}\n]', "line 3 is not JSON"),
        ('[{"prompt": "a"}, "b"]', "row 1"),
        ('{"a": [{"x": 1}], "b": [{"x": 1}]}', "'a', 'b'"),
        ('"text"', "list of rows"),
        ("hello", "line 1 is not JSON"),
    ],
)
def test_json_document_without_rows(tmp_path, document, part):
    refused("--dataset", part, dataset=write(tmp_path / "x.json", document))


@pytest.mark.parametrize("name", ["x.jsonl", "x.json", "x.csv", "x.tsv", "x.txt", "x.txt.gz"])
def test_invalid_utf8(tmp_path, name):
    dataset = write(tmp_path / name, b'{"prompt": "a"}\n{"prompt": "caf\xe9"}\n')
    refused("--dataset", "line 2 is not UTF-8", "0xe9", dataset=dataset)


def test_broken_gzip(tmp_path):
    whole = gzip.compress(json.dumps({"prompt": "word " * 100}).encode())
    for name, content in [("a", b"plain text"), ("b", whole[:-20]), ("c", whole[:12] + b"\xff" * 30)]:
        path = tmp_path / f"{name}.jsonl.gz"
        path.write_bytes(content)
        refused("--dataset", "gzip", dataset=str(path))


def test_broken_parquet(tmp_path):
    refused("--dataset", "not a Parquet file", dataset=write(tmp_path / "x.parquet", "hello, I am text"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="this user may read every file")
def test_unreadable_file(tmp_path):
    dataset = write(tmp_path / "x.txt", "hello")
    Path(dataset).chmod(0)
    refused("--dataset", "cannot be read", dataset=dataset)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("x.csv", "prompt,task\na,b\nc,d,e\n", "line 3 has 3 fields where the first line has 2"),
        ("x.csv", "prompt,task\na\n", "line 2 has 1 fields"),
        ("x.csv", 'prompt,task\n"a,b\n', "is not CSV"),
        ("x.tsv", "prompt\ttask\na\tb\tc\n", "line 2 has 3 fields"),
        ("x.csv", "prompt,prompt\na,b\n", "column twice: 'prompt'"),
    ],
)
def test_uneven_table(tmp_path, name, content, part):
    refused("--dataset", part, dataset=write(tmp_path / name, content))


def test_wrong_columns(tmp_path):
    dataset = write(tmp_path / "x.jsonl", [{"prompt": "a", "b": 1}, {"c": 2}])
    refused("--prompt-column", "'prompts'", "'prompt', 'b', 'c'", dataset=dataset, prompt_column="prompts")
    refused("--category-column", "'kind'", "'prompt', 'b', 'c'", dataset=dataset, category_column="kind")
    refused("--prompt-column", "'Prompt'", "turns", dataset=write(tmp_path / "y.jsonl", [{"Prompt": "a"}]))


@pytest.mark.parametrize("name", ["x.csv", "x.tsv"])
def test_no_known_column_offers_a_number(tmp_path, name):
    content = "A question that is a whole row of its own and is long?\nAnother?\n"
    error = refused(
        "--prompt-column", "'A question that is a whole row of its...'", dataset=write(tmp_path / name, content)
    )
    assert "column number such as 0" in error.remedy


def test_a_file_has_one_split(tmp_path):
    dataset = write(tmp_path / "x.jsonl", ROWS)
    refused("--split", "'test'", "'train'", dataset=dataset, split="test")
    assert len(load_workload(dataset, split="train").prompts) == 3


# The bundled prompts


def test_bundled_prompts():
    import specaudit

    if not (Path(specaudit.__file__).parent / "zoo" / "tiny" / "prompts.jsonl").is_file():
        pytest.skip("the bundled prompts are not built yet")
    workload = load_workload("zoo:prompts")
    assert workload.name == "zoo:prompts"
    assert workload.skipped == {}
    assert all(prompt.category for prompt in workload.prompts)


def test_unknown_bundled_set():
    refused("--dataset", "zoo:prompts", dataset="zoo:promts")


# Real files


@pytest.mark.parametrize(
    ("name", "column", "prompts", "turns", "category", "start"),
    [
        ("spec_bench.jsonl", None, 480, 560, "writing", "Compose an engaging travel blog post"),
        ("humaneval.jsonl.gz", None, 164, 164, None, "from typing import List"),
        ("gsm8k_test.jsonl", None, 1319, 1319, None, "Janet\u2019s ducks lay 16 eggs per day."),
        ("mt_bench.jsonl", None, 80, 160, "writing", "Compose an engaging travel blog post"),
        ("mgsm_de.tsv", "0", 250, 250, None, "Janets Enten legen 16 Eier pro Tag."),
        ("mgsm_ja.tsv", "0", 250, 250, None, "ジャネットのアヒルは1日に16個の卵を生みます。"),
        ("mgsm_zh.tsv", "0", 250, 250, None, "珍妮特的鸭子每天下 16 颗蛋。"),
    ],
)
def test_real_workload(shared_data, name, column, prompts, turns, category, start):
    path = shared_data / "workloads" / name
    if not path.is_file():
        pytest.skip(f"no {path}")
    workload = load_workload(str(path), prompt_column=column)
    assert len(workload.prompts) == prompts
    assert sum(len(prompt.turns) for prompt in workload.prompts) == turns
    assert workload.skipped == {}
    assert workload.prompts[0].category == category
    assert workload.prompts[0].text.startswith(start)


def test_real_table_without_a_header_offers_a_number(shared_data):
    path = shared_data / "workloads" / "mgsm_de.tsv"
    if not path.is_file():
        pytest.skip(f"no {path}")
    assert "number such as 0" in refused("--prompt-column", "Janets Enten", dataset=str(path)).remedy


# The hub: the datasets library reads a local folder in the layout of a repository, under a hub id.

CARD = """---
configs:
{configs}
---
"""


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A repository `some/set` with the configurations given; nothing else can be reached."""
    datasets = pytest.importorskip("datasets")
    folder = tmp_path / "repository"
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for name in ["load_dataset_builder", "get_dataset_config_names"]:
        real = getattr(datasets, name)

        def redirected(path, *arguments, real=real):
            return real(str(folder) if path == "some/set" else path, *arguments)

        monkeypatch.setattr(datasets, name, redirected)

    def publish(**configs: dict[str, list[dict]]) -> None:
        card = []
        for config, splits in configs.items():
            card.append(f"- config_name: {config}\n  data_files:")
            for split, rows in splits.items():
                (folder / config).mkdir(parents=True, exist_ok=True)
                write(folder / config / f"{split}.jsonl", rows)
                card.append(f"  - split: {split}\n    path: {config}/{split}.jsonl")
        (folder / "README.md").write_text(CARD.format(configs="\n".join(card)))

    return publish


def rows_of(*prompts: str) -> list[dict]:
    return [{"question": text, "task": "t", "other": 1} for text in prompts]


@pytest.fixture
def gsm(hub):
    hub(main={"train": rows_of("a"), "test": rows_of("b", "c")}, socratic={"train": rows_of("d")})


def test_hub_configuration_and_split(gsm, capfd):
    workload = load_workload("some/set")
    assert texts(workload) == ["b", "c"]
    assert workload.prompts[0].category == "t"
    assert workload.name == "some/set:main[test]"
    assert texts(load_workload("some/set:main", split="train")) == ["a"]
    assert texts(load_workload("some/set:socratic")) == ["d"]
    assert capfd.readouterr() == ("", "")


def test_hub_refusals(gsm):
    refused("--split", "'validation'", "'train', 'test'", dataset="some/set", split="validation")
    refused("--dataset", "'mian'", "'main', 'socratic'", "some/set:main", dataset="some/set:mian")
    refused("--prompt-column", "'question', 'task', 'other'", dataset="some/set", prompt_column="query")


def test_hub_several_configurations_and_none_named(hub):
    hub(one={"train": rows_of("a")}, two={"train": rows_of("b")})
    refused("--dataset", "'one', 'two'", "some/set:one", dataset="some/set")


def test_hub_default_configuration(hub):
    hub(default={"train": rows_of("a")}, two={"train": rows_of("b")})
    workload = load_workload("some/set")
    assert workload.name == "some/set[train]"
    assert texts(workload) == ["a"]


def test_hub_class_labels_are_named(hub, monkeypatch):
    datasets = pytest.importorskip("datasets")
    hub(default={"train": [{"text": "a", "category": 1}, {"text": "b", "category": -1}]})
    load = datasets.load_dataset_builder

    def labelled(*arguments):
        builder = load(*arguments)
        names = datasets.ClassLabel(names=["no", "yes"])
        builder.info.features = datasets.Features({"text": datasets.Value("string"), "category": names})
        return builder

    monkeypatch.setattr(datasets, "load_dataset_builder", labelled)
    assert [prompt.category for prompt in load_workload("some/set").prompts] == ["yes", None]


def test_hub_other_errors_are_told_in_one_line(hub, monkeypatch):
    datasets = pytest.importorskip("datasets")

    def fail(*arguments):
        raise RuntimeError("several\nlines")

    monkeypatch.setattr(datasets, "load_dataset_builder", fail)
    refused("--dataset", "cannot be loaded", "RuntimeError: several lines", "local file", dataset="some/set")


def test_hub_leaves_the_libraries_as_they_were(gsm):
    utils = [pytest.importorskip("datasets").utils, pytest.importorskip("huggingface_hub").utils]
    before = [(each.are_progress_bars_disabled(), each.logging.get_verbosity()) for each in utils]
    load_workload("some/set")
    assert [(each.are_progress_bars_disabled(), each.logging.get_verbosity()) for each in utils] == before


OFFLINE = """
import json, sys
import specaudit.acceptance.workloads as workloads
from specaudit.core.errors import InputError
loaded = [name for name in ("torch", "transformers", "datasets", "pandas", "pyarrow") if name in sys.modules]
found = {"loaded": loaded}
for name in sys.argv[1:]:
    try:
        workload = workloads.load_workload(name)
        found[name] = [workload.name] + [prompt.text for prompt in workload.prompts]
    except InputError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


def fill_cache(folder: Path, hub_id: str, config: str, prompt: str) -> None:
    """Lay one row down as the datasets library keeps a data set that it has loaded from the hub."""
    datasets = pytest.importorskip("datasets")
    from datasets.arrow_writer import ArrowWriter

    owner, name = hub_id.split("/")
    place = folder / f"{owner}___{name}" / config / "0.0.0" / "0123456789abcdef"
    place.mkdir(parents=True)
    with ArrowWriter(path=str(place / f"{name}-test.arrow")) as writer:
        writer.write({"question": prompt})
        writer.finalize()
    splits = datasets.SplitDict(dataset_name=name)
    splits.add(datasets.SplitInfo("test", num_examples=1, dataset_name=name))
    datasets.DatasetInfo(
        features=datasets.Features({"question": datasets.Value("string")}),
        builder_name="parquet",
        dataset_name=name,
        config_name=config,
        version="0.0.0",
        splits=splits,
    ).write_to_directory(str(place))


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_offline(tmp_path, variable):
    fill_cache(tmp_path / "cache", "some/set", "main", "cached")
    fill_cache(tmp_path / "cache", "some/set", "socratic", "other")
    fill_cache(tmp_path / "cache", "some/two", "a", "x")
    fill_cache(tmp_path / "cache", "some/two", "b", "y")
    fill_cache(tmp_path / "cache", "some/one", "plain", "z")
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
    environment |= {variable: "1", "HF_HOME": str(tmp_path), "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    sets = ["some/absent", "some/set", "some/set:socratic", "some/one", "some/two"]
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, *sets], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["loaded"] == []
    assert found["some/absent"].startswith("--dataset = 'some/absent': cannot be reached")
    assert "local file" in found["some/absent"]
    assert "cache" in found["some/absent"]
    assert "\n" not in found["some/absent"]
    assert found["some/set"] == ["some/set:main[test]", "cached"]
    assert found["some/set:socratic"] == ["some/set:socratic[test]", "other"]
    assert found["some/one"] == ["some/one:plain[test]", "z"]
    assert found["some/two"].startswith("--dataset = 'some/two': it has several configurations")


# Token ids

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ m['role'] }} {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
)
WORDS = ["<s>", "<unk>", "system", "user", "assistant", "One?", "Two?", "1", "brief"]


def tokenizer(template=None, bos="<s>"):
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>")
    raw = tokenizers.Tokenizer(model)
    raw.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", bos_token=bos)
    made.chat_template = template
    return made


def words(ids) -> list[str]:
    assert all(type(token) is int for token in ids)
    return [WORDS[token] for token in ids]


def test_ids_of_plain_text():
    prompt = Prompt(("One? Two?", "1"))
    for chat, template in [(None, None), (False, None), (False, TEMPLATE)]:
        assert words(prompt_ids(prompt, tokenizer(template), chat=chat)) == ["One?", "Two?"]


@pytest.mark.parametrize("chat", [None, True])
def test_ids_of_a_chat(chat):
    made = tokenizer(TEMPLATE)
    assert words(prompt_ids(Prompt(("One?", "Two?")), made, chat=chat)) == ["user", "One?", "assistant"]
    messages = [{"role": "system", "content": "brief"}, *CHAT[1:]]
    whole = Prompt(("One?", "Two?"), messages=tuple(messages))
    expected = ["system", "brief", "user", "One?", "assistant", "1", "user", "Two?", "assistant"]
    assert words(prompt_ids(whole, made, chat=chat)) == expected
    assert words(prompt_ids(whole, made, chat=False)) == ["One?"]


def test_ids_without_a_template():
    with pytest.raises(InputError, match=r"^--chat = True: .*no chat template"):
        prompt_ids(Prompt(("One?",)), tokenizer(), chat=True)


def test_ids_that_the_template_refuses():
    messages = ({"role": "tool", "content": "x"}, {"role": "user", "content": "One?"})
    with pytest.raises(InputError, match=r"^--prompt = 'One\?': .*no tools"):
        prompt_ids(Prompt(("One?",), messages=messages), tokenizer(TEMPLATE), chat=None, argument="--prompt")


def test_ids_are_never_empty():
    assert words(prompt_ids(Prompt((" ",)), tokenizer(), chat=None)) == ["<s>"]
    with pytest.raises(InputError, match=r"^--dataset = ' ': the prompt has no tokens"):
        prompt_ids(Prompt((" ",)), tokenizer(bos=None), chat=None)
