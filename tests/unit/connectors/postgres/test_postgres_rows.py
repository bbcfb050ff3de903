"""The text of rows, as `COPY` reads it. What the server makes of it is in the integration tests."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from epochal.connectors.postgres.postgres_columns import Form, WrittenColumn, new_columns
from epochal.connectors.postgres.postgres_rows import CopyRows
from epochal.errors import PostgresRowError


def text(kind: pa.DataType, *values: Any) -> list[str]:
    schema = pa.schema([("a", kind)])
    rows = CopyRows(tuple(new_columns(schema)), "server", "t")
    batches = [pa.record_batch([pa.array([value], kind)], schema=schema) for value in values]
    return rows.encode(batches).decode().splitlines()


def test_a_null_is_empty_and_a_text_is_quoted() -> None:
    assert text(pa.string(), None, "", "a", 'say "hi"', "\\.") == [
        *("", '""', '"a"', '"say ""hi"""', '"\\."')
    ]


def test_arrays_are_literals() -> None:
    assert text(pa.list_(pa.int64()), [1, None, 3], [], None) == ['"{1,NULL,3}"', '"{}"', ""]
    assert text(pa.list_(pa.string()), ['a"b', "c\\d", None, ""]) == [
        '"{""a\\""b"",""c\\\\d"",NULL,""""}"'
    ]


def test_slices_of_lists_are_written_as_they_are() -> None:
    kind: Any = pa.list_(pa.int64())
    schema = pa.schema([("a", kind)])
    lists: Any = [[1], [2, 3], None, [4]]
    batch = pa.record_batch([pa.array(lists, kind)], schema=schema)
    rows = CopyRows(tuple(new_columns(schema)), "server", "t")
    assert rows.encode([batch.slice(1, 3)]) == b'"{2,3}"\n\n"{4}"\n'


def test_binary_is_hexadecimal_and_nested_values_are_json() -> None:
    assert text(pa.binary(), b"\x00\xff", None) == ['"\\x00ff"', ""]
    point = pa.struct([("x", pa.int32()), ("y", pa.string())])
    assert text(point, {"x": 1, "y": "é"}) == ['"{""x"":1,""y"":""é""}"']
    assert text(pa.map_(pa.string(), pa.int64()), [("k", 1)]) == ['"{""k"":1}"']


def test_an_interval_is_a_number_of_microseconds() -> None:
    assert text(pa.duration("us"), timedelta(seconds=1)) == ['"1000000 microseconds"']


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.string(), "a\0b"),
        (pa.list_(pa.string()), ["x", "a\0b"]),
        (pa.struct([("x", pa.string())]), {"x": "a\0b"}),
        (pa.map_(pa.string(), pa.string()), [("a\0b", "x")]),
        (pa.map_(pa.string(), pa.string()), [("x", "a\0b")]),
        (pa.dictionary(pa.int32(), pa.string()), "a\0b"),
    ],
)
def test_a_row_that_cannot_be_stored_is_refused_with_its_value(
    kind: pa.DataType, value: Any
) -> None:
    with pytest.raises(PostgresRowError, match=r"column a is .*a\\x00b.*zero byte"):
        text(kind, None, value)


def test_bad_rows_are_found_by_their_index() -> None:
    kinds: dict[str, pa.DataType] = {"a": pa.string(), "d": pa.date32()}
    schema = pa.schema(kinds)
    rows = CopyRows(tuple(new_columns(schema)), "server", "t")
    days = pa.array([0, -800_000, None, 0], pa.int32()).cast(pa.date32())
    batch = pa.record_batch([pa.array(["a", "b", "c\0", None]), days], schema=schema)
    assert {index: reason[:8] for index, reason in rows.bad_rows(batch).items()} == {
        1: "column d",
        2: "column a",
    }
    assert rows.bad_rows(batch.slice(3)) == {}


def test_rows_that_the_table_does_not_allow_are_bad() -> None:
    schema = pa.schema([("a", pa.string())])
    columns = (WrittenColumn("a", "character varying(2)", Form.PLAIN, True, 2),)
    batch = pa.record_batch([pa.array(["éé", None, "abc"])], schema=schema)
    assert CopyRows(columns, "server", "t").bad_rows(batch) == {
        1: "column a is null, which the table does not allow",
        2: "column a is 'abc', which is too long for character varying(2)",
    }


def test_a_backslash_before_what_looks_like_a_zero_byte_is_no_zero_byte() -> None:
    kind = pa.struct([("x", pa.string())])
    assert text(kind, {"x": "\\u0000"}) == ['"{""x"":""\\\\u0000""}"']


@pytest.mark.parametrize(
    ("kind", "first"), [(pa.date32(), -719_162), (pa.timestamp("us"), -719_162 * 86_400_000_000)]
)
def test_years_before_the_first_are_refused(kind: pa.DataType, first: int) -> None:
    rows = CopyRows(tuple(new_columns(pa.schema([("a", kind)]))), "server", "t")
    number = pa.int32() if kind == pa.date32() else pa.int64()

    def encoded(value: int) -> str:
        column = pa.array([value], number).cast(kind)
        return rows.encode([pa.record_batch([column], names=["a"])]).decode()

    assert encoded(first).startswith("0001-01-01")
    with pytest.raises(PostgresRowError, match="year before 1"):
        encoded(first - 1)
