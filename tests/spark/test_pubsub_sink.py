"""`write` and `writeStream.format("pubsub")` with a real Spark and the embedded server.

PySpark 4.0 calls the writer with rows instead of Arrow, as the last test does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
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
from tests.integration.pubsub_world import World, pubsub_world

from epochal.connectors.pubsub.data_source.register import register
from epochal.connectors.pubsub.data_source.spark_sink import BatchWriter, Published
from epochal.connectors.pubsub.pubsub_options import settle_options, sink_options


@pytest.fixture(scope="module")
def world(spark: SparkSession) -> Iterator[World]:
    register(spark)  # and Spark starts before anything uses gRPC
    with pubsub_world() as found:
        yield found


def save(frame: Any, world: World, topic: str, **options: Any) -> None:
    frame.write.format("pubsub").options(**world.options, topicId=topic, **options).mode(
        "append"
    ).save()


def test_a_stream_is_published_with_marks(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    topic, subscription = world.pair()
    spark.range(1000).selectExpr("id").write.parquet(str(tmp_path / "in"))
    query = (
        spark.readStream.schema("id long")
        .parquet(str(tmp_path / "in"))
        .selectExpr("cast(id as string) value")
        .writeStream.format("pubsub")
        .options(**world.options, topicId=topic, epochAttributes="true", batchSize="100")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    found = world.pull(subscription, 1000)
    assert sorted(int(m.message.data) for m in found) == list(range(1000))
    marks = {tuple(sorted(m.message.attributes.items())) for m in found}
    assert len(marks) == 1000
    assert {m.message.attributes["epochal-query"] for m in found} == {query.id}
    assert {m.message.attributes["epochal-epoch"] for m in found} == {"0"}


def test_what_cannot_be_sent_is_refused_before_any_task(spark: SparkSession, world: World) -> None:
    topic, subscription = world.pair()
    with pytest.raises(Exception, match="price would be lost"):
        save(spark.sql("select 'a' data, 1 price"), world, topic)
    with pytest.raises(Exception, match="Did you mean batchSize"):
        save(spark.sql("select 'a' data"), world, topic, batchSise="1")
    with pytest.raises(Exception, match="cannot be overwritten"):
        spark.sql("select 'a' data").write.format("pubsub").options(
            **world.options, topicId=topic
        ).mode("overwrite").save()
    assert world.left(subscription, seconds=0.2) == []


def test_conf_is_a_default_under_options(spark: SparkSession, world: World) -> None:
    topic, subscription = world.pair()
    for name, text in world.options.items():
        spark.conf.set(f"spark.pubsub.{name}", text)
    spark.conf.set("spark.pubsub.numFetchPartitions", "3")
    try:
        register(spark)
        frame = spark.sql("select 'by conf' data")
        frame.write.format("pubsub").option("topicId", topic).mode("append").save()
    finally:
        for name in (*world.options, "numFetchPartitions"):
            spark.conf.unset(f"spark.pubsub.{name}")
        register(spark)
    assert world.left(subscription) == [b"by conf"]


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
    assert writer.write(iter(given)) == Published(len(given))
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
