"""`epochal run FILE`: a program of queries as a service runs it, ended by a signal."""

from __future__ import annotations

import signal
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from epochal.cli.output import print_line
from epochal.errors import OptionError, QueryFailedError

commands = typer.Typer(name="commands", add_completion=False, rich_markup_mode=None)


@commands.callback()
def _commands() -> None:
    """Keeps the command's name where a lone one would take the group's place."""


@commands.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
def run(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A Python program that starts queries.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENT]...", help="Its own arguments.")
    ] = None,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark's master. [default: Spark's own]")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of Spark; may repeat.")
    ] = None,
) -> None:
    """Run a program in a Spark session until its queries end, or a signal ends them.

    The program finds `spark`, with Epochal's sources registered, and `epochal`; a session that it
    builds itself is this one. SIGINT and SIGTERM stop each query where an epoch ends, so that
    nothing has to be repeated; a second signal ends at once. Exits 1 if a query failed.
    """
    if find_spec("pyspark") is None:
        raise OptionError("Running queries needs PySpark: pip install 'epochal[spark]'.")
    if not file.is_file():
        raise OptionError(f"{file} is no file. Name a Python program that starts queries.")
    settings = dict(_setting(each) for each in conf or [])
    from epochal.cli.run_program import open_session, run_program

    spark = open_session(file.stem, master, settings)
    stopping = threading.Event()
    _stop_on_signals(stopping)
    try:
        run_program(file, arguments or [], spark, stopping)
    except QueryFailedError as error:
        typer.echo(f"epochal: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        spark.stop()
    print_line("All queries have ended.")


def _setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise OptionError(f"--conf takes KEY=VALUE, not {text!r}.")
    return key, value


def _stop_on_signals(stopping: threading.Event) -> None:
    """After the session is there: Spark's own handler would cancel the tasks in mid-epoch."""

    def told(number: int, frame: Any) -> None:
        stopping.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, told)
