"""`epochal stop`, and the same for `epochal switch --stop`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from epochal.checkpoint.claim import Attempt
from epochal.cli.arguments import Directory, Json
from epochal.cli.places import open_place
from epochal.cli.printing.output import EXIT_FINDINGS, print_json, print_line, print_text
from epochal.cli.printing.progress_bar import progress
from epochal.clock import SystemClock
from epochal.files import Files

if TYPE_CHECKING:
    from epochal.tools.switch.stop_query import StoppedQuery

DEFAULT_TIMEOUT_SECONDS = 120.0

StopTimeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait for the query."),
]

commands = typer.Typer(add_completion=False, rich_markup_mode=None)


@commands.command("stop")
def stop(
    directory: Directory,
    timeout: StopTimeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: Json = False,
) -> None:
    """Ask the continuous query on a checkpoint to stop, and wait until it has.

    It stops at the end of an epoch, as with query.stop(), wherever its driver runs. Spark's own
    queries cannot be asked. Exit status: 0 if the query does not run and the checkpoint is
    complete; 1 if it does not run, but left something to finish, which is shown; 2 if it runs on.
    """
    stopped = wait_for_stop(open_place(directory), timeout, as_json=as_json)
    if as_json:
        print_json(
            {
                "run_id": stopped.run_id,
                "ending": stopped.ending,
                "epoch": stopped.epoch,
                "owed": stopped.owed or None,
            }
        )
    if stopped.owed:
        raise typer.Exit(EXIT_FINDINGS)


def wait_for_stop(files: Files, timeout_seconds: float, *, as_json: bool) -> StoppedQuery:
    """Ask, wait, and say what happened, unless the command prints JSON."""
    from epochal.tools.switch.stop_query import Ending, stop_query

    def asked(owner: Attempt) -> None:
        if not as_json:
            print_line(
                f"Asked run {owner.run_id} (process {owner.process} on {owner.host}) to stop. "
                f"Waiting for at most {timeout_seconds:g} s."
            )

    with progress("waiting", "second") as advance:
        stopped = stop_query(
            files,
            timeout_seconds=timeout_seconds,
            clock=SystemClock(),
            on_asked=asked,
            advance=advance,
        )
    words = {
        Ending.STOPPED: f"The query has stopped after epoch {stopped.epoch}.",
        Ending.ENDED_BEFORE: f"No query runs on {files.url}. The last one, run {stopped.run_id}, "
        f"ended after epoch {stopped.epoch}.",
        Ending.DIED: f"The query's driver died after epoch {stopped.epoch}, before it had stopped.",
    }
    if not as_json:
        print_text(words[stopped.ending])
        if stopped.owed:
            print_text(f"Note: {stopped.owed}.")
    return stopped
