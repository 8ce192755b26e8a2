"""Audits in your own tests: the fixture ``lossless_audit`` and the function ``assert_lossless``.

pytest loads this module in every run, so it imports nothing heavy until an audit begins.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specaudit.core.errors import InputError
from specaudit.core.types import SamplingParams, Transcript

if TYPE_CHECKING:
    from specaudit.acceptance.pair import Pair
    from specaudit.models.causal import HuggingFaceModel

    Decoder = Callable[[list[int], SamplingParams], Iterable[int]]
    Source = str | Path | Sequence[Transcript] | Decoder

TOKENS = 2000
FALSE_ALARM_RATE = 1e-3
_PROMPTS = "zoo:prompts"
_FAILED = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of every audit in a run."""
    group = parser.getgroup("specaudit", "audits of decoders (specaudit)")
    group.addoption(
        "--specaudit-tokens", type=_tokens, default=TOKENS, metavar="N",
        help=f"Output tokens that each lossless_audit looks at. [{TOKENS}]",
    )  # fmt: skip
    group.addoption(
        "--specaudit-false-alarm-rate", type=_rate, default=FALSE_ALARM_RATE, metavar="RATE",
        help=f"Chance that one lossless_audit fails a lossless decoder. [{FALSE_ALARM_RATE}]",
    )  # fmt: skip


@pytest.fixture(scope="session")
def _specaudit_load() -> Callable[..., Pair]:
    """Loads each pair once a session."""
    return functools.cache(_load)


@pytest.fixture
def lossless_audit(
    request: pytest.FixtureRequest, _specaudit_load: Callable[..., Pair]
) -> Callable[..., dict[str, Any]]:
    """`assert_lossless` with tokens and false-alarm rate from the command line; models are loaded once a session.

    A plugin that runs failed tests again gets the first failure again: a second draw would double the chance of
    a false alarm, and a violation that shows in one run of two would pass.
    """
    config, test = request.config, request.node.nodeid
    failed = config.stash.setdefault(_FAILED, {})
    earlier = failed.get(test)

    def audit(source: Source, target: str | HuggingFaceModel, draft: str | None = None, **options: Any) -> Any:
        __tracebackhide__ = True
        if earlier is not None:
            pytest.fail(f"{earlier}\n  (from the first run of this test: an audit is not run again)", pytrace=False)
        given = {
            "tokens": config.getoption("--specaudit-tokens"),
            "false_alarm_rate": config.getoption("--specaudit-false-alarm-rate"),
            **options,
        }
        try:
            return assert_lossless(source, target, draft, load=_specaudit_load, **given)
        except pytest.fail.Exception as failure:
            failed[test] = str(failure)
            raise

    return audit


def assert_lossless(
    transcripts_or_decoder: Source,
    target: str | HuggingFaceModel,
    draft: str | None = None,
    *,
    prompts: str | Sequence[Sequence[int]] | None = None,
    sampling: SamplingParams | None = None,
    tokens: int = TOKENS,
    false_alarm_rate: float = FALSE_ALARM_RATE,
    seed: int = 0,
    dtype: str = "auto",
    device: str = "auto",
    load: Callable[..., Pair] | None = None,
) -> dict[str, Any]:
    """Fails the test unless an audit finds no violation.

    Parameters
    ----------
    transcripts_or_decoder : path, sequence of Transcript, or callable
        A ``transcripts.jsonl`` or its contents, from the start until ``tokens`` are reached; or
        ``decoder(prompt_ids, sampling) -> output_ids``, called with one prompt after another, around and around, and
        a seed of its own each time, until they are. Output ids include the end token if one was produced.
    target : str or HuggingFaceModel
        A model as for ``specaudit audit --target``, or a loaded one.
    draft : str, optional
        As for ``--draft``: the tests then look towards its distribution.
    prompts : str or sequence of token ids, optional
        What a decoder is given: a data set as for ``--dataset``, of which prompts longer than half of the target's
        context are left out, or prompts as ids. By default ``zoo:prompts``.
    sampling : SamplingParams, optional
        What a decoder is to sample under; by default temperature 0.8.
    tokens : int
        Output tokens to audit; the output that reaches them is kept whole.
    false_alarm_rate : float
        Chance that a lossless decoder fails. Every call spends one.
    seed : int
        Of the audit.
    dtype, device : str
        As for the command line.
    load : callable, optional
        Loads the pair, in place of ``specaudit.acceptance.pair.load_pair``.

    Returns
    -------
    dict
        The figures of ``audit.json``.

    Raises
    ------
    pytest.fail.Exception
        If the verdict is "violated" or "inconclusive", with a message of its own for each.
    InputError
        If something cannot be used: a file, a model, a setting, or a decoder that returns no token.
    """
    __tracebackhide__ = True
    _check_usable(tokens, false_alarm_rate)
    read: list[Transcript] | None = None
    if not callable(transcripts_or_decoder):
        if prompts is not None or sampling is not None:
            given = "prompts" if prompts is not None else "sampling"
            raise InputError(given, prompts or sampling, "transcripts have their own", "leave it out")
        # Before the models: a bad file should cost no loading.
        read = list(_until(_transcripts(transcripts_or_decoder), tokens))
    pair = (load or _load)(target, draft, dtype=dtype, device=device)
    from specaudit.audit.lossless import audit

    if callable(transcripts_or_decoder):
        params = sampling or SamplingParams(temperature=0.8)
        made = _decoded(transcripts_or_decoder, _prompt_ids(pair, prompts), params)
        read = list(_until(made, tokens))
    assert read is not None
    result = audit(pair.target, pair.drafter, read, false_alarm_rate=false_alarm_rate, seed=seed)
    message = _message(result)
    if message:
        pytest.fail(message, pytrace=False)
    return result


