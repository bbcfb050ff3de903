"""`epochal shadow`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from epochal.cli.command_line import (
    Json,
    argument,
    command_bounds,
    flag,
    open_place,
    option,
    parse_pairs,
)
from epochal.cli.printing.output import (
    EXIT_FINDINGS,
    print_facts,
    print_json,
    print_line,
    print_text,
    progress,
)
from epochal.errors import CheckpointError, CheckpointSwitchedError, OptionError
from epochal.files import Files
from epochal.tools.reporting import reporting
from epochal.wording import counted

if TYPE_CHECKING:
    from epochal.tools.switch.boundaries import Segment
    from epochal.tools.switch.shadow import Comparison, Side

EXIT_UNKNOWN = 3

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def shadow(
    checkpoint_a: str = argument("A", "The checkpoint of the first query."),
    checkpoint_b: str = argument("B", "The checkpoint of its clone."),
    output_a: str = option(
        "OUTPUT",
        "What A has written: a directory of files or a Delta table, as a path or a URL; "
        "iceberg:NAMESPACE.TABLE; postgresql://USER@HOST/DATABASE#TABLE; or "
        "kafka://HOST:PORT/TOPIC?OPTION=VALUE.",
        default=...,
    ),
    output_b: str = option("OUTPUT", "What B has written, in the same form.", default=...),
    key: str = option(
        "COLUMNS",
        "The columns that identify a row, separated by commas. Needed if rows of the output "
        "replace others.",
        default="",
    ),
    ignore_columns: str = option(
        "COLUMNS", "Columns that may differ, such as the time of processing.", default=""
    ),
    catalog: list[str] | None = option(
        "KEY=VALUE", "A setting of the Iceberg catalog; may be repeated."
    ),
    header: bool = flag("--header", "CSV files begin with the names of the columns."),
    rows: int = option("N", "Show at most N rows of a difference.", default=5, min=1),
    as_json: Json = False,
) -> None:
    """Compare what a query and its clone have written, and report the first difference.

    Outputs are compared between epochs after which both queries have read the same input. The exit
    status is 0 if they are equal, 1 if they differ, and 3 if they cannot be compared.
    """
    from epochal.tools.switch.shadow import ShadowOptions, Verdict, compare_outputs

    options = ShadowOptions(key=_names(key), ignored=_names(ignore_columns), rows_shown=rows)
    if overlap := set(options.key) & set(options.ignored):
        raise OptionError(f"Column {min(overlap)} is both in --key and in --ignore-columns.")
    settings = parse_pairs(catalog, "--catalog")
    a = _side(checkpoint_a, output_a, settings, header)
    b = _side(checkpoint_b, output_b, settings, header)
    with progress("comparing", "epoch") as advance, reporting(advance):
        comparison = compare_outputs(a, b, options)
    if as_json:
        print_json(_as_json(comparison))
    else:
        _show(comparison)
    if comparison.verdict is Verdict.DIFFERENT:
        raise typer.Exit(EXIT_FINDINGS)
    if comparison.verdict is Verdict.UNKNOWN:
        raise typer.Exit(EXIT_UNKNOWN)


def _side(checkpoint: str, output: str, settings: dict[str, str], header: bool) -> Side:
    from epochal.tools.switch.query_outputs import open_output
    from epochal.tools.switch.shadow import Side, committed_places, has_state

    files = open_place(checkpoint)
    bounds = command_bounds.get()
    opened = open_output(output, _query_id(files), settings, header=header, bounds=bounds)
    return Side(committed_places(files), opened, has_state(files))


def _query_id(files: Files) -> str:
    """The id under which the query has written, also if it was switched away since."""
    from epochal.checkpoint.entries import QueryMetadata
    from epochal.tools.switch.switch import read_switched

    try:
        metadata = QueryMetadata.read(files)
    except CheckpointSwitchedError:
        return read_switched(files).query_id
    if metadata is None:
        raise CheckpointError(
            f"{files.url} has no file `metadata`, so it is not a checkpoint of a query that has "
            f"run. Pass the directory that the query uses as its checkpointLocation."
        )
    return metadata.id


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _show(comparison: Comparison) -> None:
    for compared in comparison.compared:
        print_line(f"{_epochs(compared.segment)}: the same {counted(compared.rows, 'row')}")
    if comparison.reason:
        print_text(f"Cannot be compared: {comparison.reason}.")
    if comparison.segment is not None:
        only_a, only_b = comparison.difference.only_a.total(), comparison.difference.only_b.total()
        print_line(f"The first difference is in {_epochs(comparison.segment)}.")
        start, end = comparison.segment.start, comparison.segment.end
        print_facts(
            [
                ("from offsets", _offsets(start.offsets)),
                ("to offsets", _offsets(end.offsets)),
                ("only in A", counted(only_a, "row")),
                ("only in B", counted(only_b, "row")),
            ]
        )
        for row_a, row_b in comparison.pairs:
            for side, row in (("A", row_a), ("B", row_b)):
                if row is not None:
                    print_line(f"  {side}  {row}")
    elif comparison.compared:
        print_line("The outputs are the same.")
    for note in comparison.notes:
        print_text(f"note: {note}")


def _offsets(offsets: tuple[str | None, ...]) -> str:
    return ", ".join(str(offset) for offset in offsets) or "the beginning"


def _epochs(segment: Segment) -> str:
    return f"{_range(segment.epochs_a)} of A, {_range(segment.epochs_b)} of B"


def _range(epochs: range) -> str:
    if len(epochs) == 1:
        return f"epoch {epochs[0]}"
    return f"epochs {epochs.start} to {epochs.stop - 1}"


def _as_json(comparison: Comparison) -> dict[str, object]:
    differing = None
    if comparison.segment is not None:
        differing = {
            **_segment_json(comparison.segment),
            "only_a": comparison.difference.only_a.total(),
            "only_b": comparison.difference.only_b.total(),
            "rows": [{"a": row_a, "b": row_b} for row_a, row_b in comparison.pairs],
        }
    return {
        "verdict": comparison.verdict.value,
        "same": [
            _segment_json(compared.segment) | {"rows": compared.rows}
            for compared in comparison.compared
        ],
        "difference": differing,
        "reason": comparison.reason or None,
        "notes": list(comparison.notes),
    }


def _segment_json(segment: Segment) -> dict[str, object]:
    return {
        "epochs_a": [segment.epochs_a.start, segment.epochs_a.stop - 1],
        "epochs_b": [segment.epochs_b.start, segment.epochs_b.stop - 1],
        "offsets_before": list(segment.start.offsets),
        "offsets_after": list(segment.end.offsets),
        "watermark_ms": segment.end.watermark_ms,
    }
