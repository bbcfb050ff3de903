"""`epochal state read | get | diff | export`: print rows as a table or as JSON, or write a file.

JSON lines are written partition by partition as they are decoded, so memory is bounded by the
largest partition, not by the whole state.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from epochal.cli.arguments import (
    Batch,
    Directory,
    JsonLines,
    Key,
    KeySchema,
    Limit,
    Operator,
    Partition,
    Side,
    SideKeySchema,
    SideValueSchema,
    Store,
    Timers,
    ValueSchema,
    Variable,
    open_state,
)
from epochal.cli.interruption import says_when_interrupted
from epochal.cli.printing.output import print_line, print_table, print_text
from epochal.cli.printing.progress_bar import progress
from epochal.cli.printing.table_layout import cell_text
from epochal.errors import OptionError
from epochal.tools.reporting import reporting
from epochal.wording import counted

if TYPE_CHECKING:
    from epochal.tools.read_state.read import StateReader

app = typer.Typer(add_completion=False, rich_markup_mode=None)

ROWS_SHOWN = 20


@app.command()
def read(
    directory: Directory,
    operator: Operator = 0,
    store: Store = "default",
    batch: Batch = None,
    partition: Partition = None,
    side: Side = None,
    variable: Variable = None,
    timers: Timers = False,
    changes_since: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Show what batch N and later ones changed, instead of the rows."
        ),
    ] = None,
    key_schema: SideKeySchema = None,
    value_schema: SideValueSchema = None,
    limit: Limit = None,
    as_json: JsonLines = False,
) -> None:
    """Show the rows of a store, or what changed in it."""
    from epochal.tools.read_state.changes import open_changes
    from epochal.tools.read_state.read import open_reader

    opened = open_state(directory, batch, key_schema, value_schema)
    if changes_since is not None:
        reader: StateReader = open_changes(
            opened, changes_since, operator, store, state_variable=variable
        )
    else:
        reader = open_reader(
            opened, operator, store, join_side=_side(side), state_variable=variable, timers=timers
        )
    show_rows(reader, partition, limit, as_json=as_json)


@app.command()
def get(
    directory: Directory,
    key: Key,
    operator: Operator = 0,
    store: Store = "default",
    batch: Batch = None,
    variable: Variable = None,
    key_schema: KeySchema = None,
    value_schema: ValueSchema = None,
    as_json: JsonLines = False,
) -> None:
    """Show the rows of one key. The exit status is 1 if there are none."""
    from epochal.tools.read_state.read import open_store, rows_with_key

    opened = open_state(directory, batch, key_schema, value_schema)
    reader = open_store(opened, operator, store, state_variable=variable)
    wanted = parse_json(key, "--key")
    with progress("reading", "partition") as advance, reporting(advance):
        rows = rows_with_key(reader, wanted, opened.operator_name(operator))
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
    other: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Another checkpoint, as the new side: shows what it has that DIR has not.",
        ),
    ] = None,
    from_batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="The batch of the old side, in DIR. [default: the one before --to-batch; with "
            "--other the newest]",
        ),
    ] = None,
    to_batch: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="The batch of the new side, in DIR or in --other. [default: newest]"
        ),
    ] = None,
    operator: Operator = 0,
    store: Store = "default",
    side: Side = None,
    variable: Variable = None,
    timers: Timers = False,
    limit: Limit = None,
    as_json: JsonLines = False,
) -> None:
    """Compare two batches, or two checkpoints. The exit status is 1 if they differ.

    As with `epochal checkpoint diff`, the old side comes first: DIR is before and --other is after,
    or --from-batch is before and --to-batch is after.
    """
    from epochal.tools.read_state.read import open_reader
    from epochal.tools.read_state.stored_rows import compare_stores

    later = open_state(directory if other is None else other, to_batch)
    if other is None and from_batch is None:
        if later.batch_id == 0:
            raise OptionError(f"{directory}: there is no batch before batch 0 to compare it with.")
        from_batch = later.batch_id - 1
    earlier = open_state(directory, from_batch)
    readers = [
        open_reader(
            opened, operator, store, join_side=_side(side), state_variable=variable, timers=timers
        )
        for opened in (earlier, later)
    ]
    with progress("reading", "partition") as advance, reporting(advance):
        changes = compare_stores(*readers, limit=limit)
    if as_json:
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
    directory: Directory,
    to: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="The file to write: FILE.parquet, FILE.csv or FILE.jsonl."
        ),
    ],
    operator: Operator = 0,
    store: Store = "default",
    batch: Batch = None,
    partition: Partition = None,
    side: Side = None,
    variable: Variable = None,
    timers: Timers = False,
    key_schema: SideKeySchema = None,
    value_schema: SideValueSchema = None,
) -> None:
    """Write the rows of a store to a file; its name chooses Parquet, CSV or JSON lines."""
    from epochal.tools.read_state.export import export_state
    from epochal.tools.read_state.read import open_reader

    reader = open_reader(
        open_state(directory, batch, key_schema, value_schema),
        operator,
        store,
        join_side=_side(side),
        state_variable=variable,
        timers=timers,
    )
    left = f"Interrupted. {to} was not written."
    bar = progress("exporting", "partition")
    with says_when_interrupted(lambda: left), bar as advance, reporting(advance):
        count = export_state(reader, to, partition)
    print_line(f"{counted(count, 'row')} written to {to}")


def show_rows(
    reader: StateReader, partition: int | None, limit: int | None, *, as_json: bool
) -> None:
    """Print all rows as JSON lines, or the first rows as a table."""
    from epochal.tools.read_state.export import json_batches

    most = limit if as_json or limit is not None else ROWS_SHOWN + 1
    left = most
    shown: list[dict[str, Any]] = []
    bar = progress("reading", "partition", while_printing=as_json)
    with bar as advance, reporting(advance):
        for rows in json_batches(reader, partition):
            some = rows if left is None else rows[:left]
            if as_json:
                _write_lines(some)
            else:
                shown += some
            if left is not None:
                left -= len(some)
                if left <= 0:
                    break
    if as_json:
        return
    more = limit is None and len(shown) > ROWS_SHOWN
    _table(reader, shown[:ROWS_SHOWN] if more else shown)
    if more:
        print_text(
            "... and more. Use --limit or --json to see them, `epochal state stats` to count them."
        )


EXAMPLE = """an object in single quotes, such as '{"user": 1}'"""


def parse_json(text: str, option: str) -> Any:
    """Parse JSON; `option` names its origin in the error message."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(
            f"{option} {text!r} is not valid JSON ({error}). Write {EXAMPLE}."
        ) from None


def json_lines(path: str) -> Iterator[Any]:
    """The objects in a file of JSON lines; `-` means standard input."""
    source = sys.stdin if path == "-" else open(path, encoding="utf-8")  # noqa: SIM115
    with source:
        for number, line in enumerate(source, 1):
            if line.strip():
                yield parse_json(line, f"{path}, line {number}:")


def _side(side: str | None) -> Literal["left", "right"] | None:
    if side is None or side in ("left", "right"):
        return side  # type: ignore[return-value]
    raise OptionError(f"--side must be left or right, not {side!r}.")


def _write_lines(rows: list[dict[str, Any]]) -> None:
    import msgspec

    sys.stdout.flush()
    sys.stdout.buffer.write(msgspec.json.Encoder().encode_lines(rows))


def _table(reader: StateReader, rows: list[dict[str, Any]]) -> None:
    names = [name for name, _ in reader.fields]
    print_table(names, [[cell_text(row[name]) for name in names] for row in rows])
