"""Decodes random Avro payloads with Spark's `from_avro` and with Epochal's decoder.

    python -m tests.frames.random_avro_child ANSWER JAR MASTER KEY=VALUE ...

The answer has the numbers of schemas and payloads, and what differed. The setting
`epochal.test.seeds=40:400` chooses the seeds 40 to 439.
"""

from __future__ import annotations

import json
import math
import random
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from operator import itemgetter
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import from_arrow_type
from tests.frames.user_classes_child import session_of

from epochal.connectors.pubsub.parse import AvroDecoder

ROWS = 12
MAX_DEPTH = 3
LETTERS = 'aZ 0,"\\\n\0äß漢🙂'
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RandomSchema:
    """A random record, and random values of it."""

    def __init__(self, seed: int) -> None:
        self._random, self._names = random.Random(seed), 0
        self.schema = self._record(0)

    def value(self) -> Any:
        return self._value(self.schema)

    def _name(self) -> str:
        self._names += 1
        return f"n{self._names}"

    def _record(self, depth: int) -> dict[str, Any]:
        fields = [
            {"name": self._name(), "type": self._nullable(depth + 1)}
            for _ in range(self._random.randint(1, 5))
        ]
        return {"type": "record", "name": self._name(), "fields": fields}

    def _nullable(self, depth: int) -> Any:
        schema = self._type(depth)
        order = self._random.randrange(3)
        return schema if order == 0 else ["null", schema] if order == 1 else [schema, "null"]

    def _type(self, depth: int) -> Any:
        kinds = ["primitive"] * 4 + ["logical"] * 3 + ["enum", "fixed"]
        if depth < MAX_DEPTH:
            kinds += ["record", "array", "map"]
        kind = self._random.choice(kinds)
        if kind == "primitive":
            kinds = ["boolean", "int", "long", "float", "double", "bytes", "string"]
            return self._random.choice(kinds)
        if kind == "logical":
            return self._logical()
        if kind == "enum":
            return {"type": "enum", "name": self._name(), "symbols": ["A", "b_1", "C"]}
        if kind == "fixed":
            return {"type": "fixed", "name": self._name(), "size": self._random.randint(1, 9)}
        if kind == "record":
            return self._record(depth)
        key = "items" if kind == "array" else "values"
        return {"type": kind, key: self._nullable(depth + 1)}

    def _logical(self) -> dict[str, Any]:
        kind = self._random.choice(["date", "millis", "micros", "local", "decimal", "fixed"])
        if kind == "date":
            return {"type": "int", "logicalType": "date"}
        precision = self._random.randint(1, 38)
        scale = self._random.randint(0, precision)
        decimal = {"logicalType": "decimal", "precision": precision, "scale": scale}
        if kind == "decimal":
            return {"type": "bytes", **decimal}
        if kind == "fixed":
            return {"type": "fixed", "name": self._name(), "size": 16, **decimal}
        names = {"local": "local-timestamp-micros"}
        return {"type": "long", "logicalType": names.get(kind, f"timestamp-{kind}")}

    def _value(self, schema: Any) -> Any:
        draw = self._random
        if isinstance(schema, list):
            return None if draw.random() < 0.3 else self._value(_of_union(schema))
        if isinstance(schema, dict) and "logicalType" in schema:
            return self._logical_value(schema)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind == "record":
            return {field["name"]: self._value(field["type"]) for field in schema["fields"]}
        if kind == "array":
            return [self._value(schema["items"]) for _ in range(draw.randint(0, 3))]
        if kind == "map":
            return {self._text(): self._value(schema["values"]) for _ in range(draw.randint(0, 3))}
        if kind == "enum":
            return draw.choice(schema["symbols"])
        if kind == "fixed":
            return draw.randbytes(schema["size"])
        return self._plain_value(kind)

    def _plain_value(self, kind: str) -> Any:
        draw = self._random
        if kind in ("int", "long"):
            bits = 31 if kind == "int" else 63
            return draw.choice([0, -1, 2**bits - 1, -(2**bits), draw.getrandbits(bits)])
        if kind == "float":
            return draw.choice([0.0, -0.0, math.inf, math.nan, 2.0**-140, draw.randint(-9, 9) / 8])
        if kind == "double":
            return draw.choice([0.0, -0.0, -math.inf, math.nan, 5e-324, draw.gauss(0, 1e9)])
        if kind == "boolean":
            return draw.random() < 0.5
        return draw.randbytes(draw.randint(0, 6)) if kind == "bytes" else self._text()

    def _logical_value(self, schema: dict[str, Any]) -> Any:
        draw = self._random
        kind = schema["logicalType"]
        if kind == "date":
            return date(draw.randint(1, 9999), draw.randint(1, 12), draw.randint(1, 28))
        if kind == "decimal":
            digits = draw.randint(0, schema["precision"])
            unscaled = draw.randrange(10**digits) * draw.choice([1, -1])
            sign, number, _ = Decimal(unscaled).as_tuple()
            return Decimal((sign, number, -schema["scale"]))
        days = draw.randint(-700_000, 2_900_000)
        step = 1_000 if kind.endswith("millis") else 1
        time = EPOCH + timedelta(days, microseconds=draw.randrange(86_400_000_000 // step) * step)
        return time.replace(tzinfo=None) if kind.startswith("local") else time

    def _text(self) -> str:
        return "".join(self._random.choices(LETTERS, k=self._random.randint(0, 5)))


def _of_union(schema: list[Any]) -> Any:
    return next(arm for arm in schema if arm != "null")


def difference(spark: SparkSession, seed: int) -> str | None:
    """What differs between the two decoders, for the payloads of one schema."""
    made = RandomSchema(seed)
    payloads = []
    for _ in range(ROWS):
        out = BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(made.schema), made.value())
        payloads.append(out.getvalue())
    text = json.dumps(made.schema)
    rows = spark.createDataFrame(list(enumerate(payloads)), "n int, payload binary").coalesce(1)
    literal = text.replace("\\", "\\\\").replace("'", "\\'")
    theirs = rows.selectExpr("n", f"from_avro(payload, '{literal}') AS row")
    column, errors = AvroDecoder(text.encode()).decode(
        payloads, pa.nulls(ROWS, pa.map_(pa.string(), pa.string()))
    )
    types = theirs.schema["row"].dataType, from_arrow_type(column.type, True)
    if types[0].simpleString() != types[1].simpleString():
        return f"seed {seed}: {text}: Spark's type {types[0]}, ours {types[1]}"
    if any(errors):
        return f"seed {seed}: {text}: only ours fails: {errors}"
    ours = column.to_pylist(maps_as_pydicts="strict")
    for number, row in sorted(theirs.collect(), key=itemgetter(0)):
        spark_row, our_row = repr(_plain(row)), repr(_plain(ours[number]))
        if spark_row != our_row:
            return f"seed {seed}, payload {number}: {text}: Spark {spark_row}, ours {our_row}"
    return None


def _plain(value: Any) -> Any:
    """The value in types that both have: times in UTC, decimals as fractions, keys sorted."""
    if isinstance(value, Row):
        value = value.asDict()
    if isinstance(value, dict):
        return {name: _plain(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Decimal):
        return value.as_integer_ratio()
    if isinstance(value, bytearray):
        return bytes(value)
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def main(answer: str, _: str, master: str, *settings: str) -> None:
    spark = session_of(master, "spark.sql.session.timeZone=UTC", *settings)
    first, count = map(int, spark.conf.get("epochal.test.seeds", "0:25").split(":"))
    wrong = [text for seed in range(first, first + count) if (text := difference(spark, seed))]
    report = {"schemas": count, "payloads": count * ROWS, "different": wrong}
    Path(answer).write_text(json.dumps(report), encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
