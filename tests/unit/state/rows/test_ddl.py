"""Spark's DDL for the schema of a table, read without a JVM."""

from __future__ import annotations

import pytest

from epochal.errors import StateSchemaError
from epochal.state.rows.ddl import parse_ddl
from epochal.state.rows.types import schema_json


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
