"""`epochal checkpoint clone`."""

from __future__ import annotations

import uuid
from typing import Annotated

import typer

from epochal.cli.arguments import (
    Directory,
    Execute,
    Json,
    NoFileSink,
    SinkFlags,
    Verbose,
    open_place,
)
from epochal.cli.editing import Flags, run_edit
from epochal.errors import EditError, OptionError
from epochal.files import Files
from epochal.tools.edit.apply_edit import undo
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Plan

TRIES = 3
"""A running query may delete files while they are copied. Then a newer epoch is cloned."""

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("clone")
def clone(
    directory: Directory,
    destination: Annotated[
        str,
        typer.Argument(metavar="DEST", help="An empty directory for the clone: a path or a URL."),
    ],
    at: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Go on after this epoch. [default: the newest committed one]"
        ),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            metavar="M",
            min=0,
            help="Plan the clone's first epoch: it reads what the query read up to epoch M.",
        ),
    ] = None,
    sink: Annotated[
        str | None,
        typer.Option(
            metavar="OUTPUT",
            help="The new output directory of the clone's file sink; its log is begun there.",
        ),
    ] = None,
    no_file_sink: NoFileSink = False,
    query_id: Annotated[
        str | None,
        typer.Option(metavar="UUID", help="The query id of the clone. [default: a new id]"),
    ] = None,
    execute: Execute = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> None:
    """Clone a checkpoint, for another version of the query with an output of its own.

    The query may run meanwhile. The clone has a new query id, and what a restart after one
    committed epoch needs. `undo DEST` removes a clone that has not run.
    """
    from epochal.tools.edit.survey import survey
    from epochal.tools.switch.clone import COMMAND, CloneOptions, plan_clone

    files, target = open_place(directory), open_place(destination)
    output = _output(sink, no_file_sink)
    options = CloneOptions(query_id=query_id or str(uuid.uuid4()), at=at, until=until)
    flags = Flags(execute, verbose, as_json, settle_seconds=0, even_if_busy=True, yes=True)

    def plan() -> Plan:
        return plan_clone(survey(files), target, options, output=output)

    for _ in range(TRIES):
        try:
            run_edit(target, COMMAND, plan, flags, places=[files, output])
            return
        except FileNotFoundError as error:
            if files.info("") is None:
                raise
            missing = error.filename or str(error)
        if Journal(target).unfinished() is not None:
            undo(target, None, flags.conditions([files, output]))
        if at is not None:
            break
    raise _outrun(files, missing)


def _outrun(files: Files, missing: str) -> EditError:
    """The error of a clone whose files the running query deletes faster than they are copied."""
    return EditError(
        files.url,
        f"{missing} was deleted while the checkpoint was cloned: the query keeps too few epochs "
        f"for the time that this takes. Nothing is left of the clone. Set minBatchesToRetain "
        f"(spark.sql.streaming.minBatchesToRetain) higher, or stop the query first.",
    )


def _output(sink: str | None, no_file_sink: bool) -> Files | None:
    named = SinkFlags(sink=sink, no_file_sink=no_file_sink).open()
    if named.place is None and not named.is_absent:
        raise OptionError(
            "The log of a file sink must have every batch, also those before the clone's first: "
            "pass the clone's new output directory with --sink, or --no-file-sink if it does not "
            "write to a file sink."
        )
    return named.place
