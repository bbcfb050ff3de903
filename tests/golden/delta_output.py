"""A Delta table with what a golden query has written so far, as Spark's Delta sink leaves it.

The archive of a query without a file sink has a file of rows for each batch. Each becomes a version
of the table with the marker of that batch: the id of the query, and the batch's number.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from tests.golden.library import Unpacked

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def table_of(place: Unpacked) -> Path:
    return place.base / "table"


def write_table(place: Unpacked) -> None:
    """Write one version of the table for each batch."""
    schema = schema_of(place.facts["undisturbed"]["output"])
    for batch_id, rows in written(place):
        write_deltalake(
            table_of(place),
            pa.Table.from_pylist([typed(row) for row in rows], schema),
            mode="append",
            commit_properties=CommitProperties(
                app_transactions=[Transaction(place.facts["query_id"], batch_id)]
            ),
        )


def restore_after(place: Unpacked, batch_id: int) -> None:
    """Restore the table to its version after a batch."""
    versions = [number for number, (batch, _) in enumerate(written(place)) if batch <= batch_id]
    table = DeltaTable(table_of(place))
    if versions[-1] < table.version():
        table.restore(versions[-1])


def written(place: Unpacked) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The batches with the rows of each."""
    for path in sorted(place.output.glob("*.jsonl")):
        yield int(path.stem), [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def schema_of(rows: list[dict[str, Any]]) -> pa.Schema:
    values = {name: value for row in rows for name, value in row.items() if value is not None}
    return pa.schema([(name, kind_of(value)) for name, value in values.items()])


def kind_of(value: int | str) -> pa.DataType:
    if isinstance(value, int):
        return pa.int64()
    return pa.timestamp("us", "UTC") if TIME.fullmatch(value) else pa.string()


def typed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: as_time(value) for name, value in row.items()}


def as_time(value: Any) -> Any:
    is_time = isinstance(value, str) and TIME.fullmatch(value)
    return dt.datetime.fromisoformat(value) if is_time else value
