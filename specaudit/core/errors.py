"""The one exception root. A message is one line: the argument, the value received, what is wrong, what to do."""

from __future__ import annotations

NOT_FINITE = "try --dtype float32 or other weights"  # the remedy where a model's numbers are none


class SpecauditError(Exception):
    """Root of every error that specaudit raises on purpose; the command line turns it into exit code 2."""


class InputError(SpecauditError):
    """An argument, file or model that cannot be used.

    Parameters
    ----------
    argument : str
        The argument's name as the user knows it, for example ``--top-p`` or ``top_p``.
    value : object
        The value received.
    problem : str
        What is wrong with it, or what is accepted.
    remedy : str
        What to do next.
    """

    def __init__(self, argument: str, value: object, problem: str, remedy: str) -> None:
        self.argument, self.value, self.problem, self.remedy = argument, value, problem, remedy
        super().__init__(" ".join(f"{argument} = {_shown(value)}: {problem}; {remedy}".split()))


def _shown(value: object, limit: int = 120) -> str:
    text = str(value) if hasattr(value, "__fspath__") else repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
