from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from epochal.errors import StateValueError
from epochal.state.rows.byte_spans import spans_of
from epochal.state.rows.column_decoder import decode_rows
from epochal.state.rows.tagged_json import from_json, json_column, row_from_json
from epochal.state.rows.types import StructType, parse_schema
from epochal.state.rows.unsafe_row import encode_row

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
