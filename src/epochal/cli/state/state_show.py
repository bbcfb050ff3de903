"""`epochal state show | stats | verify`: list the stores, measure them, check their files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from epochal.cli.arguments import (
    Batch,
    Directory,
    Json,
    KeySchema,
    Operator,
    Store,
    ValueSchema,
    Variable,
    open_place,
    open_state,
)
from epochal.cli.printing.checkpoint_text import print_report
from epochal.cli.printing.output import print_json, print_line, print_table, print_text
from epochal.cli.printing.progress_bar import progress
from epochal.cli.printing.table_layout import cell_text
from epochal.tools.reporting import reporting
from epochal.wording import counted, size_text

if TYPE_CHECKING:
    from epochal.tools.read_state.stored_rows import StateStats

app = typer.Typer(add_completion=False, rich_markup_mode=None)


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
def stats(
    directory: Directory,
    operator: Operator = 0,
    store: Store = "default",
    batch: Batch = None,
    variable: Variable = None,
    largest: Annotated[
        int, typer.Option(metavar="N", help="Show the N largest keys of each partition.", min=0)
    ] = 3,
    key_schema: KeySchema = None,
    value_schema: ValueSchema = None,
    as_json: Json = False,
) -> None:
    """Count the rows and bytes of each partition, and show the skew and the largest keys."""
    from epochal.tools.read_state.read import open_reader
    from epochal.tools.read_state.stored_rows import measure_store

    opened = open_state(directory, batch, key_schema, value_schema)
    reader = open_reader(opened, operator, store, state_variable=variable)
    with progress("reading", "partition") as advance, reporting(advance):
        measured = measure_store(reader, largest=largest)
    if as_json:
        print_json(measured.as_json())
    else:
        _show_stats(measured)


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


def _show_stats(measured: StateStats) -> None:
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
