"""`epochal checkpoint rewind | set-offsets | repair | publish | copy | migrate-offsets | undo`.

Every command shows its plan, and changes nothing without `--execute`.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from epochal.cli.arguments import (
    ClientConfig,
    Directory,
    OptionalBootstrapServers,
    SinkFlags,
    open_place,
    parse_pairs,
    takes_groups,
)
from epochal.cli.editing import Flags, confirm, interruptible, parse_moment, run_edit
from epochal.cli.interruption import says_when_interrupted
from epochal.cli.printing.output import (
    EXIT_FINDINGS,
    print_json,
    print_line,
    print_table,
    print_text,
)
from epochal.cli.printing.progress_bar import progress
from epochal.errors import EditError, OptionError
from epochal.files import Files
from epochal.tools.edit.apply_edit import Conditions, require_quiet, undo
from epochal.tools.edit.apply_edit import prune as prune_edits
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.edit.edit_plan import Plan
from epochal.tools.inspect.listing import require_checkpoint, require_directory
from epochal.wording import counted, time_text

if TYPE_CHECKING:
    from epochal.tools.edit.offset_targets import Target

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@takes_groups
def rewind(
    directory: Directory,
    to_batch: Annotated[
        int | None, typer.Option(metavar="N", help="The last batch to keep.", min=0)
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Keep the batches planned up to this time, in ISO-8601; without a zone it is UTC.",
        ),
    ] = None,
    *,
    sink: SinkFlags,
    keep_sink_files: Annotated[
        bool,
        typer.Option(
            "--keep-sink-files",
            help="Do not delete the data files that rewinding removes from the log of --sink.",
        ),
    ] = False,
    flags: Flags,
) -> None:
    """Go back: the query restarts right after a batch, as if later batches had never run.

    Logs and state go back together. A file sink must go back, too, or it ignores the repeated
    batches: name its directory with --sink. A file source reads all later files again, in one
    batch.
    """
    from epochal.tools.edit.edit_file_log import find_sink
    from epochal.tools.edit.rewind import batch_at, plan_rewind
    from epochal.tools.edit.survey import survey

    if (to_batch is None) == (to_datetime is None):
        raise OptionError("Give exactly one of --to-batch and --to-datetime.")
    files, named = open_place(directory), sink.open()

    def plan() -> Plan:
        surveyed = survey(files)
        batch = batch_at(surveyed, parse_moment(to_datetime)) if to_datetime else to_batch
        assert batch is not None
        output = find_sink(surveyed, named)
        return plan_rewind(surveyed, batch, sink=output, keep_sink_files=keep_sink_files)

    run_edit(files, "rewind", plan, flags, places=[named.place])


@app.command("set-offsets")
@takes_groups
def set_offsets(
    directory: Directory,
    source: Annotated[
        str, typer.Option(metavar="I|NAME", help="The source: its index in the query, or its name.")
    ] = "0",
    to_offset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OFFSET",
            help="The new offset, as JSON or TOPIC:PARTITION:OFFSET; may be repeated.",
        ),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option(metavar="N", help="Move every offset by N, back if N is negative.")
    ] = None,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="Move to the oldest records.")
    ] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="Move to the end of every partition.")
    ] = False,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Move to the first record at or after this time, in ISO-8601; without a zone it "
            "is UTC.",
        ),
    ] = None,
    bootstrap_servers: OptionalBootstrapServers = None,
    client_config: ClientConfig = None,
    *,
    sink: SinkFlags,
    flags: Flags,
) -> None:
    """Move a source: add a finished batch from which the query continues at other offsets.

    Settings, watermark and state stay those of the last batch.
    """
    from epochal.tools.edit.edit_file_log import find_sink
    from epochal.tools.edit.offset_targets import no_broker
    from epochal.tools.edit.rewind import require_published
    from epochal.tools.edit.set_offsets import broker, plan_set_offsets
    from epochal.tools.edit.survey import survey

    target = _target(to_offset, shift_by, to_earliest, to_latest, to_datetime)
    settings = parse_pairs(client_config or [], "--client-config")
    ask = broker(bootstrap_servers, settings) if bootstrap_servers else no_broker
    files, named = open_place(directory), sink.open()

    def plan() -> Plan:
        surveyed = survey(files)
        require_published(surveyed)
        output = find_sink(surveyed, named)
        return plan_set_offsets(surveyed, source, target, sink=output, ask_broker=ask)

    run_edit(files, "set-offsets", plan, flags, places=[named.place])


def _target(
    to_offset: list[str] | None,
    shift_by: int | None,
    to_earliest: bool,
    to_latest: bool,
    to_datetime: str | None,
) -> Target:
    from epochal.tools.edit.offset_targets import ShiftBy, ToEarliest, ToLatest, ToOffset, ToTime

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
            "Give exactly one of --to-offset, --shift-by, --to-earliest, --to-latest and "
            "--to-datetime."
        )
    return targets[0]


@app.command("migrate-offsets")
@takes_groups
def migrate_offsets(
    directory: Directory,
    to: Annotated[str, typer.Option(metavar="v2", help="The version to convert to.")] = "v2",
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="I=NAME",
            help="Name the source with index I, to enable source evolution; may be repeated.",
        ),
    ] = None,
    *,
    flags: Flags,
) -> None:
    """Convert the offset log to version 2, in which Spark 4.2 and later can name sources."""
    from epochal.tools.edit.migrate_offsets import plan_migrate
    from epochal.tools.edit.survey import survey

    if to != "v2":
        raise OptionError(f"--to {to} is not supported: the only target is v2.")
    pairs = parse_pairs(name or [], "--name", "I=NAME")
    if not all(index.isdigit() for index in pairs):
        raise OptionError("--name takes the source's index in the query, as in 0=NAME or 1=NAME.")
    names = {int(index): value for index, value in pairs.items()}
    files = open_place(directory)
    run_edit(files, "migrate-offsets", lambda: plan_migrate(survey(files), names), flags)


@app.command()
@takes_groups
def repair(
    directory: Directory,
    code: Annotated[
        list[str] | None,
        typer.Option(metavar="CODE", help="Repair only findings with this code; may be repeated."),
    ] = None,
    query_id: Annotated[
        str | None,
        typer.Option(
            metavar="UUID",
            help="The query's id, if the file `metadata` is lost. [default: a new id]",
        ),
    ] = None,
    rewind: Annotated[
        bool, typer.Option("--rewind", help="Drop committed batches if nothing else helps.")
    ] = False,
    *,
    sink: SinkFlags,
    flags: Flags,
) -> None:
    """Repair what `verify` finds, as far as that is safe; list what is left and what would help.

    The exit status is 1 if findings are left: without --execute those that this command cannot
    repair, with it those that `verify` still finds.
    """
    from epochal.cli.editing import run_repair
    from epochal.tools.edit.repair_draft import RepairOptions

    options = RepairOptions(
        query_id=query_id or str(uuid.uuid4()), codes=frozenset(code or ()), may_go_back=rewind
    )
    named = sink.open()
    run_repair(open_place(directory), "repair", options, named, flags, lambda _: True)


@app.command()
@takes_groups
def publish(directory: Directory, *, flags: Flags) -> None:
    """Give the newest state of a continuous query Spark's names, so that Spark can run the query.

    A query that is stopped does this itself. After a crash its newest state is in `epochs` only.
    """
    from epochal.tools.edit.rewind import plan_publish
    from epochal.tools.edit.survey import survey

    files = open_place(directory)
    run_edit(files, "publish", lambda: plan_publish(survey(files)), flags)


@app.command()
@takes_groups
def copy(
    directory: Directory,
    destination: Annotated[
        str,
        typer.Argument(metavar="DEST", help="An empty directory for the copy: a path or a URL."),
    ],
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="OLD=NEW",
            help="An input or output path that has moved as well; may be repeated.",
        ),
    ] = None,
    sink: Annotated[
        str | None,
        typer.Option(
            metavar="OUTPUT", help="A moved output directory; --map also applies to its sink log."
        ),
    ] = None,
    *,
    flags: Flags,
) -> None:
    """Copy a checkpoint to another directory or storage, and adapt the paths inside it.

    To finish an interrupted copy, run the command again; `undo DEST` removes the copy.
    """
    from epochal.tools.edit.copy_checkpoint import plan_copy
    from epochal.tools.edit.edit_file_log import survey_sink
    from epochal.tools.edit.survey import survey

    moved = parse_pairs(map_ or [], "--map", "OLD=NEW")
    files, target = open_place(directory), open_place(destination)
    if flags.execute:
        _require_settled(files, flags.conditions())
    output = None if sink is None else open_place(sink)
    places = [files, output]
    surveyed_sink = None if output is None else survey_sink(output, target.url)
    applied = run_edit(
        target,
        "copy",
        lambda: plan_copy(survey(files), target, moved, sink=surveyed_sink),
        replace(flags, settle_seconds=0),
        places=places,
    )
    if applied is not None and applied.entry is not None:
        read_back = "Interrupted: the copy is done, but not every file was read back."
        with says_when_interrupted(lambda: read_back), progress("reading back") as advance:
            journal = Journal(target, places=[place for place in places if place is not None])
            journal.verify(applied.entry.id, advance)
        if not flags.as_json:
            print_line("Every file was read back and has the expected content.")


@app.command("undo")
@takes_groups
def undo_command(
    directory: Directory,
    entry: Annotated[
        str | None, typer.Argument(metavar="ID", help="The edit to undo. [default: the newest]")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the edits of this checkpoint.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="Forget finished edits, so that they cannot be undone any more."
        ),
    ] = False,
    sink: Annotated[
        str | None,
        typer.Option(
            metavar="OUTPUT", help="The output directory of the file sink that the edit changed."
        ),
    ] = None,
    other: Annotated[
        str | None, typer.Option(metavar="CHECKPOINT", help="The other checkpoint of a switch.")
    ] = None,
    *,
    flags: Flags,
) -> None:
    """Undo an edit, byte for byte. Edits are undone in reverse order, newest first.

    An edit cannot be undone once the query has continued, or if anything else has changed the same
    files. Without --execute the command reports this too, with exit status 1. An edit that changed
    an output directory or another checkpoint needs --sink or --other: what the journal in a
    checkpoint names is never opened by itself.
    """
    files = open_place(directory)
    require_directory(files)
    places = [open_place(named) for named in (sink, other) if named is not None]
    journal = Journal(files, places=places)
    if not journal.entries():
        require_checkpoint(files)
    if list_:
        _list_edits(journal, as_json=flags.as_json)
    elif prune:
        if flags.execute and journal.prunable():
            count = len(journal.prunable())
            them = "it" if count == 1 else "them"
            confirm(
                f"Forget {counted(count, 'edit')}? `epochal checkpoint undo` will not find {them} "
                f"again.",
                flags,
            )
        pruned = (
            prune_edits(files, replace(flags, settle_seconds=0, even_if_busy=True).conditions())
            if flags.execute
            else journal.prunable()
        )
        _show_pruned(pruned, execute=flags.execute, as_json=flags.as_json)
    elif not flags.execute:
        _show_undo(journal, entry, as_json=flags.as_json)
    else:
        with interruptible(files, "undo"), progress("undo") as advance:
            done = undo(files, entry, flags.conditions(places), advance)
        if flags.as_json:
            print_json({"command": "undo", "executed": True, "journal": done.id})
        else:
            print_line(f"Undone: {done.id}, {done.summary}.")


def _show_undo(journal: Journal, entry: str | None, *, as_json: bool) -> None:
    newest = journal.undoable(entry)
    named = f"{newest.id}: {newest.summary} ({counted(newest.changes, 'change')})"
    refused = journal.why_not_undo(newest.id)
    if as_json:
        reason = None if refused is None else str(refused)
        print_json({"command": "undo", "executed": False, "journal": newest.id, "refused": reason})
    elif refused is not None:
        print_line(f"Cannot undo {named}.")
        print_text(str(refused), "")
    else:
        print_line(f"Would undo {named}.")
        print_line("Nothing was changed. Run again with --execute to do it.")
    if refused is not None:
        raise typer.Exit(EXIT_FINDINGS)


def _list_edits(journal: Journal, *, as_json: bool) -> None:
    entries = journal.entries()
    if as_json:
        print_json(
            [
                {
                    "id": entry.id,
                    "state": entry.state.value,
                    "started_ms": entry.started_ms,
                    "command": entry.command,
                    "arguments": dict(entry.arguments),
                    "summary": entry.summary,
                    "changes": entry.changes,
                }
                for entry in entries
            ]
        )
        return
    if not entries:
        print_line("There are no edits.")
        return
    rows = [
        (
            entry.id,
            entry.state.value,
            time_text(entry.started_ms),
            str(entry.changes),
            entry.summary,
        )
        for entry in entries
    ]
    print_table(("id", "state", "started", "changes", "summary"), rows)


def _show_pruned(pruned: list[str], *, execute: bool, as_json: bool) -> None:
    if as_json:
        print_json({"command": "prune", "executed": execute, "pruned": pruned})
        return
    print_line(f"{'Forgot' if execute else 'Would forget'}: {', '.join(pruned) or 'nothing'}")


def _require_settled(files: Files, conditions: Conditions) -> None:
    """Raise if the checkpoint is changing, or if an edit of it is unfinished."""
    if (unfinished := Journal(files).unfinished()) is not None:
        raise EditError(
            files.url, f"{unfinished.id} is {unfinished.state}. Finish or undo it before copying."
        )
    require_quiet(files, conditions)
