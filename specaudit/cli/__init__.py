"""The command line: a module a command, loaded when its command runs, so that ``--help`` loads no model library."""

from __future__ import annotations

import sys
from typing import Any

import typer

from specaudit.cli import audit, bench, demo, gate, generate, measure, predict, profile, report
from specaudit.core.errors import SpecauditError

# typer raises click's usage errors, from its own copy of click in some releases: reached by the one it exports.
UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="specaudit",
    help="Is your speculative decoder lossless, and how much faster will it be on your traffic?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (demo, generate, audit, profile, measure, predict, bench, report, gate):
    app.command(command.__name__.rpartition(".")[2])(command.run)


@app.callback(invoke_without_command=True)
def _options(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        from importlib.metadata import version as version_of

        print(version_of("specaudit"))
        raise typer.Exit


def main() -> None:
    """Runs a command. Exit codes: 0 go or no violation found, 1 no-go or violated, 2 unusable input, 3 undecided."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except SpecauditError as error:
        _fail(str(error))
    except UsageError as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "specaudit"
        _fail(f"{error.format_message()} See `{command} --help`.")  # type: ignore[attr-defined]
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)


def _fail(message: str, code: int = 2) -> None:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
