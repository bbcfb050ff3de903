"""DataFrames over Kafka under the test driver: no broker is asked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from epochal import testing


def topic(spark: SparkSession, name: str) -> DataFrame:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", "nowhere:9092")
    return reader.option("subscribe", name).load()


def record(value: str, partition: int = 0, second: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "key": None,
        "value": value.encode(),
        "topic": "orders",
        "partition": partition,
        "offset": 0,
        "timestamp": datetime.fromtimestamp(second, UTC),
        "timestampType": 0,
        **more,
    }


def test_records_are_fed_to_the_topic_by_its_name(kafka_spark: SparkSession) -> None:
    orders = topic(kafka_spark, "orders").selectExpr("CAST(value AS string) AS v", "partition")
    driver = testing.Driver(orders.where("v <> 'b'"))
    driver.feed("orders", [record("a"), record("b"), record("c", partition=1)])
    assert testing.rows_equal(driver.run(), [("a", 0), ("c", 1)])
