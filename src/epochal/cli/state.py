"""The command group `epochal state`, and its commands that read: tables, JSON or a file.

JSON lines are written partition by partition as they are decoded, so memory is bounded by the
largest partition, not by the whole state.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from epochal.cli.command_line import (
    KEY_HELP,
    Directory,
    Json,
    StoreChoice,
    Timers,
    group_app,
    open_place,
    option,
    parse_json,
    says_when_interrupted,
)
from epochal.cli.printing.checkpoint_text import print_report
from epochal.cli.printing.output import print_json, print_line, print_table, print_text, progress
from epochal.cli.printing.table_layout import cell_text
from epochal.errors import EpochalError, OptionError
from epochal.tools.reporting import reporting
from epochal.wording import counted, size_text

if TYPE_CHECKING:
    from epochal.tools.read_state.read import StateReader
    from epochal.tools.read_state.read_target import StateBatch

ROWS_SHOWN = 20
EDITS = (
    *("put", "delete", "repartition", "convert", "evolve"),
    *("rekey", "split", "merge", "move", "repair"),
)

app = group_app(
    "state",
    "Read, compare and change the state of a query in Spark's own files.",
    dict.fromkeys(EDITS, "epochal.cli.state_edit:app"),
)


JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


@dataclass(frozen=True, kw_only=True)
class RowsShown:
    limit: int | None = option("N", "Show at most N rows.", min=0)
    as_json: JsonLines = False


Batch = Annotated[
    int | None, typer.Option(metavar="N", help="Read the state as of this batch. [default: newest]")
]
_KEY_SCHEMA = (
    "The columns of the key, if the checkpoint has no schema file (Spark before 3.1): "
    '"user string, n bigint".'
)
_VALUE_SCHEMA = "The columns of the value, likewise."


@dataclass(frozen=True, kw_only=True)
class StoreAtBatch(StoreChoice):
    directory: Directory
    batch: Batch = None
    key_schema: str | None = option("DDL", _KEY_SCHEMA)
    value_schema: str | None = option("DDL", _VALUE_SCHEMA)

    def open(self) -> StateBatch:
        return open_state(self.directory, self.batch, self.key_schema, self.value_schema)


@dataclass(frozen=True, kw_only=True)
class StoreSelection(StoreChoice):
    """The store, or the part of one, whose rows are read."""

    side: str | None = option("left|right", "Read the rows that one side of a join keeps.")
    timers: Timers = False

    def reader(self, opened: StateBatch) -> StateReader:
        from epochal.tools.read_state.read import open_reader

        side: Any = self.side
        if side not in (None, "left", "right"):
            raise OptionError(f"--side must be left or right, not {side!r}.")
        return open_reader(
            opened,
            self.operator,
            self.store,
            join_side=side,
            state_variable=self.variable,
            timers=self.timers,
        )


@dataclass(frozen=True, kw_only=True)
class BatchSelection(StoreSelection, StoreAtBatch):
    partition: int | None = option("N", "Read only this partition.")
    key_schema: str | None = option(
        "DDL", f"{_KEY_SCHEMA} With --side, the columns of the join key."
    )
    value_schema: str | None = option(
        "DDL", f"{_VALUE_SCHEMA} With --side, the columns of that side."
    )


@app.command()
def show(directory: Directory, batch: Batch = None, as_json: Json = False) -> None:
    """List the operators, their stores and variables, and the schemas of keys and values."""
    from epochal.tools.inspect.listing import is_continuous
    from epochal.tools.read_state.overview import overview

    view = overview(open_state(directory, batch))
    if as_json:
        print_json(view.as_json())
        return
    noun = "epoch" if is_continuous(open_place(directory)) else "batch"
    if not view.stores:
        print_line(f"{noun} {view.batch_id}: the query has no stateful operator")
        return
    number = view.partitions
    partitions = "unknown partitions" if number is None else counted(number, "partition")
    print_line(
        f"{noun} {view.batch_id}, version {view.version}, {view.provider} provider, "
        f"{partitions}, {view.codec}"
    )
    rows = [
        (str(store.operator_id), store.operator_name or "?", store.name, store.key, store.value)
        for store in view.stores
    ]
    print_table(("operator", "kind", "store", "key", "value"), rows)


@app.command()
def read(
    of: BatchSelection,
    shown: RowsShown,
    changes_since: int | None = option(
        "N", "Show what batch N and later ones changed, instead of the rows."
    ),
) -> None:
    """Show the rows of a store, or what changed in it."""
    from epochal.tools.read_state.changes import open_changes

    opened = of.open()
    if changes_since is None:
        reader = of.reader(opened)
    else:
        reader = open_changes(
            opened, changes_since, of.operator, of.store, state_variable=of.variable
        )
    show_rows(reader, of.partition, shown)


@app.command()
def get(
    of: StoreAtBatch, key: str = option("JSON", KEY_HELP, default=...), as_json: JsonLines = False
) -> None:
    """Show the rows of one key. The exit status is 1 if there are none."""
    from epochal.tools.read_state.read import open_store, rows_with_key

    opened = of.open()
    reader = open_store(opened, of.operator, of.store, state_variable=of.variable)
    wanted = parse_json(key, "--key")
    with progress("reading", "partition") as advance, reporting(advance):
        rows = rows_with_key(reader, wanted, opened.operator_name(of.operator))
    if as_json:
        _write_lines(rows)
    elif rows:
        _table(reader, rows)
    else:
        print_line("There is no such key.")
    if not rows:
        raise typer.Exit(1)


@app.command()
def diff(
    directory: Directory,
    of: StoreSelection,
    shown: RowsShown,
    other: str | None = option(
        "DIR", "Another checkpoint, as the new side: shows what it has that DIR has not."
    ),
    from_batch: int | None = option(
        "N",
        "The batch of the old side, in DIR. [default: the one before --to-batch; with --other the "
        "newest]",
    ),
    to_batch: int | None = option(
        "N", "The batch of the new side, in DIR or in --other. [default: newest]"
    ),
) -> None:
    """Compare two batches, or two checkpoints. The exit status is 1 if they differ.

    As with `epochal checkpoint diff`, the old side comes first: DIR is before and --other is after,
    or --from-batch is before and --to-batch is after.
    """
    from epochal.tools.read_state.stored_rows import compare_stores

    later = open_state(directory if other is None else other, to_batch)
    if other is None and from_batch is None:
        if later.batch_id == 0:
            raise OptionError(f"{directory}: there is no batch before batch 0 to compare it with.")
        from_batch = later.batch_id - 1
    earlier = open_state(directory, from_batch)
    readers = [of.reader(opened) for opened in (earlier, later)]
    with progress("reading", "partition") as advance, reporting(advance):
        changes = compare_stores(*readers, limit=shown.limit)
    if shown.as_json:
        _write_lines([row.as_json() for row in changes.rows])
    else:
        places = ("", "") if other is None else (f" of {directory}", f" of {other}")
        print_text(
            f"from batch {earlier.batch_id}{places[0]} to batch {later.batch_id}{places[1]}: "
            f"{changes.added} added, {changes.removed} removed, {changes.changed} changed, "
            f"{changes.same} the same"
        )
        cells = [
            (row.change, *map(cell_text, (row.key, row.before, row.after))) for row in changes.rows
        ]
        if cells:
            print_table(("change", "key", "before", "after"), cells)
    if changes.added or changes.removed or changes.changed:
        raise typer.Exit(1)


@app.command()
def export(
    of: BatchSelection,
    to: str = option(
        "FILE", "The file to write: FILE.parquet, FILE.csv or FILE.jsonl.", default=...
    ),
) -> None:
    """Write the rows of a store to a file; its name chooses Parquet, CSV or JSON lines."""
    from epochal.tools.read_state.export import export_state

    reader = of.reader(of.open())
    left = f"Interrupted. {to} was not written."
    bar = progress("exporting", "partition")
    with says_when_interrupted(lambda: left), bar as advance, reporting(advance):
        count = export_state(reader, to, of.partition)
    print_line(f"{counted(count, 'row')} written to {to}")


@app.command()
def stats(
    of: StoreAtBatch,
    largest: int = option("N", "Show the N largest keys of each partition.", default=3, min=0),
    as_json: Json = False,
) -> None:
    """Count the rows and bytes of each partition, and show the skew and the largest keys."""
    from epochal.tools.read_state.read import open_reader
    from epochal.tools.read_state.stored_rows import measure_store

    reader = open_reader(of.open(), of.operator, of.store, state_variable=of.variable)
    with progress("reading", "partition") as advance, reporting(advance):
        measured = measure_store(reader, largest=largest)
    if as_json:
        print_json(measured.as_json())
        return
    print_text(
        f"{counted(measured.rows, 'row')}, {size_text(measured.bytes)} of keys and values, "
        f"{size_text(measured.file_bytes)} of files, "
        f"skew {measured.skew} (rows of the largest partition / average)"
    )
    rows = [
        (
            str(partition.partition_id),
            str(partition.rows),
            size_text(partition.key_bytes),
            size_text(partition.value_bytes),
            size_text(partition.file_bytes),
            "; ".join(f"{cell_text(large.key)} ({large.bytes})" for large in partition.largest),
        )
        for partition in measured.partitions
    ]
    print_table(("partition", "rows", "keys", "values", "files", "largest keys (bytes)"), rows)


@app.command()
def verify(directory: Directory, as_json: Json = False) -> None:
    """Read every state file and every key. The exit status is 1 if something is wrong.

    This is `epochal checkpoint verify --deep`, limited to the state.
    """
    from epochal.checkpoint.layout import STATE
    from epochal.tools.verify.findings import Depth, is_healthy
    from epochal.tools.verify.verify import SinkCheck
    from epochal.tools.verify.verify import verify as verify_checkpoint

    with progress("verifying") as advance:
        report = verify_checkpoint(open_place(directory), depth=Depth.DEEP, progress=advance)
    findings = [finding for finding in report.findings if finding.path.startswith(f"{STATE}/")]
    healthy = is_healthy(findings)
    if as_json:
        print_json({"healthy": healthy, "findings": [finding.as_json() for finding in findings]})
    else:
        only = replace(report, findings=tuple(findings), sink=SinkCheck.CHECKED)  # no part of it
        print_report(only, directory)
    if not healthy:
        raise typer.Exit(1)


def open_state(
    directory: str,
    batch: int | None = None,
    key_schema: str | None = None,
    value_schema: str | None = None,
) -> StateBatch:
    """Open the state as of a batch; if there is no checkpoint at all, say so as other commands do.

    Spark's own words, which the library keeps to, are that no batch has been committed.
    """
    from epochal.tools.inspect.listing import require_checkpoint
    from epochal.tools.read_state.read import open_batch

    files = open_place(directory)
    try:
        return open_batch(files, batch, key_schema, value_schema)
    except (EpochalError, OSError):
        require_checkpoint(files)
        raise


def show_rows(reader: StateReader, partition: int | None, shown: RowsShown) -> None:
    from epochal.tools.read_state.export import json_batches

    limit, as_json = shown.limit, shown.as_json
    most = limit if as_json or limit is not None else ROWS_SHOWN + 1
    left = most
    table: list[dict[str, Any]] = []
    bar = progress("reading", "partition", while_printing=as_json)
    with bar as advance, reporting(advance):
        for rows in json_batches(reader, partition):
            some = rows if left is None else rows[:left]
            if as_json:
                _write_lines(some)
            else:
                table += some
            if left is not None:
                left -= len(some)
                if left <= 0:
                    break
    if as_json:
        return
    more = limit is None and len(table) > ROWS_SHOWN
    _table(reader, table[:ROWS_SHOWN] if more else table)
    if more:
        print_text(
            "... and more. Use --limit or --json to see them, `epochal state stats` to count them."
        )


def _write_lines(rows: list[dict[str, Any]]) -> None:
    import msgspec

    sys.stdout.flush()
    sys.stdout.buffer.write(msgspec.json.Encoder().encode_lines(rows))


def _table(reader: StateReader, rows: list[dict[str, Any]]) -> None:
    names = [name for name, _ in reader.fields]
    print_table(names, [[cell_text(row[name]) for name in names] for row in rows])
