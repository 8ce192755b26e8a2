"""Prompts from the bundled set, a local file or the hub: what a command decodes, with names for what was left out."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from specaudit.acceptance.tables import DATASET, Row, Table, is_known_format, listed, read_file, read_hub
from specaudit.core.errors import InputError
from specaudit.core.zoo import ZOO

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ZOO_PROMPTS = "zoo:prompts"

# Columns that are looked for when none is named, the first that holds one of its types; a dict is how Arrow may keep
# a list of messages: one list for each field.
_LAYOUTS: dict[str, tuple[type, ...]] = {
    "turns": (list,),
    "messages": (list, dict),
    "conversations": (list, dict),
    "prompt": (str, list, dict),
    "question": (str,),
    "instruction": (str,),
    "text": (str,),
}
_CATEGORIES = ("category", "task", "subset")
_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant"}
_NUMBER = re.compile(r"[0-9]+")
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*(:.+)?", re.ASCII)
_NOT_TEXT = "prompt is not text"


@dataclass(frozen=True)
class Prompt:
    """One prompt of a workload.

    Parameters
    ----------
    turns : tuple of str
        The user's turns; a single-turn prompt has one.
    category : str or None
        The group that results are reported by.
    index : int
        Row number in the data set, from zero and before any limit.
    messages : tuple of dict, or None
        The whole chat if the row was one, as ``{"role": .., "content": ..}`` with whatever else a message held.
    """

    turns: tuple[str, ...]
    category: str | None = None
    index: int = 0
    messages: tuple[dict[str, Any], ...] | None = None

    @property
    def text(self) -> str:
        """The first turn."""
        return self.turns[0]


@dataclass(frozen=True)
class Workload:
    """The prompts that were selected.

    Parameters
    ----------
    name : str
        ``zoo:prompts``, the file's name, or ``owner/name:config[split]``.
    fingerprint : str
        The first 16 hexadecimal digits of a SHA-256 over the selected prompts, their categories and row numbers.
    prompts : tuple of Prompt
        In the data set's order.
    skipped : dict of str to int
        Why rows of the data set gave no prompt, and how many; counted over the whole data set, before any limit.
    """

    name: str
    fingerprint: str
    prompts: tuple[Prompt, ...]
    skipped: dict[str, int]


def load_workload(
    dataset: str,
    *,
    split: str | None = None,
    prompt_column: str | None = None,
    category_column: str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Workload:
    """Load the prompts of a data set.

    Parameters
    ----------
    dataset : str
        ``zoo:prompts``; a .jsonl, .json, .csv, .tsv, .parquet or .txt file (a prompt a line), plain or .gz; or a hub
        id, ``owner/name`` or ``owner/name:config``.
    split : str, optional
        The hub data set's split, by default the first there is of test, validation and train.
    prompt_column : str, optional
        A column of strings, of lists of turns or of lists of messages. By default the first of ``turns``,
        ``messages``, ``conversations``, ``prompt``, ``question``, ``instruction`` (with ``input``, if any, after a
        blank line) and ``text``. A number reads a .csv or .tsv that has no header row.
    category_column : str, optional
        By default ``category``, ``task`` or ``subset``, where there is one.
    limit : int, optional
        At most this many prompts, drawn without replacement from the usable rows.
    seed : int
        Chooses the draw. For one seed a smaller limit draws a subset of a larger one's.

    Returns
    -------
    Workload

    Raises
    ------
    InputError
        For an argument that does not fit the data set, or a data set without one usable prompt.
    """
    if limit is not None and limit < 1:
        raise InputError("--limit", limit, "must be at least 1", "leave it out for all rows")
    named = {column for column in (prompt_column, category_column) if column is not None}
    headerless = prompt_column is not None and _NUMBER.fullmatch(prompt_column) is not None
    table = _read_table(dataset, split, {*_LAYOUTS, "input", *_CATEGORIES, *named}, headerless)
    column = _prompt_column(table, prompt_column)
    category = _category_column(table, category_column, column)
    prompts, skipped = _prompts(table, column, category, with_input=prompt_column is None)
    if not prompts:
        reasons = ", ".join(f"{count} x {reason}" for reason, count in skipped.items())
        problem = f"no row has a usable prompt in column {column!r} ({reasons})"
        raise InputError(DATASET, dataset, problem, "name the prompts' column with --prompt-column")
    chosen = _sample(prompts, limit, seed)
    return Workload(table.name, _fingerprint(chosen), chosen, skipped)


def prompt_ids(
    prompt: Prompt, tokenizer: PreTrainedTokenizerBase, *, chat: bool | None, argument: str = DATASET
) -> list[int]:
    """Token ids that a decoder starts from.

    Parameters
    ----------
    prompt : Prompt
        Its first turn is used, or its messages up to the last that the user wrote.
    tokenizer : PreTrainedTokenizerBase
        The target's tokenizer.
    chat : bool or None
        Whether to apply the chat template; None applies it where the tokenizer has one.
    argument : str
        The argument that the prompt came from, for errors.

    Returns
    -------
    list of int
        Never empty: where the prompt has no tokens, the beginning-of-sequence token.

    Raises
    ------
    InputError
        For ``--chat`` without a template, a chat that the template refuses, or no tokens at all.
    """
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if chat and not has_template:
        raise InputError("--chat", chat, "the target's tokenizer has no chat template", "use --no-chat")
    use_template = has_template if chat is None else chat
    ids = _chat_ids(prompt, tokenizer, argument) if use_template else list(tokenizer(prompt.text)["input_ids"])
    if ids:
        return ids
    if tokenizer.bos_token_id is None:
        problem = "the prompt has no tokens and the tokenizer no beginning-of-sequence token"
        raise InputError(argument, prompt.text, problem, "give a prompt with some text")
    return [cast("int", tokenizer.bos_token_id)]


def _chat_ids(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, argument: str) -> list[int]:
    from jinja2 import TemplateError

    messages = [{"role": "user", "content": prompt.text}]
    if prompt.messages is not None:
        messages = list(prompt.messages)
        # A recorded answer after the last user turn is what the model is asked for, and no part of the prompt.
        while messages and messages[-1]["role"] != "user":
            messages.pop()
    try:
        encoded: Any = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True
        )
    except TemplateError as error:
        problem = f"the target's chat template refuses this chat ({error})"
        raise InputError(argument, prompt.text, problem, "use --no-chat, or change the row's messages") from None
    return list(encoded["input_ids"])


# Rows to prompts


class _Unusable(Exception):
    """Why a row gives no prompt."""


def _prompts(table: Table, column: str, category: str | None, with_input: bool) -> tuple[list[Prompt], dict[str, int]]:
    prompts: list[Prompt] = []
    skipped = Counter(table.skipped)
    for index, row in table.rows:
        try:
            value = _with_input(row) if with_input and column == "instruction" else row.get(column)
            turns, messages = _turns(value)
        except _Unusable as reason:
            skipped[str(reason)] += 1
        else:
            prompts.append(Prompt(turns, _category(row.get(category) if category else None), index, messages))
    return prompts, dict(skipped)


def _with_input(row: Row) -> Any:
    instruction, extra = row.get("instruction"), row.get("input")
    if extra is None or not isinstance(instruction, str):
        return instruction
    if not isinstance(extra, str):
        raise _Unusable(_NOT_TEXT)
    return f"{instruction}\n\n{extra}" if extra.strip() else instruction


def _turns(value: Any) -> tuple[tuple[str, ...], tuple[dict[str, Any], ...] | None]:
    """Read a string, a list of turns or a list of messages: the user's turns, and the messages if it was a chat."""
    messages = None
    if isinstance(value, dict):
        value = _message_list(value)
    if value is None:
        raise _Unusable("prompt is missing")
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        messages = tuple(_message(item) for item in value)
        value = [message["content"] for message in messages if message["role"] == "user"]
        if not value:
            raise _Unusable("chat has no user turn")
    turns = tuple(value) if isinstance(value, list) else (value,)
    if not all(isinstance(turn, str) for turn in turns):
        raise _Unusable(_NOT_TEXT)
    if not turns or not turns[0].strip():
        raise _Unusable("empty prompt")
    # JSON can spell half a surrogate pair, which no tokenizer can encode.
    if re.search("[\ud800-\udfff]", json.dumps([turns, messages], ensure_ascii=False, default=str)):
        raise _Unusable("prompt is not valid Unicode")
    return turns, messages


