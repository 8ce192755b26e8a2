"""The randomised probability integral transform: any discrete law becomes the uniform one."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from specaudit.core.errors import InputError
from specaudit.stats import checks
from specaudit.stats.checks import Floats


def pit_values(below: ArrayLike, mass: ArrayLike, uniforms: ArrayLike) -> Floats:
    """Map each token to ``u = F(x-) + v p(x)``, iid uniform on [0, 1) if every token was drawn from its ``p``.

    Uniformity holds given the past whatever the contexts are, so tokens of different contexts may be pooled. The order
    of the vocabulary behind ``F`` is free, as long as it is fixed before the token is seen; ordering it by
    ``log(q / p)`` turns a drift towards a drafter's law ``q`` into a drift of ``u``.

    Parameters
    ----------
    below : array_like, [tokens]
        ``F(x-)``: the target's probability of all tokens ordered before the one seen.
    mass : array_like, [tokens]
        ``p(x)``: the target's probability of the token seen.
    uniforms : array_like, [tokens]
        ``v``: independent uniforms on [0, 1), drawn apart from those that made the tokens.

    Returns
    -------
    ndarray, [tokens]
        float64 values in [0, 1).

    Raises
    ------
    InputError
        If lengths differ, a value is outside [0, 1], or ``below + mass`` passes one by more than rounding.

    References
    ----------
    Brockwell (2007), "Universal residuals: a multivariate transformation", Statistics & Probability Letters 77; Czado,
    Gneiting and Held (2009), "Predictive model assessment for count data", Biometrics 65, section 2.
    """
    below_values = checks.vector("below", below, 0.0, 1.0 + checks.ROUNDING)
    masses = checks.vector("mass", mass, 0.0, 1.0 + checks.ROUNDING)
    draws = checks.vector("uniforms", uniforms, 0.0, 1.0)
    checks.same_length(below=below_values, mass=masses, uniforms=draws)
    above = below_values + masses
    if above.size and above.max() > 1.0 + checks.ROUNDING:
        first = int(np.argmax(above > 1.0 + checks.ROUNDING))
        problem = f"must not pass 1, first broken at index {first}"
        raise InputError("below + mass", float(above[first]), problem, "sum the target's probabilities in float64")
    # A cumulative sum can end a few units above one; u = 1 would fall outside the last bin of a histogram.
    return np.clip(below_values + draws * masses, 0.0, np.nextafter(1.0, 0.0))
