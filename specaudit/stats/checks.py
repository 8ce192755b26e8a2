"""Validation of arguments, shared by every function of this package."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specaudit.core.errors import InputError

Floats = NDArray[np.float64]

ROUNDING = 1e-6  # a probability summed over 150 000 float32 terms can pass its limit by about this much


def vector(argument: str, values: ArrayLike, low: float = -math.inf, high: float = math.inf) -> Floats:
    """Return ``values`` as a finite float64 vector within [low, high].

    Raises
    ------
    InputError
        If it is not one-dimensional, or an element is not finite or outside the limits; the first such is shown.
    """
    return bounded(argument, array(argument, values, dimensions=(1,)), low, high)


def array(argument: str, values: ArrayLike, dimensions: Sequence[int]) -> Floats:
    """Return ``values`` as a float64 array with one of the given numbers of dimensions."""
    converted = np.asarray(values, dtype=np.float64)
    if converted.ndim not in dimensions:
        wanted = " or ".join(str(d) for d in dimensions)
        raise InputError(argument, converted.shape, f"must have {wanted} dimension(s)", "reshape the array")
    return converted


def bounded(argument: str, values: Floats, low: float, high: float) -> Floats:
    """Return ``values`` if all of them are finite and within [low, high]."""
    wrong = ~(np.isfinite(values) & (values >= low) & (values <= high))
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        problem = f"must be finite and within [{low:g}, {high:g}], first broken at index {where}"
        raise InputError(argument, float(values[where]), problem, "check the probabilities it was computed from")
    return values


def same_length(**vectors: NDArray[np.generic]) -> int:
    """Return the length that the named vectors share."""
    lengths = {name: len(v) for name, v in vectors.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(
            ", ".join(lengths), list(lengths.values()), "must have equal lengths", "pass one entry a token"
        )
    return next(iter(lengths.values()))


def rate(argument: str, value: float) -> float:
    """Return an error rate, which must be above 0 and at most one half."""
    if not 0.0 < value <= 0.5:
        raise InputError(argument, value, "must be above 0 and at most 0.5", "use, for example, 0.01")
    return float(value)


def count(argument: str, value: int, least: int = 1) -> int:
    """Return a whole number that is at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(argument, value, f"must be a whole number, {least} or more", f"use {least} or more")
    return int(value)


def effect(argument: str, value: float, high: float) -> float:
    """Return an effect size, which must be above 0 and at most ``high``."""
    if not 0.0 < value <= high:
        raise InputError(argument, value, f"must be above 0 and at most {high:g}", "use, for example, 0.05")
    return float(value)


def least(argument: str, value: float, low: float) -> float:
    """Return a finite number that is at least ``low``."""
    if not (math.isfinite(value) and value >= low):
        raise InputError(argument, value, f"must be a finite number, {low:g} or more", f"use {low:g} or more")
    return float(value)
