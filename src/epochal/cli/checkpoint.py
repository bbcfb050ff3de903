"""The command group `epochal checkpoint`, and its read-only commands."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from epochal.checkpoint.layout import SINK_LOG
from epochal.cli.arguments import Directory, Json
from epochal.cli.groups import LazyGroup, group_app
from epochal.cli.output import (
    EXIT_FINDINGS,
    print_facts,
    print_json,
    print_line,
    print_table,
    progress,
    time_text,
)
from epochal.errors import OptionError
from epochal.files import open_files

if TYPE_CHECKING:
    from epochal.tools.inspect.checkpoint_diff import Difference
    from epochal.tools.inspect.view_models import BatchView, CheckpointView

READING = "epochal.cli.checkpoint:reading"
WRITING = "epochal.cli.checkpoint_edit:app"

DEFAULT_LIMIT = 20


HELP = "Show, check, repair and edit the checkpoint of a streaming query."


class CheckpointCommands(LazyGroup):
    table: ClassVar[dict[str, str]] = {
        "show": READING,
        "log": READING,
        "diff": READING,
        "verify": READING,
        "rewind": WRITING,
        "set-offsets": WRITING,
        "repair": WRITING,
        "publish": WRITING,
        "copy": WRITING,
        "clone": "epochal.cli.switching.clone:app",
        "migrate-offsets": WRITING,
        "undo": WRITING,
    }


app = group_app(
    "checkpoint",
    CheckpointCommands,
    HELP,
)
reading = typer.Typer(rich_markup_mode=None)


@app.callback()
def checkpoint() -> None:
    """Show, check, repair and edit the checkpoint of a streaming query, without Spark or a JVM."""


@reading.command()
def show(
    location: Directory,
    as_json: Json = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=0,
            help="Show only the N newest batches. [default: 20; all with --json]",
        ),
    ] = None,
) -> None:
    """Show the query's id, batches, state and settings, and what a restart would do next.

    The command is read-only. For a damaged checkpoint it shows what it can read and names the files
    that it cannot read; then the exit status is 1. `epochal checkpoint verify` gives details.
    """
    from epochal.tools.inspect.show import inspect

    view = inspect(open_files(location))
    if as_json:
        document = view.as_json()
        if limit is not None:
            document["batches"] = [batch.as_json() for batch in newest(view.batches, limit)]
        print_json(document)
    else:
        _print_view(view, DEFAULT_LIMIT if limit is None else limit)
    if view.problems:
        raise typer.Exit(EXIT_FINDINGS)


@reading.command()
def log(
    location: Annotated[
        str,
        typer.Argument(
            metavar="LOGDIR",
            help="The directory of one log: offsets, commits or sources/N of a checkpoint, or "
            "_spark_metadata of an output directory.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """Print every live entry of one log directory, of any kind.

    With --json each entry is one line: {"batch_id": …, "entry": …}. For a compacting log of files
    each live file is one line.
    """
    import json

    from epochal.tools.inspect.log_entries import read_lines

    kind, lines, broken = read_lines(open_files(location))
    if as_json:
        for batch_id, entry in lines:
            print_json({"batch_id": batch_id, "entry": entry})
    else:
        print_line(f"{kind} log, {len(lines)} entries")
        rows = [(str(batch), json.dumps(entry, ensure_ascii=False)) for batch, entry in lines]
        print_table(("batch", "entry"), rows)
    if broken:
        raise broken[0]


@reading.command()
def diff(
    first: Directory,
    second: Annotated[
        str | None,
        typer.Argument(metavar="[OTHER]", help="A second checkpoint, as the new side."),
    ] = None,
    batches: Annotated[
        list[int] | None,
        typer.Option(
            "--batch",
            metavar="N",
            help="The batch to compare. Give it twice to compare two batches of one checkpoint, or "
            "once to compare the same batch of two checkpoints.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what differs between two batches, or between two checkpoints.

    The old side comes first: DIR is before and OTHER is after, or the first --batch is before and
    the second is after. `epochal state diff` has the same order.

    Offsets are compared part by part, so a Kafka offset shows each partition that moved. As with
    diff, the exit status is 1 if anything differs.
    """
    differences = _differences(first, second, batches or [])
    if as_json:
        print_json({"differences": [each.as_json() for each in differences]})
    elif not differences:
        print_line("no difference")
    else:
        rows = [(each.path, _text(each.before), _text(each.after)) for each in differences]
        print_table(("what", "before", "after"), rows)
    if differences:
        raise typer.Exit(EXIT_FINDINGS)


