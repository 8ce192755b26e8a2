"""Outputs that are copies of each other, beyond what their own probabilities allow."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specaudit.core.errors import InputError
from specaudit.stats import checks
from specaudit.stats.gof import TestResult

REPEAT_NATS = (20.0, 30.0, 40.0)  # of surprise in the shared beginning; more outputs need more of it
_HASH_BITS = 64


def repeat_keys(prompt: Sequence[int], output: Sequence[int], mass: ArrayLike) -> NDArray[np.uint64]:
    """Return what `repeated_output_test` needs of one output: a hash of its beginning for each of ``REPEAT_NATS``.

    The beginning is the prompt and the shortest run of tokens whose surprise ``-sum of log p`` reaches that many nats.

    Parameters
    ----------
    prompt, output : sequence of int
        Token ids.
    mass : array_like, [tokens]
        The target's probability of each output token, in [0, 1]. A token of none ends what is looked at.

    Returns
    -------
    ndarray of uint64, [levels]
        Zero where the output is not so surprising.
    """
    values = checks.vector("mass", mass, 0.0, 1.0 + checks.ROUNDING)
    checks.same_length(output=np.asarray(output), mass=values)
    possible = np.minimum(values[: int(np.argmin(np.append(values, 0.0) > 0.0))], 1.0)
    surprise = np.cumsum(-np.log(possible))
    keys = np.zeros(len(REPEAT_NATS), dtype=np.uint64)
    for level, nats in enumerate(REPEAT_NATS):
        tokens = int(np.searchsorted(surprise, nats)) + 1
        if tokens <= surprise.size:
            ids = np.array([level, len(prompt), *prompt, *output[:tokens]], dtype=np.int64)
            digest = hashlib.blake2b(ids.tobytes(), digest_size=_HASH_BITS // 8).digest()
            keys[level] = max(1, int.from_bytes(digest, "little"))
    return keys


def repeated_output_test(keys: ArrayLike) -> TestResult:
    """Test whether outputs begin alike more often than independent ones can.

    Given one output, an independent one of the same prompt begins with the same tokens with the product of their
    probabilities, at most ``exp(-nats)``. So among ``n`` outputs, whatever their prompts, any two agree up to a level
    of ``REPEAT_NATS`` with probability at most ``n (n - 1) / 2 (exp(-nats) + 2^-64)``, the last for hashes that agree
    by chance. The p-value is that bound for the highest level at which two agree, and one if there is none.

    Parameters
    ----------
    keys : array_like of uint64, [levels, outputs]
        Of `repeat_keys`.

    Returns
    -------
    TestResult
        ``statistic`` is the number of outputs that repeat an earlier one, at that level or, if there is none, zero.

    Raises
    ------
    InputError
        If the keys do not have a row for each of ``REPEAT_NATS``.

    References
    ----------
    Boole's inequality; the probability of a match is exact, since the target's own probabilities are known.
    """
    table = np.asarray(keys, dtype=np.uint64)
    if table.ndim != 2 or len(table) != len(REPEAT_NATS):
        problem = f"must have {len(REPEAT_NATS)} rows"
        raise InputError("keys", table.shape, problem, "stack what repeat_keys gives, as columns")
    outputs = table.shape[1]
    for nats, row in reversed(list(zip(REPEAT_NATS, table, strict=True))):
        used = row[row > 0]
        copies = used.size - np.unique(used).size
        if copies:
            return TestResult("repeated_output", float(copies), _bound(outputs, nats), outputs)
    return TestResult("repeated_output", 0.0, 1.0, outputs)


def detectable_repeat(outputs: int, false_alarm_rate: float) -> float:
    """Return the surprise in nats with which a single repeat among ``outputs`` outputs is found.

    It is found for certain: the missed rate is zero.

    Returns
    -------
    float
        One of ``REPEAT_NATS``, or ``inf`` if no repeat could be small enough a chance.
    """
    rate = checks.rate("false_alarm_rate", false_alarm_rate)
    checks.count("outputs", outputs)
    return next((nats for nats in REPEAT_NATS if _bound(outputs, nats) <= rate), math.inf)


def most_outputs_repeat(nats: float, false_alarm_rate: float) -> int:
    """Return the most outputs among which a repeat of ``nats`` is found: more bring more chances of one.

    Zero where ``nats`` is below all of ``REPEAT_NATS``.
    """
    rate = checks.rate("false_alarm_rate", false_alarm_rate)
    reached = [level for level in REPEAT_NATS if level <= checks.least("nats", nats, 0.0)]
    if not reached:
        return 0
    pairs = rate / _chance(reached[-1])
    outputs = int((1.0 + math.sqrt(1.0 + 8.0 * pairs)) / 2.0)
    return outputs if _bound(outputs, reached[-1]) <= rate else outputs - 1  # the root is rounded


def _bound(outputs: int, nats: float) -> float:
    return min(1.0, outputs * (outputs - 1) / 2.0 * _chance(nats))


def _chance(nats: float) -> float:
    return math.exp(-nats) + 2.0**-_HASH_BITS