def _message_list(fields: dict[str, Any]) -> list[dict[str, Any]]:
    """Turn one list for each field into one dict for each message."""
    lists = {name: values for name, values in fields.items() if isinstance(values, list)}
    if not lists or len({len(values) for values in lists.values()}) != 1:
        raise _Unusable(_NOT_TEXT)
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def _message(raw: Row) -> dict[str, Any]:
    role = raw.get("role") or raw.get("from")
    content = raw["content"] if raw.get("content") is not None else raw.get("value")
    if not isinstance(role, str):
        raise _Unusable("chat message has no role")
    if isinstance(content, list):
        parts: list[Any] = [part.get("text") if isinstance(part, dict) else part for part in content]
        if not all(isinstance(part, str) for part in parts):
            raise _Unusable(_NOT_TEXT)
        content = "".join(parts)
    # Arrow gives every message every field that any message has, with None where it had none.
    rest = {name: raw[name] for name in raw.keys() - {"role", "from", "content", "value"} if raw[name] is not None}
    return {"role": _ROLES.get(role, role), "content": content, **rest}


def _category(value: Any) -> str | None:
    if value is None or value == "":
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# Choices


def _prompt_column(table: Table, column: str | None) -> str:
    if column is not None:
        _check_column("--prompt-column", column, table)
        return column
    present = [name for name in _LAYOUTS if name in table.columns]
    if not present:
        problem = (
            f"{table.name} has none of the columns that are looked for ({', '.join(_LAYOUTS)}); "
            f"its columns are {listed(table.columns)}"
        )
        remedy = "name one of its columns, or for a .csv or .tsv without a header row give a column number such as 0"
        raise InputError("--prompt-column", column, problem, remedy)
    fitting = (name for name in present if any(isinstance(row.get(name), _LAYOUTS[name]) for _, row in table.rows))
    return next(fitting, present[0])


