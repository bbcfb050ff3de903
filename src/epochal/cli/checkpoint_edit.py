"""`epochal checkpoint rewind | set-offsets | repair | publish | copy | migrate-offsets | undo`.

Every command shows its plan, and changes nothing without `--execute`.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import typer

from epochal.cli.command_line import (
    BROKERS_HELP,
    ClientConfig,
    CommandApp,
    Directory,
    argument,
    flag,
    open_place,
    option,
    parse_pairs,
    says_when_interrupted,
)
from epochal.cli.editing import (
    CheckpointEdit,
    Flags,
    confirm,
    interruptible,
    parse_moment,
    run_edit,
    run_repair,
)
from epochal.cli.printing.output import (
    EXIT_FINDINGS,
    print_json,
    print_line,
    print_table,
    print_text,
    progress,
)
from epochal.errors import EditError, OptionError
from epochal.tools.edit.apply_edit import prune as prune_edits
from epochal.tools.edit.apply_edit import require_quiet, undo
from epochal.tools.edit.edit_journal import Journal
from epochal.tools.inspect.listing import require_checkpoint, require_directory
from epochal.wording import counted, time_text

if TYPE_CHECKING:
    from epochal.tools.edit.edit_file_log import SinkSurvey
    from epochal.tools.edit.edit_plan import Plan
    from epochal.tools.edit.offset_targets import Target
    from epochal.tools.edit.survey import Survey

app = CommandApp(add_completion=False, rich_markup_mode=None)


@app.command()
def rewind(
    edit: CheckpointEdit,
    to_batch: int | None = option("N", "The last batch to keep.", min=0),
    to_datetime: str | None = option(
        "TIME", "Keep the batches planned up to this time, in ISO-8601; without a zone it is UTC."
    ),
    keep_sink_files: bool = flag(
        "--keep-sink-files",
        "Do not delete the data files that rewinding removes from the log of --sink.",
    ),
) -> None:
    """Go back: the query restarts right after a batch, as if later batches had never run.

    Logs and state go back together. A file sink must go back, too, or it ignores the repeated
    batches: name its directory with --sink. A file source reads all later files again, in one
    batch.
    """
    from epochal.tools.edit.rewind import batch_at, plan_rewind

    if (to_batch is None) == (to_datetime is None):
        raise OptionError("Give exactly one of --to-batch and --to-datetime.")

    def plan(surveyed: Survey, *, sink: SinkSurvey | None) -> Plan:
        batch = batch_at(surveyed, parse_moment(to_datetime)) if to_datetime else to_batch
        assert batch is not None
        return plan_rewind(surveyed, batch, sink=sink, keep_sink_files=keep_sink_files)

    edit.run("rewind", plan, of_published=False)


@dataclass(frozen=True, kw_only=True)
class OffsetMove:
    """Where a source is moved to: one of these options."""

    to_offset: list[str] | None = option(
        "OFFSET", "The new offset, as JSON or TOPIC:PARTITION:OFFSET; may be repeated."
    )
    shift_by: int | None = option("N", "Move every offset by N, back if N is negative.")
    to_earliest: bool = flag("--to-earliest", "Move to the oldest records.")
    to_latest: bool = flag("--to-latest", "Move to the end of every partition.")
    to_datetime: str | None = option(
        "TIME",
        "Move to the first record at or after this time, in ISO-8601; without a zone it is UTC.",
    )

    def target(self) -> Target:
        from epochal.tools.edit import offset_targets as to

        targets = (
            to.ToOffset(tuple(self.to_offset)) if self.to_offset else None,
            None if self.shift_by is None else to.ShiftBy(self.shift_by),
            to.ToEarliest() if self.to_earliest else None,
            to.ToLatest() if self.to_latest else None,
            None if self.to_datetime is None else to.ToTime(parse_moment(self.to_datetime)),
        )
        match [target for target in targets if target is not None]:
            case [target]:
                return target
        raise OptionError(
            "Give exactly one of --to-offset, --shift-by, --to-earliest, --to-latest and "
            "--to-datetime."
        )


@app.command("set-offsets")
def set_offsets(
    edit: CheckpointEdit,
    move: OffsetMove,
    source: str = option("I|NAME", "The source: its index in the query, or its name.", default="0"),
    bootstrap_servers: str | None = option("HOST:PORT", BROKERS_HELP),
    client_config: ClientConfig = None,
) -> None:
    """Move a source: add a finished batch from which the query continues at other offsets.

    Settings, watermark and state stay those of the last batch.
    """
    from epochal.tools.edit.offset_targets import no_broker
    from epochal.tools.edit.set_offsets import broker, plan_set_offsets

    settings = parse_pairs(client_config, "--client-config")
    ask = broker(bootstrap_servers, settings) if bootstrap_servers else no_broker
    plan = partial(plan_set_offsets, source=source, target=move.target(), ask_broker=ask)
    edit.run("set-offsets", plan)


@app.command("migrate-offsets")
def migrate_offsets(
    directory: Directory,
    flags: Flags,
    to: str = option("v2", "The version to convert to.", default="v2"),
    name: list[str] | None = option(
        "I=NAME", "Name the source with index I, to enable source evolution; may be repeated."
    ),
) -> None:
    """Convert the offset log to version 2, in which Spark 4.2 and later can name sources."""
    from epochal.tools.edit.migrate_offsets import plan_migrate
    from epochal.tools.edit.survey import survey

    if to != "v2":
        raise OptionError(f"--to {to} is not supported: the only target is v2.")
    pairs = parse_pairs(name, "--name", "I=NAME")
    if not all(index.isdecimal() and len(index) < 10 for index in pairs):
        raise OptionError("--name takes the source's index in the query, as in 0=NAME or 1=NAME.")
    names = {int(index): value for index, value in pairs.items()}
    files = open_place(directory)
    run_edit(files, "migrate-offsets", lambda: plan_migrate(survey(files), names), flags)


@app.command()
def repair(
    edit: CheckpointEdit,
    code: list[str] | None = option(
        "CODE", "Repair only findings with this code; may be repeated."
    ),
    query_id: str | None = option(
        "UUID", "The query's id, if the file `metadata` is lost. [default: a new id]"
    ),
    rewind: bool = flag("--rewind", "Drop committed batches if nothing else helps."),
) -> None:
    """Repair what `verify` finds, as far as that is safe; list what is left and what would help.

    The exit status is 1 if findings are left: without --execute those that this command cannot
    repair, with it those that `verify` still finds.
    """
    from epochal.tools.edit.repair_draft import RepairOptions

    options = RepairOptions(
        query_id=query_id or str(uuid.uuid4()), codes=frozenset(code or ()), may_go_back=rewind
    )
    run_repair(edit, "repair", options, lambda _: True)


@app.command()
def publish(directory: Directory, flags: Flags) -> None:
    """Give the newest state of a continuous query Spark's names, so that Spark can run the query.

    A query that is stopped does this itself. After a crash its newest state is in `epochs` only.
    """
    from epochal.tools.edit.rewind import plan_publish
    from epochal.tools.edit.survey import survey

    files = open_place(directory)
    run_edit(files, "publish", lambda: plan_publish(survey(files)), flags)


@app.command()
def copy(
    directory: Directory,
    flags: Flags,
    destination: str = argument("DEST", "An empty directory for the copy: a path or a URL."),
    map_: list[str] | None = option(
        "OLD=NEW", "An input or output path that has moved as well; may be repeated.", "--map"
    ),
    sink: str | None = option(
        "OUTPUT", "A moved output directory; --map also applies to its sink log."
    ),
) -> None:
    """Copy a checkpoint to another directory or storage, and adapt the paths inside it.

    To finish an interrupted copy, run the command again; `undo DEST` removes the copy.
    """
    from epochal.tools.edit.copy_checkpoint import plan_copy
    from epochal.tools.edit.edit_file_log import survey_sink
    from epochal.tools.edit.survey import survey

    moved = parse_pairs(map_, "--map", "OLD=NEW")
    files, target = open_place(directory), open_place(destination)
    if flags.execute:
        if (unfinished := Journal(files).unfinished()) is not None:
            state = f"{unfinished.id} is {unfinished.state}"
            raise EditError(files.url, f"{state}. Finish or undo it before copying.")
        require_quiet(files, flags.conditions())
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
def undo_command(
    directory: Directory,
    flags: Flags,
    entry: str | None = argument("ID", "The edit to undo. [default: the newest]", default=None),
    list_: bool = flag("--list", "List the edits of this checkpoint."),
    prune: bool = flag("--prune", "Forget finished edits, so that they cannot be undone any more."),
    sink: str | None = option(
        "OUTPUT", "The output directory of the file sink that the edit changed."
    ),
    other: str | None = option("CHECKPOINT", "The other checkpoint of a switch."),
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
        if flags.as_json:
            print_json({"command": "prune", "executed": flags.execute, "pruned": pruned})
        else:
            verb = "Forgot" if flags.execute else "Would forget"
            print_line(f"{verb}: {', '.join(pruned) or 'nothing'}")
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
        print_json([asdict(entry) for entry in entries])
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
