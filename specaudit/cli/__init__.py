"""The command line: a module a command, loaded when its command runs, so that ``--help`` loads no model library."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import typer

from specaudit.cli import audit, bench, demo, gate, generate, measure, predict, profile, report, selftest, train
from specaudit.cli.options import UsageError
from specaudit.core.errors import SpecauditError

INTERRUPTED = 130

app = typer.Typer(
    name="specaudit",
    help="Is your speculative decoder lossless, and how much faster will it be on your traffic?",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (demo, generate, audit, profile, measure, predict, bench, report, gate, train, selftest):
    app.command(command.__name__.rpartition(".")[2])(command.run)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and stop.")
) -> None:
    if version:
        from importlib.metadata import version as version_of

        print(version_of("specaudit"))
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


def main() -> None:
    """Runs a command. Exit codes: 0 go or no violation found, 1 no-go or violated, 2 unusable input, 3 undecided."""
    try:
        code = app(standalone_mode=False, prog_name="specaudit") or 0
    except SpecauditError as error:
        _fail(str(error))
    except UsageError as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "specaudit"
        _fail(f"{error.format_message().rstrip('.')}{_received(error)}. See `{command} --help`.")
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    if code == INTERRUPTED:  # some releases of typer catch the interruption, and return this code without a word
        _fail("interrupted", code)
    sys.exit(code)


def _received(error: Any) -> str:
    """The value that could not be read, which typer leaves out where pydantic read it for typer."""
    details = getattr(error.__cause__, "errors", list)()
    return f" (received {details[0]['input']!r})" if details else ""


def _fail(message: str, code: int = 2) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
