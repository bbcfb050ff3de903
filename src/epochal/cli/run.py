"""`epochal run FILE`: run a program with queries as a service, until a signal stops it."""

from __future__ import annotations

import signal
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from epochal.cli.arguments import Conf, parse_pairs
from epochal.cli.interruption import Interrupted
from epochal.cli.printing.output import print_line
from epochal.errors import OptionError, QueryFailedError

commands = typer.Typer(name="commands", add_completion=False, rich_markup_mode=None)


@commands.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)
def run(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A Python program that starts queries.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENT]...", help="Arguments of the program.")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The URL of Spark's master. [default: Spark's default]"),
    ] = None,
    conf: Conf = None,
) -> None:
    """Run a program in a Spark session until its queries end or a signal stops them.

    The program can use the names `spark`, a session with Epochal's sources, and `epochal`. If it
    builds a session itself, it gets the same one. SIGINT and SIGTERM stop each query at the end of
    an epoch, so that no work is repeated; a second signal ends the process at once. The exit status
    is 1 if a query failed.
    """
    if find_spec("pyspark") is None:
        raise OptionError(
            "Running queries needs PySpark, which is not installed. Run `pip install "
            "'epochal[spark]'`."
        )
    if not file.is_file():
        raise OptionError(f"{file} is not a file. Name a Python program that starts queries.")
    settings = parse_pairs(conf or [], "--conf", may_be_empty=True)
    from epochal.cli.run_program import open_session, run_program

    stopping = threading.Event()
    _stop_on_signals(stopping)
    spark = open_session(file.stem, master, settings)
    _stop_on_signals(stopping)
    try:
        if stopping.is_set():
            raise Interrupted("Interrupted while Spark was starting. The program was not run.")
        run_program(file, arguments or [], spark, stopping)
    except QueryFailedError as error:
        typer.echo(f"epochal: {error}", err=True)
        raise typer.Exit(1) from None
    finally:
        spark.stop()
    print_line("All queries have ended.")


def _stop_on_signals(stopping: threading.Event) -> None:
    """Stop queries on SIGINT and SIGTERM.

    Call this before the session is created and once more afterwards. A signal that ends the process
    while it starts the JVM can leave the JVM behind. And PySpark installs a handler of its own,
    which would cancel the tasks in the middle of an epoch.
    """

    def stop(number: int, frame: Any) -> None:
        stopping.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
