"""Rows are replaced by key, whatever the number, names and types of the key columns are."""

from __future__ import annotations

import datetime as dt
import itertools
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.contract.sinks import Logging, read_delta
from tests.iceberg_tables import QUERY_ID, Warehouse

from epochal.connectors.contract import WriterContext
from epochal.connectors.registry import open_sink
from epochal.errors import TableMismatchError
from epochal.files.local import LocalFiles

AT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)
COLUMNS: list[tuple[str, Any, list[Any]]] = [
    ("two words", pa.string(), ["it's", 'a "b" `c`', "", "\\"]),
    ("a.b", pa.bool_(), [True, False]),
    ('q"uote', pa.int8(), [1, -1]),
    ("it's", pa.int16(), [1, -1]),
    ("select", pa.int32(), [1, -1]),
    ("Order", pa.int64(), [2**60, -1]),
    ("t", pa.float32(), [0.5, 0.0, float("inf")]),
    ("s", pa.float64(), [0.25, 0.0, float("nan")]),
    ("ünï", pa.decimal128(10, 2), [Decimal("1.25"), Decimal("-3.00")]),
    ("100%", pa.decimal128(38, 0), [Decimal(10**37), Decimal(-1)]),
    ("epochal_row", pa.binary(), [b"'", b"\0"]),
    ("$1", pa.date32(), [AT.date(), dt.date(1900, 1, 1)]),
    ("back\\slash", pa.timestamp("us", "UTC"), [AT, AT.replace(year=1900)]),
    ("*", pa.timestamp("us"), [AT.replace(tzinfo=None), AT.replace(year=1900, tzinfo=None)]),
]


def merged(sink: str, tmp: Path, server: Any, columns: Any, *epochs: pa.Table) -> list[Any]:
    """The column v of a table after epochs that are merged by the other columns."""
    options, table = {"path": str(tmp / "table")}, f"t{tmp.name}"
    warehouse = Warehouse(tmp)
    if sink == "iceberg":
        options = warehouse.options()
    elif sink == "postgres":
        options = {"url": server.url, "dbtable": table}
    options["mergeKeys"] = ",".join(name for name, *_ in columns)
    checkpoint, schema = LocalFiles(tmp / "ck", durable=False), epochs[0].schema
    given: dict[str, Any] = {"checkpoint": checkpoint, "query_id": QUERY_ID + tmp.name}
    with closing(Logging(open_sink(sink, options, schema, **given), checkpoint)) as opened:
        opened.fence(1)
        for epoch, rows in enumerate(epochs):
            writer = opened.writers.open(WriterContext(0, 1, "run", schema, epoch))
            for batch in rows.to_batches():
                writer.write(batch)
            opened.commit(epoch, [writer.cut(epoch)()])
            writer.close()
    if sink == "delta":
        return sorted(read_delta(options["path"])["v"].to_pylist())
    if sink == "iceberg":
        return sorted(row["v"] for row in warehouse.rows())
    with psycopg.connect(server.url) as connection:
        return [v for (v,) in connection.execute(f"SELECT v FROM {table} ORDER BY v")]


def table_of(columns: Any, rows: list[Any], v: int) -> pa.Table:
    arrays: list[Any] = [
        pa.array([row[i] for row in rows], kind) for i, (_, kind, _) in enumerate(columns)
    ]
    names = [name for name, *_ in columns]
    return pa.table([*arrays, pa.array([v] * len(rows), pa.int64())], names=[*names, "v"])


@pytest.fixture
def server(request: pytest.FixtureRequest, sink: str) -> Any:
    return request.getfixturevalue("postgres") if sink == "postgres" else None


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("sink", ["delta", "iceberg", "postgres"])
def test_rows_of_equal_keys_replace_each_other(
    sink: str, width: int, server: Any, tmp_path: Path
) -> None:
    for start in range(0, len(COLUMNS), width):
        columns = COLUMNS[start : start + width]
        null = [] if sink == "postgres" else [None]
        rows = list(itertools.product(*(values + null for *_, values in columns)))
        folder = tmp_path / f"{sink}{width}{start}"
        epochs = [table_of(columns, rows, 1), table_of(columns, rows[1:], 2)]
        names = [name for name, *_ in columns]
        found = merged(sink, folder, server, columns, *epochs)
        assert found == [1] + [2] * (len(rows) - 1), names


@pytest.mark.parametrize("sink", ["delta", "iceberg", "postgres"])
def test_zero_has_no_sign_as_a_key(sink: str, server: Any, tmp_path: Path) -> None:
    columns: Any = [("k", pa.float64(), []), ("l", pa.float32(), [])]
    epochs = [table_of(columns, [(0.0, -0.0), (-0.0, 0.0)], v) for v in (1, 2)]
    assert merged(sink, tmp_path / f"zero_{sink}", server, columns, *epochs) == [2]


@pytest.mark.parametrize(
    ("sink", "column", "reason"),
    [
        ("delta", ("ba`ck", pa.string(), []), "cannot merge by the columns ba`ck"),
        ("delta", ("k", pa.list_(pa.int64()), []), "cannot identify rows"),
        ("iceberg", ("k", pa.list_(pa.int64()), []), "cannot identify rows"),
    ],
)
def test_keys_that_a_commit_could_not_compare_are_refused_before_the_first_epoch(
    sink: str, column: Any, reason: str, server: Any, tmp_path: Path
) -> None:
    with pytest.raises(TableMismatchError, match=reason):
        merged(sink, tmp_path, server, [column], table_of([column], [], 1))
    assert not (tmp_path / "ck" / "offsets").exists()
