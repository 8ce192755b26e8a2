"""Reading and writing ``transcripts.jsonl``, a line each. Ids are kept as they are and never re-tokenised."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from specaudit.core.artifacts import atomic_path, schema_name
from specaudit.core.errors import InputError
from specaudit.core.types import SamplingParams, Transcript

SCHEMA = schema_name("transcript")


def to_line(transcript: Transcript) -> str:
    """One transcript as one line of JSON, without the line's end."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "prompt_ids": list(transcript.prompt_ids),
            "output_ids": list(transcript.output_ids),
            "sampling": transcript.sampling.as_dict(),
            "rounds": None if transcript.rounds is None else list(transcript.rounds),
            "engine": transcript.engine,
            "finish_reason": transcript.finish_reason,
            "category": transcript.category,
        },
        ensure_ascii=False,
    )


def write(path: Path, transcripts: Iterable[Transcript]) -> int:
    """Writes all or nothing; returns how many."""
    count = 0
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as stream:
        for transcript in transcripts:
            stream.write(to_line(transcript) + "\n")
            count += 1
    return count


def read(path: Path, argument: str = "--transcripts") -> Iterator[Transcript]:
    """Transcripts of a file, a line at a time.

    Raises
    ------
    InputError
        If the file cannot be read or is empty, or a line is not JSON, carries another schema or lacks a field, the
        temperature among them; the error names the line.
    """
    path = Path(path)
    count = 0
    try:
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    count += 1
                    yield _parsed(line, f"{path}:{number}", argument)
    except UnicodeDecodeError as error:
        raise InputError(argument, path, f"is not UTF-8 ({error.reason})", "save the file as UTF-8") from None
    except OSError as error:
        raise InputError(argument, path, f"cannot be read ({error.strerror})", "check the path") from None
    if not count:
        raise InputError(argument, path, "holds no transcript", "write some with `specaudit generate --out FILE`")


def in_pieces(transcripts: Iterable[Transcript], size: int) -> Iterator[list[Transcript]]:
    """As many transcripts at a time as are held and scored together."""
    source = iter(transcripts)
    while piece := list(itertools.islice(source, size)):
        yield piece


def _parsed(line: str, place: str, argument: str) -> Transcript:
    remedy = f"write one {SCHEMA} object a line"
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(argument, place, f"is not JSON ({error})", remedy) from None
    if not isinstance(row, dict) or row.get("schema") != SCHEMA:
        found = row.get("schema") if isinstance(row, dict) else type(row).__name__
        raise InputError(argument, place, f"has the schema {found!r}", remedy)
    try:
        engine = row.get("engine") or {}
        if not isinstance(engine, dict):
            raise ValueError("engine must be an object")
        return Transcript(
            prompt_ids=_ids(row, "prompt_ids"),
            output_ids=_ids(row, "output_ids"),
            sampling=_sampling(row["sampling"]),
            rounds=None if row.get("rounds") is None else _ids(row, "rounds"),
            engine=engine,
            finish_reason=row.get("finish_reason"),
            category=row.get("category"),
        )
    except KeyError as error:
        raise InputError(argument, place, f"has no field {error}", remedy) from None
    except (TypeError, ValueError, InputError) as error:
        raise InputError(argument, place, f"has a wrong field ({error})", remedy) from None


def _sampling(given: Any) -> SamplingParams:
    """What is not given is off, but for the temperature: an audit under a guess of it would accuse the engine."""
    if not isinstance(given, dict) or "temperature" not in given:
        raise ValueError("sampling must be an object with the temperature, 0 for greedy output")
    return SamplingParams(**given)


def _ids(row: dict[str, Any], name: str) -> tuple[int, ...]:
    ids = row[name]
    if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ValueError(f"{name} must be a list of non-negative integers")
    return tuple(ids)