@reading.command()
def verify(
    location: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="A checkpoint, or the output directory of a file sink: a path or a URL.",
        ),
    ],
    as_json: Json = False,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Also replay the deltas below every snapshot and compare the result, and check "
            "files that contain their own checksums.",
        ),
    ] = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Check only logs and file names; do not read state files."),
    ] = False,
    sink: Annotated[
        str | None,
        typer.Option(
            "--sink",
            metavar="DIR",
            help="Also check this output directory of the query's file sink.",
        ),
    ] = None,
) -> None:
    """Check every file of a checkpoint, and every rule that Spark relies on.

    Each finding has a code, a severity, a path, what is wrong and what to do. Unusual but legal
    contents (gaps of asynchronous progress, missing partitions of global aggregates, temporary
    files) are not findings. The command is read-only. The exit status is 0 if the checkpoint is
    healthy, and 1 if any finding is worse than info.
    """
    from epochal.tools.verify.depth import Depth
    from epochal.tools.verify.verify import verify as verify_checkpoint

    if deep and quick:
        raise OptionError("--deep and --quick exclude each other. Give only one of them.")
    depth = Depth.DEEP if deep else Depth.QUICK if quick else Depth.NORMAL
    with progress("reading state") as advance:
        report = verify_checkpoint(
            open_files(_output_of(location)),
            depth=depth,
            sink=None if sink is None else open_files(_output_of(sink)),
            progress=advance,
            workers=os.cpu_count() or 1,
        )
    if as_json:
        print_json(report.as_json())
    else:
        for each in report.findings:
            print_line(f"{each.severity}: {each.code}  {each.path}")
            print_line(f"  {each.message}")
            print_line(f"  remedy: {each.remedy}")
        verdict = "healthy" if report.healthy else "not healthy"
        print_line(
            f"{verdict}: {len(report.findings)} findings in {report.files} files, "
            f"{report.batches} batches"
        )
    if not report.healthy:
        raise typer.Exit(EXIT_FINDINGS)


def _output_of(location: str) -> str:
    """The output directory; the user may also name the log inside it."""
    folder, _, name = location.rstrip("/").rpartition("/")
    return (folder or ".") if name == SINK_LOG else location


def newest(batches: tuple[BatchView, ...], limit: int) -> tuple[BatchView, ...]:
    """The last `limit` batches."""
    return batches[len(batches) - min(limit, len(batches)) :]


def _differences(first: str, second: str | None, batches: list[int]) -> list[Difference]:
    from epochal.tools.inspect.checkpoint_diff import diff_batches, diff_checkpoints
    from epochal.tools.inspect.show import inspect

    before = inspect(open_files(first))
    after = before if second is None else inspect(open_files(second))
    match batches:
        case []:
            if second is None:
                raise OptionError(
                    "diff: there is nothing to compare. Give two checkpoints, or --batch N "
                    "--batch M."
                )
            return diff_checkpoints(before, after)
        case [only] if second is not None:
            return diff_batches(_batch(before, only), _batch(after, only))
        case [one, other]:
            return diff_batches(_batch(before, one), _batch(after, other))
    raise OptionError(
        "diff: give --batch twice for one checkpoint, or once or twice for two checkpoints."
    )


def _batch(view: CheckpointView, batch_id: int) -> BatchView:
    for batch in view.batches:
        if batch.batch_id == batch_id:
            return batch
    known = [batch.batch_id for batch in view.batches]
    span = f"{known[0]} to {known[-1]}" if known else "none"
    raise OptionError(f"{view.url}: there is no batch {batch_id}. Choose one that exists: {span}.")


def _text(value: object) -> str:
    import json

    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def _print_view(view: CheckpointView, limit: int) -> None:
    print_facts(_facts(view))
    shown = newest(view.batches, limit)
    if shown:
        left_out = len(view.batches) - len(shown)
        title = f"batches ({left_out} older not shown)" if left_out else "batches"
        print_line()
        print_table(
            ("batch", "committed", "time", "watermark", "offsets"),
            [_batch_row(batch) for batch in shown],
            title=title,
        )
    _print_parts(view)
    _print_conf(view)
    for change in view.conf_changes:
        before, after = change.before or "(none)", change.after or "(none)"
        print_line(f"setting changed in batch {change.batch_id}: {change.key}: {before} → {after}")
    for problem in view.problems:
        print_line(f"problem: {problem.path}: {problem.message}")


