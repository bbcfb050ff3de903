"""Options and errors of PostgreSQL, the columns of its tables, and the text that `COPY` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
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
from epochal.connectors.postgres.postgres_failures import failure
from epochal.connectors.postgres.postgres_options import (
    PostgresSinkOptions,
    connection_settings,
    server_name,
    table_name,
)
from epochal.errors import (
    OptionError,
    PostgresRejectedError,
    PostgresRowError,
    PostgresUnavailableError,
    TableMismatchError,
)
from epochal.options import read_options

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


def options(**given: str) -> PostgresSinkOptions:
    return read_options(PostgresSinkOptions, {"dbtable": "t", **given}, of="postgres")


def settings(**given: str) -> dict[str, str]:
    found = connection_settings(options(**given))
    wanted = ("host", "port", "dbname", "user", "password", "sslmode", "options")
    return {name: found[name] for name in wanted if name in found}


def test_an_address_of_libpq_and_one_of_jdbc_mean_the_same() -> None:
    expected = {"host": "db", "port": "5433", "dbname": "sales", "user": "u", "password": "p w"}
    assert settings(url="postgresql://u:p%20w@db:5433/sales") == expected
    assert settings(url="jdbc:postgresql://db:5433/sales?user=u&password=p%20w") == expected
    parts = {"host": "db", "port": "5433", "database": "sales", "user": "u", "password": "p w"}
    assert settings(**parts) == expected


def test_user_and_password_may_complete_an_address() -> None:
    found = settings(url="jdbc:postgresql://db/sales?ssl=true", user="u", password="p")
    assert found == {
        "host": "db",
        "dbname": "sales",
        "user": "u",
        "password": "p",
        "sslmode": "verify-full",
    }


def test_a_schema_in_a_jdbc_address_becomes_the_search_path() -> None:
    found = settings(url="jdbc:postgresql://db/sales?currentSchema=mine")
    assert found["options"] == "-csearch_path=mine"


def test_a_password_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    assert settings(host="db", passwordFile=str(file))["password"] == "s3cret"
    with pytest.raises(OptionError, match=r"passwordFile .* cannot be read"):
        settings(host="db", passwordFile=str(tmp_path / "absent"))
    with pytest.raises(OptionError, match="either password or passwordFile"):
        options(password="x", passwordFile="y")


def test_settings_of_the_connection_are_passed_on_and_replace_our_own() -> None:
    found = connection_settings(
        options(host="db", **{"connection.sslmode": "require", "connection.connect_timeout": "3"})
    )
    assert (found["sslmode"], found["connect_timeout"]) == ("require", "3")
    assert found["client_encoding"] == "UTF8"


@pytest.mark.parametrize(
    "given",
    [
        {"url": "postgresql://u:s3cret@db:port/x"},
        {"url": "s3cret"},
        {"url": "postgresql://u:s3cret@db/x?nonsense=1"},
        {"url": "jdbc:postgresql://db/x?password=s3cret&prepareThreshold=0"},
        {"host": "db", "password": "s3cret", "connection.nonsense": "1"},
        {"url": "postgresql://u:s3cret@db/x", "host": "other"},
        # A password with characters that an address must encode ends up in its other parts.
        {"url": "postgresql://u:s3cret%zz@db/x"},
        {"url": "postgresql://u:s3cret/more@db/x"},
        {"url": "postgresql://u:1/s3cret@db/x"},
        {"url": "postgresql://u:p@s3cret@db/x"},
        {"url": 'postgresql://u:p"%zz"s3cret@db/x'},
        {"url": "postgresql://u:%zz\ns3cret@db/x"},
        {"url": "jdbc:postgresql://u:p?s3cret&x@db/x"},
        {"url": "host=db password=p s3cret"},
        {"url": "host=db password='s3cret"},
    ],
)
def test_no_refusal_contains_the_password(given: dict[str, str]) -> None:
    with pytest.raises(OptionError) as refusal:
        settings(**given)
    assert "s3cret" not in str(refusal.value)
    assert "s3cret" not in repr(options(password="s3cret", **{"connection.password": "s3cret"}))


def test_a_setting_that_libpq_does_not_know_is_named() -> None:
    with pytest.raises(OptionError, match='invalid connection option "nonsense"'):
        settings(host="db", **{"connection.nonsense": "1"})


def test_a_server_is_named_without_user_and_password() -> None:
    found = connection_settings(options(url="postgresql://u:p@db:5433/sales"))
    assert server_name(found) == "db:5433/sales"


@pytest.mark.parametrize(
    ("text", "schema", "expected"),
    [
        ("Events", None, (None, "events")),
        ("sales.Events", None, ("sales", "events")),
        ('"My Sales"."Ev.ents"', None, ("My Sales", "Ev.ents")),
        ('"say ""hi"""', None, (None, 'say "hi"')),
        ("events", "Sales", ("Sales", "events")),
    ],
)
def test_names_are_read_as_sql_reads_them(
    text: str, schema: str | None, expected: tuple[str | None, str]
) -> None:
    assert table_name(text, schema) == expected


@pytest.mark.parametrize(
    "text", ["", "a b", "(SELECT 1) x", "a.", ".a", "a.b.c", '"a', '"a"b', '""']
)
def test_what_is_no_name_of_a_table_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="dbtable"):
        table_name(text, None)
    with pytest.raises(OptionError, match="already names"):
        table_name("a.b", "c")


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("08006", PostgresUnavailableError),
        ("57P01", PostgresUnavailableError),
        ("57P03", PostgresUnavailableError),
        ("53100", PostgresUnavailableError),
        ("40P01", PostgresUnavailableError),
        ("25006", PostgresUnavailableError),
        ("23505", PostgresRowError),
        ("22003", PostgresRowError),
        ("42501", PostgresRejectedError),
        ("42P01", PostgresRejectedError),
    ],
)
def test_the_state_decides(state: str, kind: type[Exception]) -> None:
    assert type(failure(psycopg.errors.lookup(state)("said"), "db:5432/x", "t")) is kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('connection failed: FATAL:  password authentication failed for user "u"', "Rejected"),
        ('connection failed: FATAL:  database "x" does not exist', "Rejected"),
        ("connection failed: FATAL:  the database system is starting up", "Unavailable"),
        (
            "connection failed: FATAL:  the database system is not yet accepting connections",
            "Unavailable",
        ),
        ("connection failed: FATAL:  the database system is in recovery mode", "Unavailable"),
        ('connection failed: FATAL:  no pg_hba.conf entry for host "h"', "Rejected"),
        ("connection failed: FATAL:  sorry, too many clients already", "Unavailable"),
        ("connection failed: fe_sendauth: no password supplied", "Rejected"),
        ('invalid sslmode value: "yes"', "Rejected"),
        ("connection failed: server does not support SSL, but SSL was required", "Rejected"),
        ("SSL SYSCALL error: EOF detected", "Unavailable"),
        ("SSL connection has been closed unexpectedly", "Unavailable"),
        ("connection failed: Connection refused", "Unavailable"),
        ("server closed the connection unexpectedly", "Unavailable"),
    ],
)
def test_without_a_state_the_text_decides(text: str, kind: str) -> None:
    found = failure(psycopg.OperationalError(text), "db:5432/x", "t")
    assert type(found).__name__ == f"Postgres{kind}Error"
