"""DataFrames over Kafka under the test driver: no broker is asked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

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


def test_a_query_over_two_topics_survives_a_crash(kafka_spark: SparkSession) -> None:
    both = [
        topic(kafka_spark, name).selectExpr("CAST(value AS string) AS v")
        for name in ("orders", "returns")
    ]
    counts = both[0].unionAll(both[1]).groupBy("v").agg(F.count("*").alias("n"))
    driver = testing.Driver(counts, output_mode="complete", partitions=2)
    driver.feed("orders", [record("a"), record("b")])
    driver.run()
    driver.feed("returns", [record("a", topic="returns")])
    driver.crash(at="log")
    driver.restart()
    driver.run()
    assert testing.rows_equal(driver.output, [("a", 2), ("b", 1)])


def test_the_time_of_records_closes_windows(kafka_spark: SparkSession) -> None:
    marked = topic(kafka_spark, "orders").withWatermark("timestamp", "10 seconds")
    counts = marked.groupBy(F.window("timestamp", "1 minute")).count().select("count")
    driver = testing.Driver(counts)
    driver.feed([record("a", second=1), record("b", second=2)])
    assert driver.run() == []
    driver.feed([record("c", second=90)])
    assert testing.rows_equal(driver.run(), [(2,)])
