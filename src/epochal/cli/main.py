"""Entry point of the `epochal` command; turns errors into one line on stderr.

Exit status: 0 for success or a healthy checkpoint, 1 for findings, 2 for wrong usage or unreadable
input. Commands do not catch errors themselves. They end here as one line that names the file and
the remedy; with `--debug` the traceback is shown instead.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

import typer

from epochal.cli.command_line import (
    EXIT_INTERRUPTED,
    NOTHING_CHANGED,
    Interrupted,
    command_bounds,
    flag,
    group_class,
    option,
)
from epochal.cli.printing.output import EXIT_BROKEN_PIPE, print_error
from epochal.errors import EpochalError, StorageError
from epochal.files import Bounds
from epochal.version import __version__

EXIT_UNREADABLE = 2
TOO_DEEP = (
    "Some JSON of the checkpoint is nested too deeply to be read. No query writes such a thing. "
    "Use `epochal checkpoint verify` to find the file."
)

STORAGE_REMEDY = "Check that the storage is reachable and that this user may read it."
REMEDIES: dict[type[OSError], str] = {
    FileNotFoundError: "Nothing exists there. Check the path.",
    NotADirectoryError: "A directory is needed, but there is a file. Check the path.",
    IsADirectoryError: "A file is needed, but there is a directory. Move the directory away.",
    PermissionError: "Run as the user that owns the checkpoint, or allow this user to read it.",
}


COMMANDS = {
    "demo": "epochal.cli.demo:app",
    "run": "epochal.cli.programs:app",
    "check": "epochal.cli.programs:app",
    "checkpoint": "epochal.cli.checkpoint:app",
    "state": "epochal.cli.state:app",
    "shadow": "epochal.cli.shadow:app",
    "switch": "epochal.cli.switch:app",
    "stop": "epochal.cli.switch:app",
    "kafka": "epochal.cli.kafka:app",
    "pubsub": "epochal.cli.servers:pubsub_app",
    "dashboard": "epochal.cli.servers:app",
}


HELP = """Open, verify, repair and edit checkpoints and state of Spark's streaming queries, without
a JVM. Run streaming queries in Python, upgrade them and watch them.

Exit status: 0 for success or a healthy checkpoint, 1 for findings, 2 for wrong usage or unreadable
input, 130 after Ctrl-C.

`epochal --install-completion` lets your shell complete commands, options and paths.
"""

app = typer.Typer(
    name="epochal",
    cls=group_class(COMMANDS),
    help=HELP,
    no_args_is_help=True,
    add_completion=True,
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
    version: bool = typer.Option(
        False, "--version", "-V", callback=_version, is_eager=True, help="Print the version."
    ),
    debug: bool = flag("--debug", "Show tracebacks instead of one-line errors."),
    most_entry_bytes: int | None = option(
        "N", "The largest log entry to read. [default: 64 MiB]", min=1
    ),
    most_state_bytes: int | None = option(
        "N", "The largest state file to read. [default: 8 GiB]", min=1
    ),
    most_unpacked_bytes: int | None = option(
        "N", "The most that one file may unpack to. [default: 256 MiB]", min=1
    ),
) -> None:
    """The options of all commands."""
    usual = Bounds()
    command_bounds.set(
        Bounds(
            most_entry_bytes or usual.entry_bytes,
            most_state_bytes or usual.state_bytes,
            most_unpacked_bytes or usual.unpacked_bytes,
        )
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        # A file name may not be valid text; printing it must not raise.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(arguments, prog_name="epochal")
    except SystemExit as done:
        if done.code == EXIT_INTERRUPTED:  # Typer's word for Ctrl-C
            return _interrupted(NOTHING_CHANGED)
        return _flush(int(done.code or 0))
    except KeyboardInterrupt:
        return _interrupted(NOTHING_CHANGED)
    except Interrupted as told:
        return _interrupted(str(told))
    except (EpochalError, OSError, RecursionError) as error:
        if "--debug" in arguments:
            raise
        print_error(f"epochal: {describe(error)}")
        return EXIT_UNREADABLE
    return _flush(0)


def _interrupted(what_is_left: str) -> int:
    print_error(f"epochal: {what_is_left}")
    return EXIT_INTERRUPTED


def describe(error: EpochalError | OSError | RecursionError) -> str:
    """Describe an error in one line: what happened, to which file, and what to do."""
    text = TOO_DEEP if isinstance(error, RecursionError) else str(error)
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
        # The reader of our output has ended (`| head`). Without this Python reports the error again
        # at exit.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return status


if __name__ == "__main__":
    sys.exit(main())
