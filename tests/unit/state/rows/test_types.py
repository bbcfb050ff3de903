"""Spark's schema JSON and DDL. `spark_schemas.txt` holds what Spark 4.3.0 wrote, one to a line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from tests.unit.state.random_rows import Table, struct_of, tables

from epochal.errors import StateSchemaError
from epochal.state.rows.arrow_types import arrow_type, spark_schema
from epochal.state.rows.ddl import parse_ddl
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
