"""A profile under way, in a folder: what was decoded and scored need not be so again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from specaudit.core.artifacts import atomic_path, content_hash, read_json, with_schema, write_json
from specaudit.core.errors import InputError

MANIFEST = "manifest.json"
NAME = "shards"


class Shards:
    """Token tables of the pieces of one run, each a Parquet file, and a manifest that says which are whole.

    A file is written beside its name and then renamed, and entered into the manifest after that: a run may be killed
    at any moment, and one that starts again goes on from the last piece entered.

    Parameters
    ----------
    folder : Path
        Made with the first table that is added.
    key : mapping
        Facts that all pieces depend on, as JSON has them. A folder of a run with others is refused.

    Attributes
    ----------
    damaged : list of str
        Files that the manifest names and that are gone or not what was written: their pieces count as missing.

    Raises
    ------
    InputError
        For ``--out``, if the folder's manifest cannot be read or is of another run.
    """

    def __init__(self, folder: Path, key: Mapping[str, Any]) -> None:
        self.folder, self.key = Path(folder), json.loads(json.dumps(key))
        self.contents: dict[str, str] = {}
        self.damaged: list[str] = []
        if (self.folder / MANIFEST).exists():
            self._resume()

    def __contains__(self, number: int) -> bool:
        return _file(number) in self.contents

    def add(self, number: int, tokens: pd.DataFrame) -> None:
        """Keeps the table of piece ``number``, whole or not at all."""
        path = self.folder / _file(number)
        with atomic_path(path) as temporary:
            tokens.to_parquet(temporary, index=False)
        self.contents[path.name] = content_hash(path)
        self._write_manifest()

    def tokens(self) -> pd.DataFrame:
        """All pieces in order, read back from their files, so that it makes no difference which run wrote them."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        tables = [pq.read_table(self.folder / name) for name in sorted(self.contents)]
        # A column without a value in one piece has no type there.
        return pa.concat_tables(tables, promote_options="permissive").to_pandas(ignore_metadata=True)

    def _resume(self) -> None:
        manifest = read_json("--out", self.folder / MANIFEST, NAME)
        found, shards = manifest.get("key"), manifest.get("shards")
        if not isinstance(found, dict) or not isinstance(shards, dict):
            raise InputError("--out", self.folder / MANIFEST, "has no key or shards", "remove the folder to start over")
        differing = sorted(name for name, value in self.key.items() if found.get(name) != value)
        if differing:
            problem = f"holds an unfinished profile that differs in {', '.join(differing)}"
            remedy = "go on with the options of that run, name another --out, or remove the folder to start over"
            raise InputError("--out", self.folder, problem, remedy)
        for name, content in shards.items():
            path = self.folder / name
            if path.is_file() and content_hash(path) == content:
                self.contents[name] = content
            else:
                self.damaged.append(name)

    def _write_manifest(self) -> None:
        facts = {"key": self.key, "shards": dict(sorted(self.contents.items()))}
        write_json(self.folder / MANIFEST, with_schema(NAME, facts, {}))


def _file(number: int) -> str:
    return f"{number:06d}.parquet"
