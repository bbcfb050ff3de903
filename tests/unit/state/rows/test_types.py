"""Spark's schema JSON and DDL. `spark_schemas.txt` holds what Spark 4.3.0 wrote, one to a line."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from tests.unit.state.random_rows import Table, struct_of, tables

from epochal.errors import StateSchemaError, StateValueError
from epochal.state.rows.arrow_types import arrow_type, spark_schema
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.ddl import parse_ddl
from epochal.state.rows.tagged_json import from_json, json_column, row_from_json
from epochal.state.rows.types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    Kind,
    MapType,
    SpatialType,
    StringType,
    StructField,
    StructType,
    UserDefinedType,
    layout_of,
    parse_schema,
    schema_json,
)
from epochal.state.rows.unsafe_row import encode_row

WRITTEN_BY_SPARK = (Path(__file__).parent / "spark_schemas.txt").read_text().splitlines()


def field_json(type_json: str) -> str:
    return (
        '{"type":"struct","fields":[{"name":"c0","type":'
        + type_json
        + ',"nullable":true,"metadata":{}}]}'
    )


@pytest.mark.parametrize("text", WRITTEN_BY_SPARK, ids=range(len(WRITTEN_BY_SPARK)))
def test_writes_back_what_spark_wrote(text: str) -> None:
    assert schema_json(parse_schema(text)) == text


@given(tables(max_rows=1))
def test_gives_back_any_schema(table: Table) -> None:
    schema, _ = table
    assert parse_schema(schema_json(schema)) == schema


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("null", AtomicType("void")),
        ("decimal", DecimalType(10, 0)),
        ("decimal( 5 , -2 )", DecimalType(5, -2)),
        ("timestamp_ltz", AtomicType("timestamp")),
        ("timestamp_ntz(6)", AtomicType("timestamp_ntz")),
        ("char( 4 )", StringType("char(4)")),
        ("string collate UNICODE_CI", StringType(collation="UNICODE_CI")),
        ("geography(OGC:CRS84, SPHERICAL)", SpatialType("geography(OGC:CRS84, SPHERICAL)")),
    ],
)
def test_understands_other_spellings(written: str, meant: DataType) -> None:
    assert parse_schema(field_json(json.dumps(written))) == struct_of([meant])


def test_takes_collations_from_the_metadata_and_leaves_them_there() -> None:
    text = WRITTEN_BY_SPARK[1]
    schema = parse_schema(text)
    assert schema.fields[0].data_type == StringType(collation="UTF8_LCASE")
    assert schema.fields[1].data_type == ArrayType(StringType(collation="UNICODE"))
    assert schema.fields[0].metadata == '{"__COLLATIONS":{"c":"spark.UTF8_LCASE"}}'


def test_keeps_metadata_and_its_numbers_as_they_were_spelled() -> None:
    text = (
        '{"type":"struct","fields":[{"name":"a","type":"long","nullable":false,'
        '"metadata":{"z":1.0E10,"a":[1,2],"n":null,"d":0.10,"s":"\\u001F\\t/é","m":{"k":true}}}]}'
    )
    assert schema_json(parse_schema(text)) == text


def test_sees_a_user_defined_type_as_what_it_is_stored_as() -> None:
    text = field_json(
        '{"type":"udt","class":"org.apache.spark.ml.linalg.VectorUDT","pyClass":null,'
        '"sqlType":{"type":"struct","fields":[{"name":"size","type":"integer","nullable":true,'
        '"metadata":{}}]}}'
    )
    schema = parse_schema(text)
    udt = schema.fields[0].data_type
    assert isinstance(udt, UserDefinedType)
    assert layout_of(udt).kind is Kind.STRUCT
    assert arrow_type(udt) == pa.struct([("size", pa.int32())])
    assert schema_json(schema) == text


def test_a_field_without_metadata_or_nullability_has_sparks_defaults() -> None:
    short = parse_schema('{"type":"struct","fields":[{"name":"a","type":"long"}]}')
    assert short == StructType((StructField("a", AtomicType("long"), True, "{}"),))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "cannot be parsed"),
        ("[" * 100_000, "cannot be parsed"),
        ('"long"', "expected a struct"),
        ("[]", "not a data type"),
        ('{"type":"struct"}', "not a data type"),
        ('{"type":"struct","fields":[1]}', "not a field"),
        ('{"type":"struct","fields":[{"name":1,"type":"long"}]}', "not a field"),
        ('{"type":"struct","fields":[{"name":"a","type":"long","nullable":1}]}', "not a field"),
        (field_json('"lnog"'), "'lnog' is not a type Spark knows"),
        (field_json('"decimal(39,0)"'), "out of range"),
        (field_json('"decimal(3,4)"'), "out of range"),
        (field_json("NaN"), "cannot be parsed"),
        (field_json('{"type":"array","elementType":"long"}'), "not a data type"),
        (field_json('"time(10)"'), "not a type Spark knows"),
        (
            '{"type":"struct","fields":[{"name":"a","type":"long","nullable":true,'
            '"metadata":{"__COLLATIONS":{"a":"icu.UNICODE"}}}]}',
            "not a string",
        ),
    ],
)
def test_says_what_is_wrong_with_a_schema(text: str, reason: str) -> None:
    with pytest.raises(StateSchemaError, match=reason) as caught:
        parse_schema(text, source="state/0/0/_metadata/schema")
    assert caught.value.source == "state/0/0/_metadata/schema"


def test_spark_schemas_of_arrow_tables() -> None:
    types: dict[str, pa.DataType] = {
        "k": pa.large_string(),
        "t": pa.timestamp("ns", tz="UTC"),
        "d": pa.decimal128(20, 3),
        "m": pa.map_(pa.string(), pa.list_(pa.int16())),
        "s": pa.dictionary(pa.int8(), pa.string()),
        "i": arrow_type(AtomicType("interval")),
    }
    schema = pa.schema([pa.field(name, each, name != "k") for name, each in types.items()])
    assert spark_schema(schema) == StructType(
        (
            StructField("k", StringType(), nullable=False),
            StructField("t", AtomicType("timestamp")),
            StructField("d", DecimalType(20, 3)),
            StructField("m", MapType(StringType(), ArrayType(AtomicType("short")))),
            StructField("s", StringType()),
            StructField("i", AtomicType("interval")),
        )
    )


def test_refuses_arrow_types_spark_has_none_for() -> None:
    with pytest.raises(StateSchemaError, match="uint64"):
        spark_schema(pa.schema([("u", pa.uint64())]))


def types_of(text: str) -> list[str]:
    return [schema_json(each.data_type) for each in parse_ddl(text).fields]


def test_reads_names_types_and_their_aliases() -> None:
    found = parse_ddl("id STRING, `a b` bigint NOT NULL, n: int COMMENT 'it\\'s'")
    assert found.names == ("id", "a b", "n")
    assert [each.nullable for each in found.fields] == [True, False, True]
    assert found.fields[2].metadata == '{"comment":"it\'s"}'
    assert types_of("a tinyint, b smallint, c int, d long, e real, f dec(5), g numeric(7, 2)") == [
        '"byte"',
        '"short"',
        '"integer"',
        '"long"',
        '"float"',
        '"decimal(5,0)"',
        '"decimal(7,2)"',
    ]
    assert types_of("a timestamp_ntz, b interval day to second, c varchar(3), d decimal") == [
        '"timestamp_ntz"',
        '"interval day to second"',
        '"varchar(3)"',
        '"decimal(10,0)"',
    ]


def test_reads_nested_types() -> None:
    (found,) = types_of("m map<string, array<struct<x: int, y string>>>")
    assert found == (
        '{"type":"map","keyType":"string","valueType":{"type":"array","elementType":'
        '{"type":"struct","fields":[{"name":"x","type":"integer","nullable":true,"metadata":{}},'
        '{"name":"y","type":"string","nullable":true,"metadata":{}}]},"containsNull":true},'
        '"valueContainsNull":true}'
    )


@pytest.mark.parametrize("text", ["int", "a nonsense", "a int b", "a array<int", "", "a int,", "!"])
def test_refuses_what_is_no_schema(text: str) -> None:
    with pytest.raises(StateSchemaError):
        parse_ddl(text)


FIELDS = """
[{"name":"b","type":"boolean"}, {"name":"i8","type":"byte"}, {"name":"i16","type":"short"},
 {"name":"i32","type":"integer"}, {"name":"i64","type":"long"}, {"name":"f","type":"float"},
 {"name":"d","type":"double"}, {"name":"s","type":"string"}, {"name":"raw","type":"binary"},
 {"name":"day","type":"date"}, {"name":"ts","type":"timestamp"},
 {"name":"ntz","type":"timestamp_ntz"}, {"name":"small","type":"decimal(10,2)"},
 {"name":"big","type":"decimal(38,6)"}, {"name":"ym","type":"interval year to month"},
 {"name":"dt","type":"interval day to second"}, {"name":"cal","type":"interval"},
 {"name":"st","type":{"type":"struct","fields":[{"name":"x","type":"long"}]}},
 {"name":"arr","type":{"type":"array","elementType":"string","containsNull":true}},
 {"name":"map","type":{"type":"map","keyType":"string","valueType":"long",
  "valueContainsNull":true}}, {"name":"void","type":"void"}]
