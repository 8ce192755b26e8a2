"""Verification rules: pure functions of probabilities and uniforms, so that their emission law can be integrated."""

from specaudit.core.errors import InputError
from specaudit.core.protocols import Verifier
from specaudit.core.types import SamplingParams
from specaudit.verify.greedy import GreedyVerifier
from specaudit.verify.rejection import RejectionVerifier
from specaudit.verify.typical import TypicalVerifier

__all__ = ["GreedyVerifier", "RejectionVerifier", "TypicalVerifier", "lossless_verifier", "verifier_of"]

LOSSLESS, TYPICAL = "lossless", "typical"


def lossless_verifier(params: SamplingParams) -> Verifier:
    """Greedy for temperature zero, rejection sampling otherwise."""
    return GreedyVerifier() if params.greedy else RejectionVerifier()


def verifier_of(name: str, params: SamplingParams) -> Verifier:
    """The rule that ``--verifier`` names.

    Raises
    ------
    InputError
        If it is neither "lossless" nor "typical".
    """
    if name == LOSSLESS:
        return lossless_verifier(params)
    if name == TYPICAL and params.greedy:
        raise InputError("--verifier", name, "reads the target's entropy, and temperature is 0", "raise --temperature")
    if name == TYPICAL:
        return TypicalVerifier()
    raise InputError("--verifier", name, "is not a verification rule", f"use {LOSSLESS} or {TYPICAL}")
