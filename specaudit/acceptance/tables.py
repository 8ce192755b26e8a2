"""Read a local file or a hub data set into rows. Every refusal is one line that names what to change."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import warnings
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from specaudit.core.errors import InputError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetBuilder

DATASET = "--dataset"
_HUB_REMEDY = "check the id, give a local file, or fill the cache by loading it once while online"
# Held-out rows first: a draft that was trained on the prompts looks better than it is.
_SPLIT_ORDER = ("test", "validation", "train")
_MAX_FIELD_CHARACTERS = 2**31 - 1  # the csv module's own limit, 131,072, is shorter than a long-context prompt

Row = dict[str, Any]
Lines = Iterator[tuple[int, str]]


@dataclass(frozen=True)
class Table:
    """Rows of a data set.

    Parameters
    ----------
    name : str
        What was read: a file's name, or a hub id with its configuration and split.
    columns : tuple of str
        Every column there is, also those that were not read.
    rows : list of (int, dict)
        The row number in the data set, from zero, and the row.
    skipped : dict of str to int
        Reasons for lines that are no row, with their counts.
    """

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[int, Row]]
    skipped: dict[str, int] = field(default_factory=dict)


def listed(names: Iterable[str]) -> str:
    """Column or split names for a message, long ones cut: a file without a header offers whole rows as names."""
    return ", ".join(repr(name if len(name) <= 40 else name[:37] + "...") for name in names) or "none"


def _format(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def is_known_format(path: Path) -> bool:
    """Whether a file of this name could be read, going by its extension."""
    return _format(path) in _READERS


def read_file(path: Path, wanted: Collection[str], headerless: bool = False, name: str | None = None) -> Table:
    """Read a .jsonl, .json, .csv, .tsv, .parquet or .txt file, plain or .gz.

    Parameters
    ----------
    path : Path
        The file.
    wanted : collection of str
        Columns worth reading from a format that stores columns apart; the others are listed and not read.
    headerless : bool
        Whether a .csv or .tsv has no header row; its columns are then called "0", "1" and so on.
    name : str, optional
        The table's name, by default the file's.

    Raises
    ------
    InputError
        For ``--dataset``: a folder, an unknown extension, an empty or unreadable file, or the first line that is not
        what its format says.
    """
    if path.is_dir():
        raise InputError(DATASET, path, "this is a folder", "name one file in it")
    if not is_known_format(path):
        accepted = f"the file's extension must be one of {', '.join(_READERS)}, each also with .gz"
        raise InputError(DATASET, path, accepted, "rename or convert the file")
    try:
        if path.stat().st_size == 0:
            raise InputError(DATASET, path, "the file is empty (0 bytes)", "give a file with at least one prompt")
        opener: Callable[..., Any] = gzip.open if path.name.lower().endswith(".gz") else open
        with opener(path, "rb") as handle:
            columns, rows, skipped = _READERS[_format(path)](path, handle, wanted, headerless)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        problem = f"this is not a readable gzip file ({error})"
        raise InputError(DATASET, path, problem, "compress it again, or take .gz off its name") from None
    except OSError as error:
        raise InputError(DATASET, path, f"cannot be read ({error.strerror or error})", "check the file") from None
    if not rows:
        raise InputError(DATASET, path, "the file has no rows", "give a file with at least one prompt")
    return Table(name or path.name, columns, rows, skipped)


_Read = tuple[tuple[str, ...], list[tuple[int, Row]], dict[str, int]]


def _lines(path: Path, handle: BinaryIO) -> Lines:
    """Numbered lines, ends kept. Bytes are split at line feeds alone: str.splitlines would cut a prompt at U+2028."""
    for number, line in enumerate(handle, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            problem = f"line {number} is not UTF-8 (byte 0x{line[error.start]:02x})"
            raise InputError(DATASET, path, problem, "save the file as UTF-8") from None
        yield number, text.removeprefix("\ufeff") if number == 1 else text


def _blank(count: int) -> dict[str, int]:
    return {"blank line": count} if count else {}


def _read_text(path: Path, handle: BinaryIO, wanted: Collection[str], headerless: bool) -> _Read:
    lines = [(number - 1, line.rstrip("\r\n")) for number, line in _lines(path, handle)]
    rows: list[tuple[int, Row]] = [(index, {"text": line}) for index, line in lines if line.strip()]
    return ("text",), rows, _blank(len(lines) - len(rows))


# JSON is read with the json module: Arrow's reader, under datasets, turns a prompt that looks like a date into a date.


def _read_json_lines(path: Path, handle: BinaryIO, wanted: Collection[str], headerless: bool) -> _Read:
    return _json_rows(path, _lines(path, handle))


def _json_rows(path: Path, lines: Lines) -> _Read:
    rows: list[Row] = []
    blank = 0
    remedy = "write one JSON object a line, or end the file's name in .json if it is one document"
    for number, line in lines:
        if not line.strip():
            blank += 1
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(DATASET, path, f"line {number} is not JSON ({_reason(error)})", remedy) from None
        if not isinstance(row, dict):
            raise InputError(DATASET, path, f"line {number} is JSON and not an object", remedy)
        rows.append(row)
    return _columns(rows), list(enumerate(rows)), _blank(blank)


def _reason(error: Exception) -> str:
    # JSONDecodeError's own text counts lines from the start of what it was given, which here is one line.
    return f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def _columns(rows: list[Row]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for row in rows for name in row))


def _read_json(path: Path, handle: BinaryIO, wanted: Collection[str], headerless: bool) -> _Read:
    """A list of rows, an object with one list in it, one row, or JSON lines."""
    lines = list(_lines(path, handle))
    try:
        document = json.loads("".join(line for _, line in lines))
    except (ValueError, RecursionError) as error:
        if _starts_with_object(lines):
            return _json_rows(path, iter(lines))
        where = f"line {error.lineno} " if isinstance(error, json.JSONDecodeError) else ""
        problem = f"{where}is not JSON ({_reason(error)})"
        raise InputError(DATASET, path, problem, "give a list of objects, or JSON lines") from None
    rows = _document_rows(path, document, wanted)
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            problem = f"row {number} (counted from 0) is not an object"
            raise InputError(DATASET, path, problem, 'write each row as an object, such as {"prompt": "..."}')
    return _columns(rows), list(enumerate(rows)), {}


def _starts_with_object(lines: list[tuple[int, str]]) -> bool:
    first = next((line for _, line in lines if line.strip()), "")
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _document_rows(path: Path, document: Any, wanted: Collection[str]) -> list[Any]:
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        problem = "the document is neither a list of rows nor an object that holds one"
        raise InputError(DATASET, path, problem, "give a list of objects, or JSON lines")
    lists = {name: value for name, value in document.items() if isinstance(value, list)}
    tables = [name for name, value in lists.items() if not value or any(isinstance(row, dict) for row in value)]
    # {"messages": [{...}]} is not a table with one list in it but JSON lines with one line.
    if not tables or not lists.keys().isdisjoint(wanted):
        return [document]
    if len(tables) > 1:
        problem = f"the object holds several lists of rows: {listed(tables)}"
        raise InputError(DATASET, path, problem, "keep one of them")
    return document[tables[0]]


def _read_delimited(path: Path, handle: BinaryIO, wanted: Collection[str], headerless: bool) -> _Read:
    tabs = _format(path) == ".tsv"
    records = _tab_records(path, handle) if tabs else _csv_records(path, handle)
    filled = [(number, record) for number, record in records if record not in ([], [""])]
    if not filled:
        return (), [], {}
    first = filled[0][1]
    header = [str(number) for number in range(len(first))] if headerless else first
    if len(set(header)) < len(header):
        twice = listed(sorted({name for name in header if header.count(name) > 1}))
        remedy = "rename one, or use a column number such as --prompt-column 0 where there is no header row"
        raise InputError(DATASET, path, f"the header row has a column twice: {twice}", remedy)
    body = filled if headerless else filled[1:]
    for number, record in body:
        if len(record) != len(header):
            problem = f"line {number} has {len(record)} fields where the first line has {len(header)}"
            remedy = "take the tabs out of its fields" if tabs else "put fields that hold a comma in double quotes"
            raise InputError(DATASET, path, problem, remedy)
    rows = [dict(zip(header, record, strict=True)) for _, record in body]
    return tuple(header), list(enumerate(rows)), _blank(len(records) - len(filled))


def _tab_records(path: Path, handle: BinaryIO) -> list[tuple[int, list[str]]]:
    return [(number, line.rstrip("\r\n").split("\t")) for number, line in _lines(path, handle)]


def _csv_records(path: Path, handle: BinaryIO) -> list[tuple[int, list[str]]]:
    reader = csv.reader((line for _, line in _lines(path, handle)), strict=True)
    limit = csv.field_size_limit(_MAX_FIELD_CHARACTERS)
    try:
        return [(reader.line_num, record) for record in reader]
    except csv.Error as error:
        problem = f"line {reader.line_num} is not CSV ({error})"
        raise InputError(DATASET, path, problem, "close every quote and double those inside a field") from None
    finally:
        csv.field_size_limit(limit)


def _read_parquet(path: Path, handle: BinaryIO, wanted: Collection[str], headerless: bool) -> _Read:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(handle.read()))
        columns = tuple(file.schema_arrow.names)
        rows = file.read(columns=[name for name in columns if name in wanted]).to_pylist()
    except pyarrow.ArrowException as error:
        raise InputError(DATASET, path, f"this is not a Parquet file ({error})", "write it again") from None
    return columns, list(enumerate(rows)), {}


_READERS: dict[str, Callable[[Path, BinaryIO, Collection[str], bool], _Read]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_delimited,
    ".tsv": _read_delimited,
    ".parquet": _read_parquet,
    ".txt": _read_text,
}


# The hub


def read_hub(dataset: str, split: str | None, wanted: Collection[str]) -> Table:
    """Read a hub data set through ``datasets``, which caches it and honours HF_HUB_OFFLINE and HF_DATASETS_OFFLINE.

    Parameters
    ----------
    dataset : str
        ``owner/name`` or ``owner/name:config``. Without a configuration: the only one, the data set's own default, or
        ``main``.
    split : str or None
        None takes the first there is of test, validation and train.
    wanted : collection of str
        Columns worth reading; the others are listed and not read.

    Raises
    ------
    InputError
        For ``--dataset`` where it cannot be loaded or its configuration is not clear; for ``--split`` where there is
        no such split.
    """
    hub_id, _, config = dataset.partition(":")
    try:
        with _quiet():
            builder = _builder(dataset, hub_id, config or None)
            if not builder.info.splits:
                builder.download_and_prepare()
            split = _split(dataset, list(builder.info.splits or ()), split)
            builder.download_and_prepare()
            data = cast("Dataset", builder.as_dataset(split=split))
            columns, rows = tuple(data.column_names), _hub_rows(data, wanted)
    except InputError:
        raise
    except Exception as error:  # below datasets sit half a dozen libraries, with no common root for their errors
        offline = isinstance(error, (ConnectionError, TimeoutError))
        problem = "cannot be reached on the hub and is not in the cache" if offline else "cannot be loaded"
        raise InputError(DATASET, dataset, f"{problem} ({type(error).__name__}: {error})", _HUB_REMEDY) from error
    if not rows:
        raise InputError(DATASET, dataset, f"split {split!r} has no rows", "name another with --split")
    named = "" if builder.config.name == "default" else f":{builder.config.name}"
    return Table(f"{hub_id}{named}[{split}]", columns, list(enumerate(rows)))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep progress bars, log lines and warnings of datasets and huggingface_hub off, and leave them as they were."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import datasets.utils
        import huggingface_hub.utils

        libraries: list[Any] = [datasets.utils, huggingface_hub.utils]
        before = [(each.are_progress_bars_disabled(), each.logging.get_verbosity()) for each in libraries]
        try:
            for each in libraries:
                each.disable_progress_bars()
                each.logging.set_verbosity(each.logging.CRITICAL)
            yield
        finally:
            for each, (disabled, verbosity) in zip(libraries, before, strict=True):
                if not disabled:
                    each.enable_progress_bars()
                each.logging.set_verbosity(verbosity)


def _builder(dataset: str, hub_id: str, config: str | None) -> DatasetBuilder:
    import datasets

    try:
        return datasets.load_dataset_builder(hub_id, config)
    except ValueError as error:  # no such configuration, or several and no default
        if config is None:
            with contextlib.suppress(ValueError):
                return datasets.load_dataset_builder(hub_id, "main")
        names = datasets.get_dataset_config_names(hub_id)
        # From the cache alone the library cannot list configurations, but its message names them.
        known = f"its configurations are {listed(names)}" if len(names) > 1 else str(error)
        problem = f"there is no configuration {config!r}" if config else "it has several configurations"
        remedy = (
            f"name one, as in --dataset {hub_id}:{names[0]}" if len(names) > 1 else f"use --dataset {hub_id}:CONFIG"
        )
        raise InputError(DATASET, dataset, f"{problem}; {known}", remedy) from None


def _split(dataset: str, names: list[str], split: str | None) -> str:
    if split is None:
        return next((name for name in _SPLIT_ORDER if name in names), names[0])
    if split not in names:
        raise InputError("--split", split, f"{dataset} has the splits {listed(names)}", "name one of them")
    return split


def _hub_rows(data: Dataset, wanted: Collection[str]) -> list[Row]:
    from datasets import ClassLabel

    data = data.select_columns([name for name in data.column_names if name in wanted])
    rows = data.to_list()
    for name, feature in data.features.items():
        if isinstance(feature, ClassLabel):
            for row in rows:
                row[name] = None if row[name] is None or row[name] < 0 else feature.int2str(row[name])
    return rows
