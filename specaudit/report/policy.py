"""What a deployment asks of speculative decoding: thresholds, read from TOML."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from specaudit.core.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Policy:
    """The thresholds that ``decide`` holds the artifacts against.

    Attributes
    ----------
    minimum_speedup : float
        What the whole interval of the predicted speedup must reach; 1 is break-even.
    maximum_probability_slower : float
        Highest probability of being slower than the baseline, in [0, 1].
    require_lossless : bool
        Whether the output must be the target's own distribution.
    maximum_detectable_contamination : float
        Highest share of wrong tokens, in [0, 1], that the audit may have been unable to find.
    maximum_relative_error : float
        Highest distance between predicted and measured speedup, as a share of the measured one.
    require_same_machine : bool
        Whether the costs must come from the machine that decides.
    minimum_tokens : int
        Fewest output tokens that an audit may rest on.
    """

    minimum_speedup: float = 1.05
    maximum_probability_slower: float = 0.05
    require_lossless: bool = True
    maximum_detectable_contamination: float = 0.10
    maximum_relative_error: float = 0.10
    require_same_machine: bool = True
    minimum_tokens: int = 2000

    def __post_init__(self) -> None:
        for name in ("minimum_speedup", "maximum_relative_error"):
            _check_number(name, getattr(self, name), math.inf)
        for name in ("maximum_probability_slower", "maximum_detectable_contamination"):
            _check_number(name, getattr(self, name), 1.0)
        for name in ("require_lossless", "require_same_machine"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(name, getattr(self, name), "must be true or false", "write true or false, unquoted")
        if isinstance(self.minimum_tokens, bool) or not isinstance(self.minimum_tokens, int) or self.minimum_tokens < 0:
            problem = "must be a whole number, zero or more"
            raise InputError("minimum_tokens", self.minimum_tokens, problem, "write, for example, 2000")


def _check_number(name: str, value: Any, highest: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if is_number and 0 <= value <= highest and (value > 0 or name != "minimum_speedup"):
        return
    ranges = {"minimum_speedup": "above 0", "maximum_relative_error": "of 0 or more"}
    default = next(field.default for field in fields(Policy) if field.name == name)
    raise InputError(
        name, value, f"must be a number {ranges.get(name, 'between 0 and 1')}", f"write, for example, {default}"
    )


def load_policy(path: Path | str | None) -> Policy:
    """Read a policy from TOML: its ``[policy]`` table, or the top level of a file that has none.

    Parameters
    ----------
    path : Path or str or None
        The file; None gives the defaults, which also stand in for every field that the file leaves out.

    Returns
    -------
    Policy

    Raises
    ------
    InputError
        If the file cannot be read, has a key that no policy has, or a value out of range.
    """
    if path is None:
        return Policy()
    path = Path(path)
    values = _policy_table(path, _read_toml(path))
    known = [field.name for field in fields(Policy)]
    for key in values:
        if key not in known:
            closest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise InputError("--policy", path, f"has the unknown key {key!r}", f"the closest known key is {closest!r}")
    try:
        return Policy(**values)
    except InputError as error:
        raise InputError(
            "--policy", path, f"{error.argument} = {error.value!r} {error.problem}", error.remedy
        ) from None


def _read_toml(path: Path) -> dict[str, Any]:
    remedy = 'give a TOML file with lines such as "minimum_speedup = 1.05"'
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError("--policy", path, f"cannot be read ({error.strerror})", remedy) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError("--policy", path, f"is not TOML ({error})", remedy) from None


def _policy_table(path: Path, document: dict[str, Any]) -> Mapping[str, Any]:
    if "policy" not in document:
        return document
    table = document["policy"]
    if not isinstance(table, dict):
        raise InputError(
            "--policy", path, f"policy = {table!r} must be a table", "write its keys below a line [policy]"
        )
    for field in fields(Policy):
        # The other keys of a file with a [policy] table are somebody else's; these would be ignored without a word.
        if field.name in document:
            raise InputError("--policy", path, f"{field.name} stands above [policy]", "move it below the line [policy]")
    return table
