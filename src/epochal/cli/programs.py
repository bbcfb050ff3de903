"""`epochal run FILE` runs a program with queries as a service, until a signal stops it.

`epochal check PROGRAM` says whether a changed program will start on a checkpoint.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from epochal.cli.command_line import (
    Conf,
    Interrupted,
    Json,
    argument,
    open_place,
    option,
    parse_pairs,
)
from epochal.cli.printing.output import print_error, print_json, print_line, print_text
from epochal.errors import EpochalError, OptionError, QueryFailedError
from epochal.tools.upgrade.upgrade_findings import ASKS_FOR_SINK

if TYPE_CHECKING:
    from epochal.tools.upgrade.upgrade_findings import UpgradeReport

EXIT_NOT_CHECKED = 3

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    file: Path = argument("FILE", "A Python program that starts queries."),
    arguments: list[str] | None = argument(
        "[ARGUMENT]...", "Arguments of the program.", default=None
    ),
    master: str | None = option("URL", "The URL of Spark's master. [default: Spark's default]"),
    conf: Conf = None,
) -> None:
    """Run a program in a Spark session until its queries end or a signal stops them.

    The program can use the names `spark`, a session with Epochal's sources, and `epochal`. If it
    builds a session itself, it gets the same one. SIGINT and SIGTERM stop each query at the end of
    an epoch, so that no work is repeated; a second signal ends the process at once. The exit status
    is 1 if a query failed.
    """
    _require_pyspark("Running queries")
    _require_program(file)
    settings = parse_pairs(conf, "--conf", may_be_empty=True)
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


def _require_pyspark(what: str) -> None:
    if find_spec("pyspark") is None:
        raise OptionError(
            f"{what} needs PySpark, which is not installed. Run `pip install 'epochal[spark]'`."
        )


def _require_program(path: Path) -> None:
    if not path.is_file():
        raise OptionError(f"{path} is not a file. Name a Python program that starts queries.")


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


@app.command(context_settings={"ignore_unknown_options": True})
def check(
    program: Path = argument("PROGRAM", "A Python program that starts queries."),
    arguments: list[str] | None = argument(
        "[-- ARGUMENT]...", "Arguments of the program.", default=None
    ),
    checkpoint: str | None = option("DIR", "The checkpoint that the query would continue from."),
    before: Path | None = option(
        "PROGRAM",
        "Instead of a checkpoint, the program before the change. It gets the same arguments.",
    ),
    query: str | None = option("NAME", "The name of the query, if the program starts several."),
    master: str = option("URL", "The URL of Spark's master.", default="local[1]"),
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Say whether a changed program can continue from a checkpoint. No query is started.

    The program runs until its end, or until it keeps waiting for a query. Its queries are only
    planned; everything else in it, such as writing a file, is really done. Exit status: 0 if it is
    safe, 1 if it needs a command or a decision, 2 if it is impossible, 3 if it could not be
    checked.
    """
    try:
        if (checkpoint is None) == (before is None):
            raise OptionError("Give either --checkpoint DIR or --before PROGRAM.")
        for path in filter(None, (program, before)):
            _require_program(path)
        settings = {**_QUIET, **parse_pairs(conf, "--conf", may_be_empty=True)}
        _require_pyspark("Checking a program")
        from epochal.cli.run_program import choose, collect_queries, open_session

        spark = open_session(program.stem, master, settings)

        def writer_of(path: Path) -> Any:
            queries = collect_queries(path, arguments or [], spark)
            return choose(queries, checkpoint, query).writer

        try:
            report = _report(program, before, checkpoint, writer_of)
        finally:
            spark.stop()
    except (EpochalError, OSError) as error:
        print_error(f"epochal: {' '.join(str(error).split())}")
        raise typer.Exit(EXIT_NOT_CHECKED) from None
    if as_json:
        print_json(to_json(report))
    else:
        print_check(report)
    raise typer.Exit(int(report.outcome))


_QUIET = {"spark.ui.enabled": "false", "spark.executor.heartbeatInterval": "100s"}
"""A heartbeat of an executor before Spark is ready is a Java stack trace on the terminal."""


def _report(
    program: Path, before: Path | None, checkpoint: str | None, writer_of: Callable[[Path], Any]
) -> UpgradeReport:
    from epochal.tools.upgrade.check_query import check as check_query
    from epochal.tools.upgrade.check_query import check_after, needs_of

    running = before or program
    try:
        if before is None:
            opened = None if checkpoint is None else open_place(checkpoint)
            return check_query(writer_of(program), opened)
        needs = needs_of(writer_of(before))
        running = program
        return check_after(writer_of(program), needs)
    except (EpochalError, OSError):
        raise
    except Exception as error:
        kind = type(error).__name__
        raise OptionError(
            f"{running} failed before its query could be checked: {kind}: {error}"
        ) from error


def to_json(report: UpgradeReport) -> dict[str, Any]:
    return {
        "checkpoint": report.checkpoint,
        "outcome": report.outcome.name.lower().replace("_", " "),
        "engine": report.engine,
        "starts": report.starts,
        "differences": [
            {
                "subject": difference.subject,
                "was": difference.was,
                "wants": difference.wants,
                "verdict": difference.verdict.word,
                "why": difference.verdict.why,
                "command": difference.verdict.command or None,
                "refusedWith": difference.refusal or None,
                "silent": difference.is_silent,
            }
            for difference in report.differences
        ],
        "notCompared": list(report.not_compared),
    }


def print_check(report: UpgradeReport) -> None:
    asks_for_sink = False
    for difference in report.differences:
        command = difference.verdict.command
        print_line(f"{difference.verdict.word}: {difference.subject}")
        print_text(f"  checkpoint: {difference.was}", " " * 14)
        print_text(f"  query:      {difference.wants}", " " * 14)
        print_text(f"  {difference.verdict.why}.")
        if command:
            asks_for_sink |= ASKS_FOR_SINK in command
            how = "To change that, run" if difference.outcome == 0 else "Run"
            print_line(f"  {how}: {command}")
        if difference.is_silent:
            print_text(f"  {report.engine} would start the query without a word about this.")
        elif difference.refusal:
            error = f"with an error that contains: {difference.refusal}"
            print_text(f"  {report.engine} would refuse to start, {error}")
    if asks_for_sink:
        print_text(
            "OUTPUT is the directory that the query writes files to. If there is none, write "
            "--no-file-sink in place of --sink OUTPUT."
        )
    needed = ("The query can continue.", "The query needs an action first.", "It cannot continue.")
    print_line(needed[report.outcome])
    if report.not_compared:
        print_text(f"A checkpoint does not record: {'; '.join(report.not_compared)}.")