def _category_column(table: Table, column: str | None, prompt_column: str) -> str | None:
    if column is not None:
        _check_column("--category-column", column, table)
        return column
    return next((name for name in _CATEGORIES if name in table.columns and name != prompt_column), None)


def _check_column(argument: str, column: str, table: Table) -> None:
    if column not in table.columns:
        problem = f"{table.name} has no such column; its columns are {listed(table.columns)}"
        raise InputError(argument, column, problem, "name one of them")


def _sample(prompts: list[Prompt], limit: int | None, seed: int) -> tuple[Prompt, ...]:
    """Draw without replacement by hash, which unlike a generator's stream is the same for ever and nests by limit."""
    if limit is None or limit >= len(prompts):
        return tuple(prompts)
    by_hash = sorted(prompts, key=lambda prompt: hashlib.sha256(f"{seed}:{prompt.index}".encode()).digest())
    return tuple(sorted(by_hash[:limit], key=lambda prompt: prompt.index))


def _fingerprint(prompts: tuple[Prompt, ...]) -> str:
    digest = hashlib.sha256()
    for prompt in prompts:
        row = [prompt.index, prompt.turns, prompt.category, prompt.messages]
        digest.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()[:16]


# Sources


def _read_table(dataset: str, split: str | None, wanted: Collection[str], headerless: bool) -> Table:
    is_hub_id = _HUB_ID.fullmatch(dataset)
    if dataset.startswith("zoo:"):
        table = read_file(_bundled(dataset), wanted, name=dataset)
    elif os.path.exists(path := os.path.expanduser(dataset)):
        table = read_file(Path(path), wanted, headerless)
    elif is_hub_id and not is_known_format(Path(dataset)):
        return read_hub(dataset, split, wanted)
    else:
        problem = "there is no such file, and a hub id looks like owner/name or owner/name:config"
        raise InputError(DATASET, dataset, problem, "check the path")
    if split not in (None, "train"):
        raise InputError("--split", split, f"{table.name} is a file, with the one split 'train'", "leave --split out")
    return table


def _bundled(dataset: str) -> Path:
    if dataset != ZOO_PROMPTS:
        raise InputError(DATASET, dataset, "there is no such bundled data set", f"use {ZOO_PROMPTS}")
    path = ZOO / "tiny" / "prompts.jsonl"
    if not path.is_file():
        raise InputError(DATASET, dataset, f"the bundled file {path} is missing", "install specaudit again")
    return path
