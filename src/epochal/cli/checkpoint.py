"""The command group `epochal checkpoint`, and its read-only commands."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from epochal.checkpoint.layout import SINK_LOG, SOURCES
from epochal.cli.command_line import (
    Directory,
    Json,
    NoFileSink,
    SinkFlags,
    argument,
    flag,
    group_app,
    open_place,
    option,
)
from epochal.cli.printing.checkpoint_text import newest, print_entries, print_report, print_view
from epochal.cli.printing.output import (
    EXIT_FINDINGS,
    print_json,
    print_line,
    print_table,
    print_text,
    progress,
)
from epochal.errors import OptionError
from epochal.files import Files

if TYPE_CHECKING:
    from epochal.tools.inspect.checkpoint_diff import CheckpointDifference
    from epochal.tools.inspect.view_models import BatchView, CheckpointView

EDITS = ("rewind", "set-offsets", "repair", "publish", "copy", "clone", "migrate-offsets", "undo")

DEFAULT_LIMIT = 20

app = group_app(
    "checkpoint",
    "Show, check, repair and edit the checkpoint of a streaming query.",
    {**dict.fromkeys(EDITS, "epochal.cli.checkpoint_edit:app"), "clone": "epochal.cli.switch:app"},
)


@app.command()
def show(
    location: Directory,
    as_json: Json = False,
    limit: int | None = option(
        "N", "Show only the N newest batches. [default: 20; all with --json]", min=0
    ),
) -> None:
    """Show the query's id, batches, state and settings, and what a restart would do next.

    The command is read-only. For a damaged checkpoint it shows what it can read and names the files
    that it cannot read; then the exit status is 1. `epochal checkpoint verify` gives details.
    """
    from epochal.tools.inspect.show import inspect

    view = inspect(open_place(location))
    if as_json:
        document = view.as_json()
        if limit is not None:
            document["batches"] = [batch.as_json() for batch in newest(view.batches, limit)]
        print_json(document)
    else:
        print_view(view, DEFAULT_LIMIT if limit is None else limit)
    if view.problems:
        raise typer.Exit(EXIT_FINDINGS)


@app.command()
def log(
    location: str = argument(
        "LOGDIR",
        "The directory of one log: offsets, commits or sources/N of a checkpoint, or "
        "_spark_metadata of an output directory.",
    ),
    as_json: Json = False,
) -> None:
    """Print every live entry of one log directory, of any kind.

    For each entry the command shows what has changed since the entry before it. With --json each
    whole entry is one line: {"batch_id": …, "entry": …}. For a log of files each live file is one
    line.
    """
    from epochal.tools.inspect.log_entries import read_lines

    kind, lines, broken = read_lines(_open_log(open_place(location)))
    if as_json:
        for batch_id, entry in lines:
            print_json({"batch_id": batch_id, "entry": entry})
    else:
        print_entries(kind, lines)
    if broken:
        raise broken[0]


def _open_log(files: Files) -> Files:
    """The log again, as a part of its directory, so that a link in its place is not followed."""
    root, _, name = files.url.rpartition("/")
    if root.rpartition("/")[2] == SOURCES:
        root, name = root.rpartition("/")[0], f"{SOURCES}/{name}"
    return open_place(root).at(name) if root.rpartition("/")[2] else files


@app.command()
def diff(
    first: Directory,
    second: str | None = argument("[OTHER]", "A second checkpoint, as the new side.", default=None),
    batches: list[int] | None = option(
        "N",
        "The batch to compare. Give it twice to compare two batches of one checkpoint, or once to "
        "compare the same batch of two checkpoints.",
        "--batch",
    ),
    as_json: Json = False,
) -> None:
    """Show what differs between two batches, or between two checkpoints.

    The old side comes first: DIR is before and OTHER is after, or the first --batch is before and
    the second is after. `epochal state diff` has the same order.

    Offsets are compared part by part, so a Kafka offset shows each partition that moved. As with
    diff, the exit status is 1 if anything differs.
    """
    from epochal.tools.inspect.checkpoint_diff import change_lines, checkpoint_rows

    differences, noun = _differences(first, second, batches or [])
    if as_json:
        print_json({"differences": [difference.as_json() for difference in differences]})
    elif not differences:
        print_line("no difference")
    elif batches:
        for line in change_lines(differences):
            print_text(line)
    else:
        rows, above = [], ""
        for where, line in checkpoint_rows(differences, noun):
            rows.append(("" if where == above else where, line))
            above = where
        print_table(("where", "before → after"), rows)
    if differences:
        raise typer.Exit(EXIT_FINDINGS)


@app.command()
def verify(
    location: str = argument(
        "DIR", "A checkpoint, or the output directory of a file sink: a path or a URL."
    ),
    as_json: Json = False,
    deep: bool = flag(
        "--deep",
        "Also open RocksDB databases and check every key, replay the deltas below every snapshot "
        "and compare the result, and check files that contain their own checksums.",
    ),
    quick: bool = flag("--quick", "Check only logs and file names; do not read state files."),
    sink: str | None = option("DIR", "Also check this output directory of the query's file sink."),
    no_file_sink: NoFileSink = False,
) -> None:
    """Check every file of a checkpoint, and every rule that Spark relies on.

    Each finding has a code, a severity, a path, what is wrong and what to do. Unusual but legal
    contents (gaps of asynchronous progress, missing partitions of global aggregates, temporary
    files) are not findings. The command is read-only. The exit status is 0 if the checkpoint is
    healthy, and 1 if any finding is worse than info. A checkpoint does not say where its query
    writes: unless you do, the report says that the sink was not checked.
    """
    from epochal.tools.verify.findings import Depth
    from epochal.tools.verify.verify import verify as verify_checkpoint

    if deep and quick:
        raise OptionError("--deep and --quick exclude each other. Give only one of them.")
    output = None if sink is None else _output_of(sink)
    named = SinkFlags(sink=output, no_file_sink=no_file_sink).open()
    depth = Depth.DEEP if deep else Depth.QUICK if quick else Depth.NORMAL
    with progress("verifying", forks=True) as advance:
        report = verify_checkpoint(
            open_place(_output_of(location)),
            depth=depth,
            sink=named.place,
            no_file_sink=no_file_sink,
            progress=advance,
            workers=os.cpu_count() or 1,
        )
    if as_json:
        print_json(report.as_json())
    else:
        print_report(report, location, sink)
    if not report.healthy:
        raise typer.Exit(EXIT_FINDINGS)


def _output_of(location: str) -> str:
    """The output directory; the user may also name the log inside it."""
    folder, _, name = location.rstrip("/").rpartition("/")
    return (folder or ".") if name == SINK_LOG else location


def _differences(
    first: str, second: str | None, batches: list[int]
) -> tuple[list[CheckpointDifference], str]:
    """What differs, and the word for a batch: `epoch` if both checkpoints have epochs."""
    from epochal.tools.inspect.checkpoint_diff import diff_batches, diff_checkpoints
    from epochal.tools.inspect.show import inspect

    before = inspect(open_place(first))
    after = before if second is None else inspect(open_place(second))
    noun = "epoch" if before.continuous and after.continuous else "batch"
    match batches:
        case []:
            if second is None:
                raise OptionError(
                    "diff: there is nothing to compare. Give two checkpoints, or --batch N "
                    "--batch M."
                )
            return diff_checkpoints(before, after), noun
        case [only] if second is not None:
            return diff_batches(_batch(before, only), _batch(after, only)), noun
        case [one, other]:
            return diff_batches(_batch(before, one), _batch(after, other)), noun
    raise OptionError(
        "diff: give --batch twice for one checkpoint, or once or twice for two checkpoints."
    )


def _batch(view: CheckpointView, batch_id: int) -> BatchView:
    for batch in view.batches:
        if batch.batch_id == batch_id:
            return batch
    batch_ids = [batch.batch_id for batch in view.batches]
    span = f"{batch_ids[0]} to {batch_ids[-1]}" if batch_ids else "none"
    noun = "epoch" if view.continuous else "batch"
    raise OptionError(f"{view.url}: there is no {noun} {batch_id}. Choose one that exists: {span}.")
