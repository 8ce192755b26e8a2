"""An audit that reads transcripts until it is decided: no further than the answer takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from specaudit.audit.lossless import Audit
from specaudit.core.types import Transcript

FIRST_LOOK_TOKENS = 500


def audit_until_decided(whole: Audit, pieces: Iterable[Sequence[Transcript]], wanted: float | None) -> dict[str, Any]:
    """Reads until a violation is found, or contamination of ``wanted`` is excluded, or the transcripts end.

    E-processes are looked at after every piece, and everything whenever the tokens have doubled. By Ville's inequality
    a lossless decoder is called ``violated`` with probability at most the audit's false-alarm rate, however many looks
    there are, and one of contamination ``wanted`` or more has it excluded with probability at most 0.05.

    Parameters
    ----------
    whole : Audit
        Made with ``looks=True``.
    pieces : iterable of sequences of Transcript
        In an order that does not follow their contents.
    wanted : float, optional
        The contamination to exclude, in (0, 1]; without one, nothing but a violation ends the reading early.

    Returns
    -------
    dict
        The figures of ``audit.json``, with ``decided``: "violated", "excluded", or None where the transcripts ended.
    """
    due = FIRST_LOOK_TOKENS
    for piece in pieces:
        whole.add(piece)
        if not whole.tokens:
            continue
        early = whole.violated_by_now
        if early or whole.tokens >= due:
            due = 2 * whole.tokens
            found = whole.result()
            if found["verdict"] == "violated":
                return {**found, "decided": "violated"}
            excluded = wanted is not None and found["contamination_bound"] <= wanted
            if excluded and found["verdict"] == "no_violation_found":
                return {**found, "decided": "excluded"}
    return {**whole.result(), "decided": None}
