"""Which columns of a table hold those of a query, and the text of rows as `COPY` reads it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from epochal.connectors.postgres.postgres_columns import (
    CatalogColumn,
    CopyRows,
    Form,
    WrittenColumn,
    key_columns,
    new_columns,
    written_columns,
)
from epochal.errors import OptionError, PostgresRowError, TableMismatchError

POINT = pa.struct([("x", pa.int32())])


def problems(kind: pa.DataType, column: CatalogColumn) -> list[str]:
    return reasons(pa.schema([("a", kind)]), [column])


def reasons(schema: pa.Schema, table: list[CatalogColumn]) -> list[str]:
    try:
        written_columns("t", schema, table)
    except TableMismatchError as error:
        return list(error.reasons)
    return []


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.int8(), "smallint"),
        (pa.int16(), "smallint"),
        (pa.int32(), "integer"),
        (pa.int64(), "bigint"),
        (pa.float32(), "real"),
        (pa.float64(), "double precision"),
        (pa.decimal128(12, 3), "numeric(12,3)"),
        (pa.string(), "text"),
        (pa.binary(), "bytea"),
        (pa.bool_(), "boolean"),
        (pa.date32(), "date"),
        (pa.timestamp("us", "UTC"), "timestamptz"),
        (pa.timestamp("us"), "timestamp"),
        (pa.duration("us"), "interval"),
        (pa.list_(pa.int64()), "bigint[]"),
        (pa.list_(pa.list_(pa.int64())), "jsonb"),
        (POINT, "jsonb"),
        (pa.list_(POINT), "jsonb"),
        (pa.map_(pa.string(), pa.float64()), "jsonb"),
    ],
)
def test_a_new_table_has_the_types_that_spark_would_choose(kind: pa.DataType, column: str) -> None:
    assert [each.type for each in new_columns(pa.schema([("a", kind)]))] == [column]


def test_a_type_without_a_counterpart_is_refused() -> None:
    with pytest.raises(OptionError, match=r"column a is null.*Cast it to a string"):
        new_columns(pa.schema([("a", pa.null())]))
    nested = pa.struct([("x", pa.month_day_nano_interval())])
    with pytest.raises(OptionError, match="JSON cannot express"):
        new_columns(pa.schema({"a": nested}))


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (pa.int32(), "int8"),
        (pa.int64(), "numeric"),
        (pa.float32(), "float8"),
        (pa.string(), "varchar"),
        (pa.string(), "uuid"),
        (pa.list_(pa.int32()), "_int8"),
        (pa.list_(pa.int32()), "jsonb"),
        (POINT, "json"),
    ],
)
def test_a_wider_type_is_accepted(kind: pa.DataType, base: str) -> None:
    assert problems(kind, CatalogColumn("a", base, base)) == []


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (pa.int64(), "int4"),
        (pa.float64(), "float4"),
        (pa.string(), "int8"),
        (pa.int64(), "text"),
        (pa.timestamp("us", "UTC"), "timestamp"),
        (pa.timestamp("us"), "timestamptz"),
        (pa.list_(pa.int64()), "_int4"),
        (pa.bool_(), "text"),
    ],
)
def test_a_type_that_would_lose_values_is_refused(kind: pa.DataType, base: str) -> None:
    (problem,) = problems(kind, CatalogColumn("a", base, base))
    (query,) = new_columns(pa.schema([("a", kind)]))
    assert f"column a is {query.type} in the query, but {base} in the table" in problem


def test_a_number_needs_all_of_its_digits() -> None:
    money = CatalogColumn("a", "numeric(10,2)", "numeric")
    assert problems(pa.decimal128(10, 2), money) == []
    assert problems(pa.decimal128(8, 0), money) == []
    for kind in (pa.decimal128(10, 3), pa.decimal128(12, 2), pa.int64()):
        assert "but numeric(10,2) in the table" in problems(kind, money)[0]
    assert problems(pa.decimal128(38, 18), CatalogColumn("a", "numeric", "numeric")) == []


def test_a_text_fits_an_enum() -> None:
    assert problems(pa.string(), CatalogColumn("a", "mood", "mood", is_enum=True)) == []


def test_columns_are_found_by_name_and_case_matters_only_if_it_must() -> None:
    table = [CatalogColumn("ID", "bigint", "int8"), CatalogColumn("a", "text", "text")]
    kinds: dict[str, pa.DataType] = {"a": pa.string(), "id": pa.int64()}
    schema = pa.schema(kinds)
    assert written_columns("t", schema, table) == [
        WrittenColumn("a", "text", Form.PLAIN),
        WrittenColumn("ID", "bigint", Form.PLAIN),
    ]
    twice = [*table, CatalogColumn("Id", "bigint", "int8")]
    assert "apart from upper and lower case: ID, Id" in reasons(schema, twice)[0]


def test_every_problem_is_reported() -> None:
    table = [
        CatalogColumn("a", "bigint", "int8"),
        CatalogColumn("needed", "text", "text", no_nulls=True),
        CatalogColumn("filled", "text", "text", no_nulls=True, has_default=True),
        CatalogColumn("free", "text", "text"),
    ]
    found = "; ".join(reasons(pa.schema({"a": pa.string(), "b": pa.string()}), table))
    for part in (
        "column a is text in the query",
        "column b (text) does not exist",
        "needed (text)",
    ):
        assert part in found
    assert "filled" not in found


def test_a_column_that_the_server_computes_is_refused() -> None:
    column = CatalogColumn("a", "bigint", "int8", generated=True)
    assert "computed by the server" in problems(pa.int64(), column)[0]


def test_merge_keys_are_columns_of_the_query() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    written = new_columns(schema)
    assert key_columns(["B", "a"], schema, written) == ["b", "a"]
    with pytest.raises(OptionError, match=r"mergeKeys names column c.*The columns are a, b"):
        key_columns(["c"], schema, written)


def text(kind: pa.DataType, *values: Any) -> list[str]:
    schema = pa.schema([("a", kind)])
    rows = CopyRows(tuple(new_columns(schema)), "server", "t")
    batches = [pa.record_batch([pa.array([value], kind)], schema=schema) for value in values]
    return rows.encode(batches).decode().splitlines()


def test_slices_of_lists_are_written_as_they_are() -> None:
    kind: Any = pa.list_(pa.int64())
    schema = pa.schema([("a", kind)])
    lists: Any = [[1], [2, 3], None, [4]]
    batch = pa.record_batch([pa.array(lists, kind)], schema=schema)
    rows = CopyRows(tuple(new_columns(schema)), "server", "t")
    assert rows.encode([batch.slice(1, 3)]) == b'"{2,3}"\n\n"{4}"\n'


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