def _facts(view: CheckpointView) -> list[tuple[str, str]]:
    from epochal.tools.inspect.view_models import offsets_json

    restart = view.restart
    facts = [
        ("checkpoint", view.url),
        ("query id", view.query_id or "-"),
        (
            "log versions",
            f"offsets {_v(view.offset_log_version)}, commits {_v(view.commit_log_version)}",
        ),
        ("a restart would", _restart_text(view)),
    ]
    if restart.start is not None:
        facts.append(("from", _text(offsets_json(restart.start))))
    if restart.end is not None:
        facts.append(("to", _text(offsets_json(restart.end))))
    facts += [("note", note) for note in restart.notes]
    facts += [("gap", f"{gap.log}: {gap.first} to {gap.last} are missing") for gap in view.gaps]
    if view.unpublished is not None:
        facts.append(
            (
                "unpublished",
                f"the state after batch {view.unpublished}; before Spark runs the query, stop it "
                f"gracefully or run `epochal checkpoint publish`",
            )
        )
    if view.owner is not None:
        alive = "holds the lease" if view.owner.has_lease else "has ended"
        facts.append(
            (
                "last run",
                f"{view.owner.run_id} ({view.owner.purpose}) on {view.owner.host}, {alive}",
            )
        )
    if view.edit is not None:
        facts.append(
            (
                "interrupted",
                f"{view.edit.command} ({view.edit.id}) is {view.edit.state}: run it "
                f"again to finish it, or `epochal checkpoint undo`",
            )
        )
    return facts


def _v(version: int | None) -> str:
    return "-" if version is None else f"v{version}"


def _restart_text(view: CheckpointView) -> str:
    restart = view.restart
    match restart.action.value:
        case "begin":
            return "begin a new query at batch 0"
        case "re-run":
            return f"run batch {restart.batch_id} again, from the same offsets to the same offsets"
        case "continue":
            return f"continue with batch {restart.batch_id}"
    condition = f"[{restart.condition}] " if restart.condition else ""
    return f"fail: {condition}{restart.reason}"


def _batch_row(batch: BatchView) -> tuple[str, ...]:
    return (
        str(batch.batch_id),
        "yes" if batch.committed else "no",
        "?" if batch.timestamp_ms is None else time_text(batch.timestamp_ms),
        "?" if batch.watermark_ms is None else time_text(batch.watermark_ms),
        "?" if batch.offsets is None else _text(batch.offsets),
    )


def _print_parts(view: CheckpointView) -> None:
    if view.sources:
        print_line()
        print_table(
            ("source", "kind", "entries", "latest", ""),
            [
                (
                    s.name,
                    s.kind,
                    str(s.entries),
                    "-" if s.latest is None else str(s.latest),
                    s.detail,
                )
                for s in view.sources
            ],
            title="source logs",
        )
    if view.sinks:
        print_line()
        print_table(
            ("sink", "provider", "api", "in use"),
            [
                (s.sink_name, s.provider_name, s.api_version, "yes" if s.is_active else "no")
                for s in view.sinks
            ],
            title="sinks",
        )
    rows = [
        (
            str(operator.operator_id),
            operator.name or "-",
            operator.provider or "-",
            str(operator.partitions),
            name,
            _span([s.min_version for s in stores], [s.max_version for s in stores]),
            _span([s.latest_snapshot for s in stores], [s.latest_snapshot for s in stores]),
        )
        for operator in view.operators
        for name, stores in operator.stores.items()
    ]
    if rows:
        print_line()
        columns = ("operator", "name", "provider", "partitions", "store", "versions", "snapshots")
        print_table(columns, rows, title="state")


def _print_conf(view: CheckpointView) -> None:
    """Print all pinned settings: a restart uses them instead of its session's."""
    pinned = next((batch for batch in reversed(view.batches) if batch.conf), None)
    if pinned is not None and pinned.conf:
        print_line()
        title = f"settings pinned by batch {pinned.batch_id}"
        print_table(("setting", "value"), sorted(pinned.conf.items()), title=title)


def _span(lows: list[int | None], highs: list[int | None]) -> str:
    low = [each for each in lows if each is not None]
    high = [each for each in highs if each is not None]
    return f"{min(low)}..{max(high)}" if low and high else "-"
