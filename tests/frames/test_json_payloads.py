"""JSON payloads mean what `from_json` makes of them, and those that are malformed have a reason."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import _parse_datatype_string
from tests.unit.connectors.pubsub.test_parse import parsed, spec

from epochal.connectors.payloads.json_payloads import JsonDecoder
from epochal.continuous.catalyst.given_schema import arrow_schema

pytestmark = pytest.mark.usefixtures("spark")


def test_malformed_json_says_what_is_wrong_and_where() -> None:
    found = parsed(
        spec("json", "id int, name string"),
        b'{"id": 1}',
        b"{not json",
        b'{"id": "one"}',
        b'{"id": 3000000000}',
        b"\xff\xfe",
        b"",
        b"[]",
        b'{"id": null, "name": "x"}',
    )
    assert found[0] == ({"id": 1, "name": None}, None)
    assert found[-1] == ({"id": None, "name": "x"}, None)
    for value, error in found[1:-1]:
        assert value is None
        assert error
    assert "CANNOT_PARSE_JSON_FIELD" in found[2][1]
    assert "'id'" in found[2][1]
    assert "out of range of int" in found[3][1]


FIELDS = (
    "i int, l bigint, t tinyint, d double, f float, s string, b boolean, x decimal(9,2), "
    "at timestamp, local timestamp_ntz, day date, raw binary, a array<int>, "
    "m map<string,double>, r struct<i: int, s: string, m: map<string,array<string>>>"
)
NAMES = [field.partition(" ")[0] for field in FIELDS.split(", ") if "<" not in field]
ODD = (
    *("null", "true", "0", "1", "-1", "128", "2147483648", "9223372036854775808", "1.0", "1.5"),
    *("1e3", "1e400", "-0.0", '"NaN"', '"Infinity"', "NaN", '"1"', '"1.25"', '"1234567.891"', '""'),
    *('"x"', '"2026-05-01"', '"2026-05-01T12:00:00Z"', '"2026-05-01 12:00:00.123456+02:00"'),
    *('"1500-01-01"', '"AP8="', '"A"', '"\\ud800"', '"\\u0000é𝄞"', "[1,null]"),
    *("[]", '["1"]', "{}", '{"i":1}', '{"i":"1","s":2}', '{"a":1,"b":null}', '{"m":{"k":["v"]}}'),
    *("[1", '{"i":', "'single'", "01", "+1", "tru", '"a\nb"', '{"s":{"t":[1]}}', "-", "1_000"),
)


def document(rng: random.Random) -> bytes:
    """Mostly an object with odd values, sometimes cut off or with bytes that are not UTF-8."""
    names = rng.choices([*NAMES, "a", "m", "r", "unknown", "I"], k=rng.randrange(5))
    members = ",".join(f'"{name}": {rng.choice(ODD)}' for name in names)
    text = f" {{{members}}}".encode()
    match rng.randrange(20):
        case 0:
            return text[: rng.randrange(len(text))]
        case 1:
            return text + rng.choice([b" x", b"{}", b"\n", b"]"])
        case 2:
            place = rng.randrange(len(text))
            return text[:place] + rng.choice([b"\xff", b"\x00", b"\xc3"]) + text[place + 1 :]
        case 3:
            return rng.choice(ODD).encode() if rng.random() < 0.5 else b""
    return text


@pytest.mark.parametrize("seed", range(3))
def test_random_payloads_are_parsed_as_from_json_parses_them(
    spark: SparkSession, seed: int
) -> None:
    rng = random.Random(seed)
    payloads = [text for text in (document(rng) for _ in range(1_000)) if text[:1] != b"["]
    decoder = JsonDecoder(pa.struct(list(arrow_schema(_parse_datatype_string(FIELDS)))))
    values, errors = decoder.decode(payloads, None)
    options = "map('columnNameOfCorruptRecord', 'bad', 'timeZone', 'UTC')"
    table = pa.table({"n": range(len(payloads)), "data": pa.array(payloads, pa.binary())})
    made = spark.createDataFrame(table).selectExpr(
        "n", f"from_json(cast(data AS string), '{FIELDS}, bad string', {options}) AS r"
    )
    expected = made.selectExpr("n", "r IS NULL OR r.bad IS NOT NULL AS failed", "r.*").drop("bad")
    for row, payload, value, error in zip(
        expected.toArrow().sort_by("n").to_pylist(),
        payloads,
        values.to_pylist(),
        errors,
        strict=True,
    ):
        del row["n"]
        failed = row.pop("failed")
        assert (repr(value), bool(error)) == (repr(None if failed else row), failed), payload
    assert 100 < sum(map(bool, errors)) < 900