def _load(target: str | HuggingFaceModel, draft: str | None, **options: Any) -> Pair:
    from specaudit.acceptance.pair import load_pair

    return load_pair(target, draft, **options)


def _transcripts(source: str | Path | Sequence[Transcript]) -> Iterable[Transcript]:
    if isinstance(source, str | Path):
        from specaudit.engines.transcripts import read

        return read(Path(source), "transcripts_or_decoder")
    return source


def _prompt_ids(pair: Pair, prompts: str | Sequence[Sequence[int]] | None) -> Sequence[Sequence[int]]:
    if prompts is not None and not isinstance(prompts, str):
        if not prompts:
            raise InputError("prompts", prompts, "must hold a prompt", "give one list of token ids or more")
        return prompts
    from specaudit.acceptance.pair import encode
    from specaudit.acceptance.workloads import load_workload

    # The other half is for outputs.
    longest = pair.target.max_context // 2
    return encode(load_workload(prompts or _PROMPTS), pair.target, chat=None, max_prompt_tokens=longest).ids


def _decoded(decoder: Decoder, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Iterator[Transcript]:
    for number, prompt in enumerate(itertools.cycle(prompts)):
        sampling = dataclasses.replace(params, seed=params.seed + number)
        output = tuple(int(token) for token in decoder(list(prompt), sampling))
        if not output:
            remedy = "return the output's ids, with the end token if one was produced"
            raise InputError("decoder", decoder, f"returned no token for prompt {number % len(prompts)}", remedy)
        yield Transcript(tuple(prompt), output, sampling)


def _until(transcripts: Iterable[Transcript], tokens: int) -> Iterator[Transcript]:
    """Whole outputs, until they hold so many tokens: where it stops depends on lengths alone."""
    total = 0
    for transcript in transcripts:
        yield transcript
        total += len(transcript.output_ids)
        if total >= tokens:
            return


def _message(result: dict[str, Any]) -> str | None:
    smallest = result["detectable_contamination"]
    found = "none, not even output of the draft alone" if smallest is None else f"{smallest:.3g}"
    size = f"{result['tokens']} tokens at a false-alarm rate of {result['false_alarm_rate']:g}"
    if result["verdict"] == "violated":
        e_value = "none" if result["log10_e"] is None else f"10^{result['log10_e']:.2f}"
        return (
            f"violated: the output is not the target's own distribution ({size})\n"
            f"  cause: {result['cause']['name']}: {result['cause']['text']}\n"
            f"  e-value: {e_value}\n"
            f"  flagged: {', '.join(test['name'] for test in result['tests'] if test['flagged'])}\n"
            f"  detectable contamination: {found}"
        )
    if result["verdict"] == "inconclusive":
        return (
            f"inconclusive: the audit cannot tell whether the output is the target's own ({size})\n"
            f"  because: {result['inconclusive_because']}\n"
            f"  detectable contamination: {found}\n"
            "  not a pass: audit more tokens (--specaudit-tokens), or remove the reason"
        )
    return None


def _check_usable(tokens: int, false_alarm_rate: float) -> None:
    for name, value, kind in (("tokens", tokens, _tokens), ("false_alarm_rate", false_alarm_rate, _rate)):
        try:
            kind(str(value))
        except argparse.ArgumentTypeError as error:
            raise InputError(name, value, str(error), "use, for example, 2000 tokens at a rate of 0.001") from None


def _tokens(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more (received {text!r})")
    return int(text)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 0.5:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 0.5 (received {text!r})")
    return value
