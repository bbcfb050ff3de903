"""`epochal switch`, `epochal stop`, `epochal checkpoint clone`: go on with another checkpoint."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from epochal.checkpoint.claim import Claim, ClaimAttempt
from epochal.cli.command_line import (
    CommandApp,
    Directory,
    Json,
    NoFileSink,
    SinkFlags,
    argument,
    flag,
    open_place,
    option,
)
from epochal.cli.editing import Execute, Flags, Verbose, run_edit
from epochal.cli.printing.output import EXIT_FINDINGS, print_json, print_line, print_text, progress
from epochal.clock import SystemClock
from epochal.errors import EditError, EpochalError, OptionError
from epochal.files import Files
from epochal.tools.edit.apply_edit import require_quiet, undo
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Plan

if TYPE_CHECKING:
    from epochal.tools.edit.edit_file_log import NamedSink
    from epochal.tools.switch.stop_query import StoppedQuery


TRIES = 3
"""A running query may delete files while they are copied. Then a newer epoch is cloned."""

app = CommandApp(add_completion=False, rich_markup_mode=None)


@app.command()
def switch(
    directory: Directory,
    flags: Flags,
    sink: SinkFlags,
    to: str | None = option(
        "DEST",
        "The checkpoint to go on with: an empty directory, or a clone that ends at the same place.",
    ),
    back: str | None = option(
        "FROM", "Return to DIR, from the checkpoint to which the query was switched."
    ),
    output_restored: bool = flag(
        "--output-restored",
        "With --back: the output is as it was at the switch, or may have rows twice.",
    ),
    stop: bool = flag(
        "--stop",
        "With --execute: first ask the query that is switched away to stop, as `epochal stop` "
        "does. Not for Spark's own queries.",
    ),
    timeout: float = option("SECONDS", "How long to wait for the query.", default=120.0, min=0),
) -> None:
    """Switch a query to another checkpoint at the end of an epoch, or back.

    Both queries must be stopped. --stop asks the one that is switched away; it must be a query of
    Epochal's. Afterwards only one of the two checkpoints can be started. If the command is
    interrupted, run it again to finish it; `epochal checkpoint undo` on the checkpoint that was to
    be opened reverts it.
    """
    named = to if back is None else back
    if named is None or (to is not None and back is not None):
        raise OptionError("Give exactly one of --to and --back.")
    here, there, output = open_place(directory), open_place(named), sink.open()
    stop_seconds = timeout if stop else None
    if back is None:
        plan = _forth(here, there, output, stop_seconds)
        _run(here, there, output, plan, flags, stop_seconds)
    else:
        plan = _back(here, there, output, output_restored)
        _run(there, here, output, plan, flags, stop_seconds)


def _forth(
    old: Files, target: Files, named: NamedSink, stop_seconds: float | None
) -> Callable[[], Plan]:
    from epochal.tools.edit.copy_checkpoint import refuse_nested, refuse_occupied
    from epochal.tools.edit.edit_file_log import find_sink
    from epochal.tools.edit.survey import last_committed, survey
    from epochal.tools.inspect.listing import PARTS
    from epochal.tools.switch.switch import plan_existing, plan_new

    query_id = str(uuid.uuid4())

    def is_new() -> bool:
        return not {info.name for info in target.list()}.intersection(PARTS)

    if stop_seconds is not None:  # no reason to stop a query for a target that cannot be used
        refuse_nested(old.url, target.url)
        if is_new():
            refuse_occupied(target)

    def plan() -> Plan:
        surveyed = survey(old)
        if is_new():
            return plan_new(surveyed, target, query_id)
        new = survey(target)
        moved_on = last_committed(new) != last_committed(surveyed)
        output = find_sink(surveyed, named) if moved_on else None
        return plan_existing(surveyed, new, output)

    return plan


def _back(old: Files, new: Files, named: NamedSink, restored: bool) -> Callable[[], Plan]:
    from epochal.tools.edit.edit_file_log import survey_sink
    from epochal.tools.edit.survey import survey
    from epochal.tools.switch.switch import SwitchedOutput, plan_back

    def plan() -> Plan:
        surveyed = survey(new)
        sink = named.place
        version = None if sink is None else _delta_version(sink, new, old)
        if sink is not None and version is not None:
            output = SwitchedOutput(None, restored, f"version {version} of {sink.url}")
        else:
            output = SwitchedOutput(None if sink is None else survey_sink(sink, old.url), restored)
        return plan_back(survey(old), surveyed, output)

    return plan


def _delta_version(table: Files, new: Files, old: Files) -> int | None:
    """The version of a Delta table at the switch; None if it is not a Delta table."""
    from epochal.checkpoint.entries import QueryMetadata
    from epochal.tools.switch.delta_output import epochs_by_version, version_after
    from epochal.tools.switch.query_outputs import DELTA_LOG
    from epochal.tools.switch.switch import read_switched

    if table.info(DELTA_LOG) is None:
        return None
    metadata = QueryMetadata.read(new)
    versions = {} if metadata is None else epochs_by_version(table, metadata.id)
    return version_after(versions, read_switched(old).new_epoch)


def _run(
    closed: Files,
    opened: Files,
    named: NamedSink,
    plan: Callable[[], Plan],
    flags: Flags,
    stop_seconds: float | None,
) -> None:
    from epochal.tools.switch.switch import COMMAND

    if not flags.execute:
        run_edit(opened, COMMAND, plan, flags)
        if stop_seconds is not None and not flags.as_json:
            print_line(
                "With --execute the query is stopped first, and the switch is where it ends."
            )
        return
    # An interrupted switch has closed the checkpoint already: nothing can run there.
    if stop_seconds is not None and Journal(opened).unfinished() is None:
        wait_for_stop(closed, stop_seconds, as_json=flags.as_json)
    try:
        conditions = flags.conditions()
        # None of our queries may run meanwhile on the checkpoint that is closed.
        with Claim.acquire(closed, conditions.run_id, purpose="switch"):
            require_quiet(closed, conditions)
            run_edit(opened, COMMAND, plan, flags, places=[closed, named.place])
    except EpochalError:
        if stop_seconds is not None:
            typer.echo(
                f"epochal: the query on {closed.url} is stopped, but was not switched. Remove the "
                f"obstacle and run the same command again, or start the query again there.",
                err=True,
            )
        raise


@app.command("stop")
def stop(
    directory: Directory,
    timeout: float = option("SECONDS", "How long to wait for the query.", default=120.0, min=0),
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

    def asked(owner: ClaimAttempt) -> None:
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


@app.command()
def clone(
    directory: Directory,
    destination: str = argument("DEST", "An empty directory for the clone: a path or a URL."),
    at: int | None = option(
        "N", "Go on after this epoch. [default: the newest committed one]", min=0
    ),
    until: int | None = option(
        "M", "Plan the clone's first epoch: it reads what the query read up to epoch M.", min=0
    ),
    sink: str | None = option(
        "OUTPUT", "The new output directory of the clone's file sink; its log is begun there."
    ),
    no_file_sink: NoFileSink = False,
    query_id: str | None = option("UUID", "The query id of the clone. [default: a new id]"),
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
    named = SinkFlags(sink=sink, no_file_sink=no_file_sink).open()
    if (output := named.place) is None and not named.is_absent:
        raise OptionError(
            "The log of a file sink must have every batch, also those before the clone's first: "
            "pass the clone's new output directory with --sink, or --no-file-sink if it does not "
            "write to a file sink."
        )
    options = CloneOptions(query_id=query_id or str(uuid.uuid4()), at=at, until=until)
    flags = Flags(
        execute=execute,
        verbose=verbose,
        as_json=as_json,
        settle_seconds=0,
        even_if_busy=True,
        yes=True,
    )

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
    raise EditError(
        files.url,
        f"{missing} was deleted while the checkpoint was cloned: the query keeps too few epochs "
        f"for the time that this takes. Nothing is left of the clone. Set minBatchesToRetain "
        f"(spark.sql.streaming.minBatchesToRetain) higher, or stop the query first.",
    )
