"""An audit under way, in a file: what was scored need not be scored again."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specaudit.audit.lossless import Audit
from specaudit.audit.noise import Noise
from specaudit.audit.outcome import Test
from specaudit.audit.tally import Tally
from specaudit.core.artifacts import atomic_path, schema_name
from specaudit.core.errors import InputError
from specaudit.core.types import SamplingParams, Transcript
from specaudit.stats import ExcessLaw, RunningMixture

SCHEMA = schema_name("checkpoint")
SAVE_SECONDS = 20.0
COUNTS = ("transcripts", "tokens", "looked", "repeated_seeds")
ARRAYS = ("u", "u_by_id", "groups", "depth", "place", "hits", "law_likelihoods")


def kept(
    pieces: Iterable[Sequence[Transcript]], path: Path, whole: Audit, key: dict[str, Any]
) -> Iterator[Sequence[Transcript]]:
    """Hands pieces on to be added to ``whole``, and saves it now and then. When the pieces end the file is removed."""
    saved = time.monotonic()
    for piece in pieces:
        yield piece
        if time.monotonic() - saved > SAVE_SECONDS:
            save(path, whole, key)
            saved = time.monotonic()
    path.unlink(missing_ok=True)


def save(path: Path, whole: Audit, key: dict[str, Any]) -> None:
    """Writes all or nothing. ``key`` says which audit it is: models, transcripts and settings."""
    assert whole.params is not None and whole.tally is not None
    tally, arrays = whole.tally, {}
    mixtures = dict(tally.directions)
    if tally.bug_laws is not None:
        mixtures["bug_laws"] = tally.bug_laws
    for name, mixture in mixtures.items():
        arrays[f"mixture.{name}"] = np.stack([mixture.log_weights, mixture.log_e_by_component])
    arrays |= {f"likelihoods.{name}": values for name, values in tally.likelihoods.items()}
    arrays |= {name: getattr(tally, name) for name in ARRAYS}
    arrays |= {"repeat_keys": whole.repeat_keys, "seeds": np.array(sorted(whole.seeds), dtype=np.uint64)}
    if tally.leading_excess is not None:
        arrays["excess"] = np.stack([tally.leading_excess.mass, tally.leading_excess.moment])
    facts = {
        "schema": SCHEMA, "key": key, "params": dataclasses.asdict(whole.params),
        "noise": dataclasses.asdict(whole.noise), "robust": tally.noise, "greedy": whole.greedy,
        "claims": whole.claims.state(), "speculated": whole.speculated, "laws": tally.laws,
        "found_before": [dataclasses.asdict(test) for test in whole.found_before.values()],
        **{name: getattr(whole, name) for name in COUNTS},
        "tally": {"tokens": tally.tokens, "strays": tally.strays, "boundary": tally.boundary},
        "mixtures": {name: [mixture.running_max_log_e, mixture.tokens] for name, mixture in mixtures.items()},
    }  # fmt: skip
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, facts=np.array(json.dumps(facts)), **arrays)


def load(path: Path, whole: Audit, key: dict[str, Any]) -> None:
    """Brings a new audit to where the file's had come.

    Raises
    ------
    InputError
        If it is no checkpoint, or one of another audit.
    """
    remedy = "name another file, or remove this one to start over"
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
        facts = json.loads(str(arrays.pop("facts")))
        known = facts["schema"]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise InputError("--checkpoint", path, f"is not a checkpoint ({error})", remedy) from None
    if known != SCHEMA:
        raise InputError("--checkpoint", path, f"has the schema {known!r}", remedy)
    differing = [name for name, value in key.items() if facts["key"].get(name) != value]
    if differing:
        raise InputError("--checkpoint", path, f"is of another audit: {', '.join(differing)} differ", remedy)
    whole.params, whole.noise = SamplingParams(**facts["params"]), Noise(**facts["noise"])
    for name in COUNTS:
        setattr(whole, name, facts[name])
    whole.greedy, whole.speculated = facts["greedy"], facts["speculated"]
    whole.claims.resume(facts["claims"])
    whole.repeat_keys, whole.seeds = arrays["repeat_keys"], set(arrays["seeds"].tolist())
    whole.found_before = {test["name"]: Test(**test) for test in facts["found_before"]}
    whole.tally = _tally(whole, facts, arrays)


def _tally(whole: Audit, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Tally:
    tally = Tally(whole.target.vocabulary, whole.seed, facts["robust"])
    for name, count in facts["tally"].items():
        setattr(tally, name, count)
    tally.laws = [(name, variant) for name, variant in facts["laws"]]
    for name in ARRAYS:
        setattr(tally, name, arrays[name])
    for name, (running_max, tokens) in facts["mixtures"].items():
        log_weights, log_e = arrays[f"mixture.{name}"]
        mixture = RunningMixture(np.exp(log_weights))
        mixture.log_weights, mixture.log_e_by_component = log_weights, log_e
        mixture.running_max_log_e, mixture.tokens = running_max, tokens
        if name == "bug_laws":
            tally.bug_laws = mixture
        else:
            tally.directions[name] = mixture
            tally.likelihoods[name] = arrays[f"likelihoods.{name}"]
    if "excess" in arrays:
        tally.leading_excess = ExcessLaw(*arrays["excess"], contexts=tally.tokens)
    return tally
