"""Verification rules: pure functions of probabilities and uniforms, so that their emission law can be integrated."""

from specaudit.core.protocols import Verifier
from specaudit.core.types import SamplingParams
from specaudit.verify.greedy import GreedyVerifier
from specaudit.verify.rejection import RejectionVerifier

__all__ = ["GreedyVerifier", "RejectionVerifier", "lossless_verifier"]


def lossless_verifier(params: SamplingParams) -> Verifier:
    """Greedy for temperature zero, rejection sampling otherwise."""
    return GreedyVerifier() if params.greedy else RejectionVerifier()
