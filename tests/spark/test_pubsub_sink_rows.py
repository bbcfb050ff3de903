"""The sink's writer as PySpark 4.0 calls it, with rows instead of Arrow. Needs no JVM."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from tests.integration.pubsub_world import World

from epochal.connectors.pubsub.data_source.spark_sink import BatchWriter, Published
from epochal.connectors.pubsub.pubsub_options import settle_options, sink_options

SCHEMA = StructType(
    [
        StructField("id", LongType()),
        StructField("at", TimestampType()),
        StructField("n", TimestampNTZType()),
        StructField("m", MapType(StringType(), ArrayType(TimestampType()))),
    ]
)


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def written(world: World, schema: StructType, given: list[Any]) -> list[Any]:
    topic, subscription = world.pair()
    writer = BatchWriter(settle_options(sink_options({**world.options, "topicId": topic})), schema)
    assert writer.write(iter(given)) == Published(len(given), 1)
    return [json.loads(each.message.data) for each in world.pull(subscription, len(given))]


def test_rows_have_their_times_in_this_machines_zone(world: World, tokyo: None) -> None:
    evening = datetime(2026, 5, 1, 21)  # noqa: DTZ001 - as PySpark's rows have it
    rows = [Row(id=1, at=evening, n=evening, m={"k": [evening, None]}), Row(2, None, None, None)]
    rows[1].__fields__ = rows[0].__fields__
    assert written(world, SCHEMA, rows) == [
        {
            "id": 1,
            "at": "2026-05-01T12:00:00.000000Z",
            "n": "2026-05-01T21:00:00",
            "m": {"k": ["2026-05-01T12:00:00.000000Z", None]},
        },
        {"id": 2},
    ]
