"""Continuous queries over Kafka: Spark's offsets and bounds, new partitions, lost records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions
from pyspark.sql import SparkSession
from tests.integration.kafka_reading import age_out, options, send, source, texts
from tests.integration.kafka_world import (
    admin,
    described,
    epochal,
    held,
    make_topic,
    processed,
    unique,
    wait_for,
)

import epochal as package
from epochal.connectors.kafka.source.source_offsets import parse_logged, spark_json
from epochal.connectors.memory import MemoryOutput
from epochal.continuous.api.query_handle import StreamingQuery
from epochal.errors import QueryFailedError
from epochal.testing.kafka import Kafka

T0 = 1_700_000_000_000


def spark_runs(spark: SparkSession, given: dict[str, str], home: Path) -> None:
    """Read everything available in micro-batches."""
    query = (
        spark.readStream.format("kafka")
        .options(**given)
        .load()
        .selectExpr("cast(value as string) as value")
        .writeStream.format("json")
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(home / "out"))
    )
    query.awaitTermination()


def written(spark: SparkSession, home: Path) -> list[str]:
    rows = spark.read.schema("value string").json(str(home / "out")).collect()
    return sorted(row.value for row in rows)


def logged(home: Path, batch: int) -> str:
    return (home / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()[2]


def test_records_of_which_no_column_is_read_are_counted_by_both_engines(
    kafka_spark: SparkSession, broker: Kafka, tmp_path: Path
) -> None:
    topic, counts = make_topic(broker, unique("orders")), list[int]()
    frame = kafka_spark.readStream.format("kafka").options(**options(broker, subscribe=topic))
    counted = frame.load().groupBy().count()
    for turn in range(4):
        for partition in (0, 1):
            texts(broker, topic, ["x"] * (3 + 200 * partition), partition)
        writer = package.write_stream(counted) if turn % 2 else counted.writeStream
        writer.outputMode("complete").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.foreachBatch(lambda rows, _: counts.append(rows.collect()[0][0]))
        query = writer.start()
        query.processAllAvailable()
        query.stop()
        assert counts[-1] == 206 * (turn + 1), turn


def test_offsets_are_the_text_that_spark_writes(
    kafka_spark: SparkSession, broker: Kafka, tmp_path: Path
) -> None:
    name = unique("order")
    for n in range(13):
        make_topic(broker, f"{name}-{'abcdefghijklm'[n] * (n + 1)}", 1 + n % 3)
    make_topic(broker, f"{name}-wide", 20)
    given = options(broker, subscribePattern=f"^{name}")
    texts(broker, f"{name}-wide", ["x"], 17)
    spark_runs(kafka_spark, given, tmp_path)
    text = logged(tmp_path, 0)
    assert spark_json(parse_logged(text)) == text
    first = (tmp_path / "checkpoint" / "sources" / "0" / "0").read_bytes()
    source(tmp_path / "ours", given).initial()
    ours = (tmp_path / "ours" / "checkpoint" / "sources" / "0" / "0").read_bytes()
    assert ours == first


STARTS: dict[str, dict[str, Any]] = {
    "earliest": {"startingOffsets": "earliest"},
    "latest": {"startingOffsets": "latest"},
    "default": {},
    "offsets": {"startingOffsets": {"0": 4, "1": -1, "2": -2}},
    "time": {"startingTimestamp": str(T0 + 3500)},
    "times": {"startingOffsetsByTimestamp": {"0": T0, "1": T0 + 2000, "2": T0 + 1}},
    "time-beyond": {
        "startingTimestamp": str(T0 + 9000),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "assigned": {"assign": [0, 2], "startingOffsets": {"0": 3, "2": 2}},
}


@pytest.fixture(scope="module")
def aged(broker: Kafka) -> str:
    """A topic of three partitions with ten, eight and six records, one second apart.

    The first two records of the first partition are deleted.
    """
    name = make_topic(broker, unique("aged"), 3)
    places = [(partition, n) for partition in range(3) for n in range(10 - 2 * partition)]
    send(broker, [(name, p, {"value": b"x", "timestamp": T0 + 1000 * n}) for p, n in places])
    age_out(broker, name, 2)
    return name


@pytest.mark.parametrize("start", sorted(STARTS))
def test_a_query_starts_where_spark_would(
    kafka_spark: SparkSession, broker: Kafka, aged: str, tmp_path: Path, start: str
) -> None:
    chosen = {
        key: value if isinstance(value, str) else json.dumps({aged: value})
        for key, value in STARTS[start].items()
    }
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, **chosen}
    given |= {} if "assign" in chosen else {"subscribe": aged}
    query = (
        kafka_spark.readStream.format("kafka")
        .options(**given)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    first = tmp_path / "checkpoint" / "sources" / "0" / "0"
    wait_for(first.exists, query.exception)
    query.stop()
    source(tmp_path / "ours", given).initial()
    ours = tmp_path / "ours" / "checkpoint" / "sources" / "0" / "0"
    assert ours.read_bytes() == first.read_bytes()


def started(spark: SparkSession, given: dict[str, str], home: Path, **more: Any) -> Any:
    output = MemoryOutput()
    stream = package.read_stream(spark).format("kafka").options(**given).load()
    usual = {"discoverInterval": "300 ms", "idleEpoch": "500 ms", "epoch": "50 ms", "seed": 7}
    query = (
        stream.select("cast(value as string) as value", "topic", "partition", "offset")
        .write_stream.format(output)
        .options(checkpointLocation=str(home / "checkpoint"), **{**usual, **more})
        .start()
    )
    return query, output


@pytest.fixture
def stopping() -> Iterator[list[StreamingQuery]]:
    queries: list[StreamingQuery] = []
    yield queries
    for query in queries:
        query.stop()


def read_values(output: MemoryOutput) -> list[str]:
    return sorted(str(value) for value in output.table()["value"].to_pylist())


def test_partitions_and_topics_that_are_added_are_picked_up_while_the_query_runs(
    kafka_spark: SparkSession, broker: Kafka, tmp_path: Path, stopping: list[StreamingQuery]
) -> None:
    topic = make_topic(broker, unique("grown"), 1)
    given = options(broker, subscribePattern=topic)
    query, output = started(kafka_spark, given, tmp_path)
    stopping.append(query)
    texts(broker, topic, ["a"])
    wait_for(lambda: read_values(output) == ["a"], query.exception)
    client = admin(broker)
    client.create_partitions([NewPartitions(topic, 2)])[topic].result(30)
    wait_for(lambda: len(client.list_topics(timeout=10).topics[topic].partitions) == 2)
    make_topic(broker, f"{topic}-more", 1)
    texts(broker, topic, ["b"], 1)
    texts(broker, f"{topic}-more", ["c"])
    texts(broker, topic, ["d"])
    wait_for(lambda: read_values(output) == ["a", "b", "c", "d"], lambda: read_values(output))
    query.process_all_available()
    assert processed(tmp_path / "checkpoint") == {
        (topic, 0): 2,
        (topic, 1): 1,
        (f"{topic}-more", 0): 1,
    }


def test_a_pattern_that_matches_nothing_waits_for_a_topic(
    kafka_spark: SparkSession, broker: Kafka, tmp_path: Path, stopping: list[StreamingQuery]
) -> None:
    topic = unique("awaited")
    query, output = started(kafka_spark, options(broker, subscribePattern=topic), tmp_path)
    stopping.append(query)
    query.process_all_available()
    make_topic(broker, topic, 2)
    texts(broker, topic, ["a"])
    wait_for(lambda: read_values(output) == ["a"], query.exception)


def test_the_group_that_a_source_names_shows_how_far_the_query_is(
    kafka_spark: SparkSession, broker: Kafka, tmp_path: Path
) -> None:
    topic, group = make_topic(broker, unique("orders")), unique("shown")
    given = options(broker, subscribe=topic) | {"kafka.consumer.commit.groupid": group}
    query, _ = started(kafka_spark, given, tmp_path)
    texts(broker, topic, ["a", "b", "c"])
    wait_for(lambda: held(broker, group).get((topic, 0)) == 3, query.exception)
    texts(broker, topic, ["d"], 1)
    query.process_all_available()
    query.stop()
    texts(broker, topic, ["late", "later"], 1)
    there = processed(tmp_path / "checkpoint")
    assert held(broker, group) == there == {(topic, 0): 3, (topic, 1): 1}
    assert described(broker, group) == {(topic, 0): (3, 3, 0), (topic, 1): (1, 3, 2)}
    where = ("--checkpoint", tmp_path / "checkpoint")
    who = ("--group", group, "--bootstrap-servers", broker.bootstrap_servers)
    told = json.loads(epochal("kafka", "lag", *where, *who, "--json"))["partitions"]
    assert [(each["partition"], each["lag"]) for each in told] == [(0, 0), (1, 2)]


def test_records_that_are_lost_end_the_query_with_sparks_condition(
    kafka_spark: SparkSession, broker: Kafka, tmp_path: Path
) -> None:
    topic = make_topic(broker, unique("lost"), 1)
    texts(broker, topic, ["a", "b", "c", "d"])
    given = options(broker, subscribe=topic)
    query, _ = started(kafka_spark, given, tmp_path)
    query.process_all_available()
    query.stop()
    texts(broker, topic, ["e", "f", "g"])
    age_out(broker, topic, 6)
    query, output = started(kafka_spark, given, tmp_path)
    with pytest.raises(QueryFailedError, match="KAFKA_DATA_LOSS") as caught:
        query.await_termination(60)
    assert f"offset 4 of {topic}-0 is not there" in str(caught.value)
    query, output = started(kafka_spark, given | {"failOnDataLoss": "false"}, tmp_path)
    query.process_all_available()
    query.stop()
    assert read_values(output) == ["g"]


SECONDS = 120.0
Batches = list[list[str]]


def records(broker: Kafka, topic: str, turn: int) -> None:
    """Many in one partition and few in the other."""
    texts(broker, topic, [f"{turn}-a{n:02}" for n in range(47)], 0)
    texts(broker, topic, [f"{turn}-b{n:02}" for n in range(9)], 1)


def shown(writer: Any, home: Path, **trigger: Any) -> Batches:
    batches: Batches = []
    writer.foreachBatch(lambda rows, _: batches.append(sorted(row[0] for row in rows.collect())))
    query = writer.option("checkpointLocation", str(home)).trigger(**trigger).start()
    if trigger.get("availableNow"):
        assert query.awaitTermination(SECONDS)
    else:
        query.processAllAvailable()
        query.stop()
    return [batch for batch in batches if batch]


def test_epochs_have_the_shares_of_sparks_batches_after_restarts_too(
    kafka_spark: SparkSession, broker: Kafka, tmp_path: Path
) -> None:
    topic = make_topic(broker, unique("shares"))
    given = options(broker, subscribe=topic) | {"maxOffsetsPerTrigger": "10"}
    frame = kafka_spark.readStream.format("kafka").options(**given).load()
    frame = frame.selectExpr("cast(value as string)")
    expected: Batches = []
    found: Batches = []
    for turn in range(4):
        records(broker, topic, turn)
        expected += shown(frame.writeStream, tmp_path / "spark", availableNow=True)
        ours = turn != 2  # Spark goes on once in between
        writer = package.write_stream(frame) if ours else frame.writeStream
        trigger = {"availableNow": True} if turn % 2 == 0 else {"processingTime": "0 seconds"}
        found += shown(writer, tmp_path / "turns", **trigger)
    assert found == expected
    assert len(expected) > 4 * 5
