"""Entry point of the `epochal` command, and the one place where an error becomes a line.

Exit status: 0 healthy or done, 1 findings, 2 wrong usage or something that cannot be read. No
command catches errors for itself; whatever it raises ends here as one line on stderr that names
the file and the remedy. `--debug` shows the traceback instead.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, ClassVar

import typer

from epochal.cli.groups import LazyGroup
from epochal.cli.output import EXIT_BROKEN_PIPE
from epochal.errors import EpochalError, StorageError
from epochal.version import __version__

EXIT_UNREADABLE = 2
EXIT_INTERRUPTED = 130

STORAGE_REMEDY = "Check that the storage can be reached and that this user may read it."
REMEDIES: dict[type[OSError], str] = {
    FileNotFoundError: "Nothing is there: check the path.",
    NotADirectoryError: "A directory is needed there, and it is a file: check the path.",
    IsADirectoryError: "A file is needed there, and it is a directory: move it out of the way.",
    PermissionError: "Run as the user that owns the checkpoint, or let this user read it.",
}


class Commands(LazyGroup):
    table: ClassVar[dict[str, str]] = {
        "demo": "epochal.cli.demo:commands",
        "run": "epochal.cli.run:commands",
        "checkpoint": "epochal.cli.checkpoint:app",
        "state": "epochal.cli.state.group:app",
        "kafka": "epochal.cli.kafka:app",
        "pubsub": "epochal.cli.pubsub:app",
        "dashboard": "epochal.cli.dashboard:app",
    }


app = typer.Typer(
    name="epochal",
    cls=Commands,
    help="Structured Streaming's commit machinery, in Python: checkpoints and state without a JVM.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"epochal {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks instead of one-line errors.")
    ] = False,
) -> None:
    """Structured Streaming's commit machinery, in Python: checkpoints and state without a JVM.

    Exit status: 0 healthy or done, 1 findings, 2 wrong usage or something unreadable.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        # Names on a disk may be no text at all; they must not break what is said about them.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(arguments, prog_name="epochal")
    except SystemExit as done:
        return _flush(int(done.code or 0))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except (EpochalError, OSError) as error:
        if "--debug" in arguments:
            raise
        typer.echo(f"epochal: {describe(error)}", err=True)
        return EXIT_UNREADABLE
    return _flush(0)


def describe(error: EpochalError | OSError) -> str:
    """What went wrong, with which file, and what to do: one line."""
    text = str(error)
    if isinstance(error, StorageError):
        text = f"{text.rstrip('.')}. {STORAGE_REMEDY}"
    elif isinstance(error, OSError):
        reason = error.strerror or type(error).__name__
        where = f"{error.filename}: " if error.filename else ""
        remedy = REMEDIES.get(type(error), STORAGE_REMEDY)
        text = f"{where}{reason}. {remedy}"
    return " ".join(text.split())


def _flush(status: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _close_broken_pipe()
    return status


def _close_broken_pipe() -> int:
    # Whoever read our output has gone (`| head`); without this Python complains again at exit.
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE


if __name__ == "__main__":
    sys.exit(main())
