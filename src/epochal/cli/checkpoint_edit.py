"""`epochal checkpoint rewind | set-offsets | repair | copy | migrate-offsets | undo`.

Every command plans, shows the plan, and changes nothing until `--execute`.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from epochal.cli.editing import (
    SETTLE_SECONDS,
    Directory,
    EvenIfBusy,
    Execute,
    Flags,
    Json,
    SettleSeconds,
    Sink,
    open_sink,
    pairs,
    parse_moment,
    run_edit,
)
from epochal.cli.output import (
    EXIT_FINDINGS,
    print_json,
    print_line,
    print_table,
    progress,
    time_text,
)
from epochal.errors import EditError, OptionError
from epochal.files import Files, open_files
from epochal.tools.edit.apply_edit import Conditions, require_quiet, undo
from epochal.tools.edit.apply_edit import prune as prune_edits
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Plan

if TYPE_CHECKING:
    from epochal.tools.edit.offsets.offset_targets import Target

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def rewind(
    directory: Directory,
    to_batch: Annotated[
        int | None, typer.Option(metavar="N", help="The last batch to keep.", min=0)
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Keep what was cut up to then; ISO-8601, UTC if no zone."
        ),
    ] = None,
    sink: Sink = None,
    keep_sink_files: Annotated[
        bool, typer.Option("--keep-sink-files", help="Leave the data files that --sink unlists.")
    ] = False,
    execute: Execute = False,
    as_json: Json = False,
    settle_seconds: SettleSeconds = SETTLE_SECONDS,
    even_if_busy: EvenIfBusy = False,
) -> None:
    """Go back: the query restarts right after a batch, as if later ones had never run.

    Logs and state go back together. A file sink needs --sink, or it skips what is replayed. A file
    source reads again what came after, all in one batch.
    """
    from epochal.tools.edit.rewind import batch_at, plan_rewind
    from epochal.tools.edit.survey import survey

    if (to_batch is None) == (to_datetime is None):
        raise OptionError("Give one of --to-batch and --to-datetime.")
    files = open_files(directory)

    def plan() -> Plan:
        surveyed = survey(files)
        batch = batch_at(surveyed, parse_moment(to_datetime)) if to_datetime else to_batch
        assert batch is not None
        return plan_rewind(surveyed, batch, sink=open_sink(sink)(), keep_sink_files=keep_sink_files)

    run_edit(
        files,
        "rewind",
        plan,
        Flags(execute, as_json, settle_seconds, even_if_busy),
    )


@app.command("set-offsets")
def set_offsets(
    directory: Directory,
    source: Annotated[
        str, typer.Option(metavar="I|NAME", help="The source: its place in the query, or its name.")
    ] = "0",
    to_offset: Annotated[
        list[str] | None,
        typer.Option(metavar="OFFSET", help="JSON, or TOPIC:PARTITION:OFFSET; may be repeated."),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option(metavar="N", help="Forward, or back if negative.")
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest")] = False,
    to_datetime: Annotated[
        str | None, typer.Option(metavar="TIME", help="ISO-8601, UTC if no zone.")
    ] = None,
    bootstrap_servers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The Kafka broker to ask.")
    ] = None,
    client_config: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A setting of the Kafka client (librdkafka)."),
    ] = None,
    sink: Sink = None,
    execute: Execute = False,
    as_json: Json = False,
    settle_seconds: SettleSeconds = SETTLE_SECONDS,
    even_if_busy: EvenIfBusy = False,
) -> None:
    """Move a source: add a finished batch after which the query goes on from other offsets.

    Settings, watermark and state are those of the last batch.
    """
    from epochal.tools.edit.offsets.broker_offsets import broker
    from epochal.tools.edit.offsets.offset_targets import no_broker
    from epochal.tools.edit.offsets.set_offsets import plan_set_offsets
    from epochal.tools.edit.survey import survey

    target = _target(to_offset, shift_by, to_earliest, to_latest, to_datetime)
    settings = pairs(client_config or [], "--client-config")
    ask = broker(bootstrap_servers, settings) if bootstrap_servers else no_broker
    files = open_files(directory)
    run_edit(
        files,
        "set-offsets",
        lambda: plan_set_offsets(
            survey(files), source, target, sink=open_sink(sink)(), ask_broker=ask
        ),
        Flags(execute, as_json, settle_seconds, even_if_busy),
    )


def _target(
    to_offset: list[str] | None,
    shift_by: int | None,
    to_earliest: bool,
    to_latest: bool,
    to_datetime: str | None,
) -> Target:
    from epochal.tools.edit.offsets.offset_targets import (
        ShiftBy,
        ToEarliest,
        ToLatest,
        ToOffset,
        ToTime,
    )

    targets: list[Target] = []
    if to_offset:
        targets.append(ToOffset(tuple(to_offset)))
    if shift_by is not None:
        targets.append(ShiftBy(shift_by))
    if to_earliest:
        targets.append(ToEarliest())
    if to_latest:
        targets.append(ToLatest())
    if to_datetime is not None:
        targets.append(ToTime(parse_moment(to_datetime)))
    if len(targets) != 1:
        raise OptionError(
            "Give one of --to-offset, --shift-by, --to-earliest, --to-latest and --to-datetime."
        )
    return targets[0]


@app.command("migrate-offsets")
def migrate_offsets(
    directory: Directory,
    to: Annotated[str, typer.Option(metavar="v2", help="The version to convert to.")] = "v2",
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="I=NAME", help="Name a source, to enable source evolution."),
    ] = None,
    execute: Execute = False,
    as_json: Json = False,
    settle_seconds: SettleSeconds = SETTLE_SECONDS,
    even_if_busy: EvenIfBusy = False,
) -> None:
    """Convert the offset log to version 2, which Spark 4.2 and later can name sources with."""
    from epochal.tools.edit.offsets.migrate_offsets import plan_migrate
    from epochal.tools.edit.survey import survey

    if to != "v2":
        raise OptionError(f"--to {to}: only v2 can be converted to.")
    named = pairs(name or [], "--name")
    if not all(place.isdigit() for place in named):
        raise OptionError("--name takes the source's place in the query: 0=NAME, 1=NAME.")
    names = {int(place): value for place, value in named.items()}
    files = open_files(directory)
    run_edit(
        files,
        "migrate-offsets",
        lambda: plan_migrate(survey(files), names),
        Flags(execute, as_json, settle_seconds, even_if_busy),
    )


@app.command()
def repair(
    directory: Directory,
    code: Annotated[
        list[str] | None,
        typer.Option(metavar="CODE", help="Mend only findings of this code; may be repeated."),
    ] = None,
    query_id: Annotated[
        str | None,
        typer.Option(metavar="UUID", help="The query's id, if `metadata` is lost; else a new one."),
    ] = None,
    rewind: Annotated[
        bool,
        typer.Option("--rewind", help="Drop committed batches where nothing else helps."),
    ] = False,
    execute: Execute = False,
    as_json: Json = False,
    settle_seconds: SettleSeconds = SETTLE_SECONDS,
    even_if_busy: EvenIfBusy = False,
) -> None:
    """Mend what `verify` finds, as far as that is safe; say what is left and what would help.

    Exit status 1 if findings are left that this command cannot mend.
    """
    from epochal.tools.edit.repair import Left, plan_repair
    from epochal.tools.edit.repair_draft import RepairOptions
    from epochal.tools.edit.survey import survey
    from epochal.tools.verify.verify import verify

    files = open_files(directory)
    options = RepairOptions(
        query_id=query_id or str(uuid.uuid4()), codes=frozenset(code or ()), may_go_back=rewind
    )
    left: list[Left] = []

    def plan() -> Plan:
        found = plan_repair(survey(files), verify(files).findings, options)
        left[:] = found.left
        return found.plan

    run_edit(
        files,
        "repair",
        plan,
        Flags(execute, as_json, settle_seconds, even_if_busy),
        more=lambda: {"left": [{**each.finding.as_json(), "reason": each.reason} for each in left]},
    )
    if not as_json:
        for each in left:
            print_line(f"left: {each.finding.code} {each.finding.path}: {each.reason}")
    if left:
        raise typer.Exit(EXIT_FINDINGS)


@app.command()
def copy(
    directory: Directory,
    destination: Annotated[
        str, typer.Argument(metavar="DEST", help="An empty place: a path or a URL.")
    ],
    map_: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="OLD=NEW", help="Input or output that has moved as well."),
    ] = None,
    sink: Annotated[
        str | None,
        typer.Option(metavar="OUTPUT", help="A moved output whose sink log is to follow --map."),
    ] = None,
    execute: Execute = False,
    as_json: Json = False,
    settle_seconds: SettleSeconds = SETTLE_SECONDS,
    even_if_busy: EvenIfBusy = False,
) -> None:
    """Copy a checkpoint to another place or storage, with the paths inside made right.

    An interrupted copy is finished by running it again; `undo DEST` removes it.
    """
    from epochal.tools.edit.copy_checkpoint import plan_copy
    from epochal.tools.edit.survey import survey

    moved = pairs(map_ or [], "--map")
    files, target = open_files(directory), open_files(destination)
    flags = Flags(execute, as_json, settle_seconds, even_if_busy)
    if execute:
        _require_still(files, flags.conditions())
    applied = run_edit(
        target,
        "copy",
        lambda: plan_copy(survey(files), target, moved, sink=open_sink(sink)()),
        replace(flags, settle_seconds=0),
    )
    if applied is not None and applied.entry is not None:
        with progress("verify") as advance:
            Journal(target).verify(applied.entry.id, advance)
        if not as_json:
            print_line("Every file was read back and is as it should be.")


@app.command("undo")
def undo_command(
    directory: Directory,
    entry: Annotated[
        str | None, typer.Argument(metavar="ID", help="Which edit; the newest if not given.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the edits made here.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Forget finished edits; they cannot be undone then.")
    ] = False,
    execute: Execute = False,
    as_json: Json = False,
    settle_seconds: SettleSeconds = SETTLE_SECONDS,
    even_if_busy: EvenIfBusy = False,
) -> None:
    """Take an edit back, byte for byte; edits are undone from the newest.

    Refused once the query has gone on, or when anything else has changed the same files; without
    --execute that is said too, with exit status 1.
    """
    files = open_files(directory)
    journal = Journal(files)
    flags = Flags(execute, as_json, settle_seconds, even_if_busy)
    if list_:
        _list_edits(journal, as_json=as_json)
    elif prune:
        found = (
            prune_edits(files, replace(flags, settle_seconds=0, even_if_busy=True).conditions())
            if execute
            else journal.prunable()
        )
        _show_pruned(found, execute=execute, as_json=as_json)
    elif not execute:
        _show_undo(journal, entry, as_json=as_json)
    else:
        with progress("undo") as advance:
            done = undo(files, entry, flags.conditions(), advance)
        if as_json:
            print_json({"command": "undo", "executed": True, "journal": done.id})
        else:
            print_line(f"Undone: {done.id}, {done.summary}.")


def _show_undo(journal: Journal, entry: str | None, *, as_json: bool) -> None:
    newest = journal.undoable(entry)
    refused = journal.why_not_undo(newest.id)
    if as_json:
        reason = None if refused is None else str(refused)
        print_json({"command": "undo", "executed": False, "journal": newest.id, "refused": reason})
    elif refused is not None:
        print_line(f"Cannot undo {newest.id}: {newest.summary} ({newest.changes} changes).")
        print_line(str(refused))
    else:
        print_line(f"Would undo {newest.id}: {newest.summary} ({newest.changes} changes).")
        print_line("Nothing was changed. Run again with --execute to do it.")
    if refused is not None:
        raise typer.Exit(EXIT_FINDINGS)


def _list_edits(journal: Journal, *, as_json: bool) -> None:
    entries = journal.entries()
    if as_json:
        print_json(
            [
                {
                    "id": each.id,
                    "state": each.state.value,
                    "started_ms": each.started_ms,
                    "command": each.command,
                    "arguments": dict(each.arguments),
                    "summary": each.summary,
                    "changes": each.changes,
                }
                for each in entries
            ]
        )
        return
    rows = [
        (each.id, each.state.value, time_text(each.started_ms), str(each.changes), each.summary)
        for each in entries
    ]
    print_table(("id", "state", "started", "changes", "summary"), rows)


def _show_pruned(found: list[str], *, execute: bool, as_json: bool) -> None:
    if as_json:
        print_json({"command": "prune", "executed": execute, "pruned": found})
        return
    print_line(f"{'Forgot' if execute else 'Would forget'}: {', '.join(found) or 'nothing'}")


def _require_still(files: Files, given: Conditions) -> None:
    """A checkpoint that is copied must not change meanwhile, nor be between two states."""
    if (unfinished := Journal(files).unfinished()) is not None:
        raise EditError(
            files.url, f"{unfinished.id} is {unfinished.state}: finish or undo it before copying."
        )
    require_quiet(files, given)