"""
SCHEMA = parse_schema(f'{{"type":"struct","fields":{FIELDS}}}')
ROW: dict[str, Any] = {
    "b": True,
    "i8": -128,
    "i16": 32767,
    "i32": -1,
    "i64": 1 << 62,
    "f": 0.5,
    "d": "NaN",
    "s": "żółw 🐢",
    "raw": "AP8=",
    "day": "1969-12-31",
    "ts": "2024-02-29T23:59:59.999999Z",
    "ntz": "0001-01-01T00:00:00.000000",
    "small": "-12.30",
    "big": "12345678901234567890123456789012.123456",
    "ym": -13,
    "dt": 86_400_000_001,
    "cal": {"months": 1, "days": -2, "microseconds": 3},
    "st": {"x": 7},
    "arr": ["a", None, ""],
    "map": [["k", 1], ["n", None]],
    "void": None,
}


def through_bytes(row: dict[str, Any], schema: StructType = SCHEMA) -> Any:
    encoded = encode_row(row_from_json(row, schema, "row"), schema)
    return json_column(decode_rows(spans_of([encoded]), schema), schema)[0]


NOTHING: dict[str, Any] = dict.fromkeys(ROW)


def test_every_type_comes_back_as_it_went() -> None:
    assert through_bytes(ROW) == ROW


@pytest.mark.parametrize(
    ("row", "missing"),
    [
        ({name: None for name in NOTHING if name != "ts"}, r"row \(struct\): ts is missing"),
        ({name: None for name in NOTHING if name not in "fd"}, r"f, d are missing"),
        ({**NOTHING, "st": {}}, r"row\.st \(struct\): .* missing"),
    ],
)
def test_a_field_that_is_not_given_is_named(row: dict[str, Any], missing: str) -> None:
    with pytest.raises(StateValueError, match=missing):
        through_bytes(row)


def test_infinities_and_nan_are_words() -> None:
    for word in ("NaN", "Infinity", "-Infinity"):
        assert through_bytes({**NOTHING, "d": word, "f": word})["d"] == word
        assert through_bytes({**NOTHING, "d": word, "f": word})["f"] == word
    assert math.isnan(from_json("NaN", SCHEMA.fields[6].data_type, "d"))


def test_a_time_with_another_offset_is_the_same_moment() -> None:
    row = {**NOTHING, "ts": "2024-01-01T01:00:00+01:00"}
    assert through_bytes(row)["ts"] == "2024-01-01T00:00:00.000000Z"


def test_a_decimal_may_be_a_whole_number() -> None:
    assert from_json(5, SCHEMA.fields[12].data_type, "small") == Decimal(5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("b", 1),
        ("i8", 128),
        ("i64", 1 << 63),
        ("i32", True),
        ("i32", 1.5),
        ("d", "1.5"),
        ("s", 5),
        ("raw", "*"),
        ("day", "2024-13-01"),
        ("ts", "2024-01-01T00:00:00"),
        ("ntz", "2024-01-01T00:00:00Z"),
        ("small", "twelve"),
        ("cal", {"months": 1}),
        ("st", {"y": 1}),
        ("arr", "a"),
        ("map", [["k"]]),
        ("void", 0),
        ("unknown", 0),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_place(field: str, value: Any) -> None:
    with pytest.raises(StateValueError, match=rf"row\.{field}"):
        through_bytes({**NOTHING, field: value})
