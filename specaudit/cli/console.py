"""What a command shows: progress on standard error, results on standard output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from specaudit.core.artifacts import to_json

QUIET_SECONDS = 2.0


def progress(title: str) -> Callable[[Iterable[Any], int], Iterable[Any]]:
    """A wrapper of an iterable that shows a bar once it has taken two seconds; a line at the end without a terminal."""

    def shown(items: Iterable[Any], total: int) -> Iterator[Any]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=Console(file=sys.stderr), transient=sys.stderr.isatty())
        started, running = time.monotonic(), False
        task = bar.add_task(title, total=total)
        try:
            for item in items:
                yield item
                bar.advance(task)
                if running:
                    bar.refresh()
                if not running and time.monotonic() - started > QUIET_SECONDS:
                    bar.start()
                    running = True
        finally:
            if running:
                bar.stop()

    return shown


def note(text: str) -> None:
    """A remark on standard error."""
    print(text, file=sys.stderr, flush=True)


def show(artifact: dict[str, Any], text: Callable[[], None], as_json: bool) -> None:
    """The artifact as JSON, or what ``text`` prints."""
    if as_json:
        print(to_json(artifact))
    else:
        text()


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table on standard output; plain text when it is piped."""
    from rich.console import Console
    from rich.table import Table

    out = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        out.add_column(column, justify="left" if number == 0 else "right")
    for row in rows:
        out.add_row(*(cell if isinstance(cell, str) else figure(cell) for cell in row))
    # A pipe has no width: a narrow default would cut columns out of a log.
    Console(width=None if sys.stdout.isatty() else 200).print(out)


def figure(value: Any) -> str:
    """Four significant digits; a dash for what is not known."""
    if value is None or value != value:  # NaN is what has no value, and differs from itself
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return " .. ".join(figure(part) for part in value)
    return str(value)
