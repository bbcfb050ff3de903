"""The offset committer with a real Spark and a real broker, checked with Kafka's own tool."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from pyspark.sql import SparkSession
from tests.integration.kafka_world import (
    EPOCHAL,
    described,
    epochal,
    held,
    make_topic,
    processed,
    produce,
    read,
    start,
    unique,
    wait_for,
)

from epochal.kafka import OffsetCommitter
from epochal.testing.kafka import Kafka

SECONDS = 60.0


@pytest.fixture
def committer(kafka_spark: SparkSession) -> Iterator[OffsetCommitter]:
    yield from listening(kafka_spark, OffsetCommitter())


def listening(spark: SparkSession, committer: OffsetCommitter) -> Iterator[OffsetCommitter]:
    spark.streams.addListener(committer)
    yield committer
    spark.streams.removeListener(committer)
    for query in spark.streams.active:
        query.stop()
    committer.close(5)


def everything(topic: str, count: int, partitions: int = 2) -> dict[tuple[str, int], int]:
    return {(topic, partition): count for partition in range(partitions)}


def test_each_source_of_a_union_is_shown_in_its_own_group_and_one_without_in_none(
    kafka_spark: SparkSession, broker: Kafka, committer: OffsetCommitter, tmp_path: Path
) -> None:
    pattern = unique("pattern")
    topics = {
        name: make_topic(broker, unique(name), 10) for name in ("subscribed", "assigned", "silent")
    }
    topics |= {f"pattern{n}": make_topic(broker, f"{pattern}-{n}", 10) for n in (1, 2)}
    for topic in topics.values():
        produce(broker, topic, 100, partitions=10)
    one, two = unique("group"), unique("group")
    assigned = json.dumps({topics["assigned"]: list(range(10))})
    frame = (
        read(kafka_spark, broker, ("subscribePattern", f"{pattern}-.*"), one)
        .union(read(kafka_spark, broker, ("subscribe", topics["silent"]), None))
        .union(read(kafka_spark, broker, ("subscribe", topics["subscribed"]), two))
        .union(read(kafka_spark, broker, ("assign", assigned), two))
    )
    query = start(frame, tmp_path, availableNow=True)
    query.awaitTermination()
    wait_for(lambda: len(held(broker, one)) == len(held(broker, two)) == 20, committer.problems)
    assert held(broker, one) == {
        **everything(topics["pattern1"], 100, 10),
        **everything(topics["pattern2"], 100, 10),
    }
    assert held(broker, two) == {
        **everything(topics["subscribed"], 100, 10),
        **everything(topics["assigned"], 100, 10),
    }
    groups = broker.consumer_groups("--describe", "--all-groups")
    assert topics["silent"] not in groups
    assert committer.errors == 0


def test_lag_is_what_kafka_prints_and_what_the_checkpoint_says(
    kafka_spark: SparkSession, broker: Kafka, committer: OffsetCommitter, tmp_path: Path
) -> None:
    topic, group = make_topic(broker, unique("orders")), unique("lag")
    produce(broker, topic, 100)
    read_all = read(kafka_spark, broker, ("subscribe", topic), group, maxOffsetsPerTrigger="60")
    query = start(read_all, tmp_path, processingTime="1 hour")  # one batch: 60 of 200 records
    wait_for(lambda: bool(held(broker, group)), committer.problems)
    query.stop()
    assert processed(tmp_path) == held(broker, group)
    servers = ("--bootstrap-servers", broker.bootstrap_servers)
    report = json.loads(
        epochal("kafka", "lag", *servers, "--checkpoint", tmp_path, "--group", group, "--json")
    )
    ours = {
        (each["topic"], each["partition"]): (each["committed"], each["latest"], each["lag"])
        for each in report["partitions"]
    }
    assert ours == described(broker, group)
    assert ours == {
        place: (offset, 100, 100 - offset) for place, offset in processed(tmp_path).items()
    }
    assert sum(lag for _, _, lag in ours.values()) == 140
    assert all(each["committed_lag"] == each["lag"] for each in report["partitions"])
    assert all(0 < each["lag_seconds"] < 600 for each in report["partitions"])
    assert {each["query"] for each in report["partitions"]} == {str(query.id)}

    table = epochal("kafka", "lag", *servers, "--checkpoint", tmp_path, "--group", group)
    assert [line.split()[:2] for line in table.splitlines()[2:]] == [[str(query.id), group]] * 2
    by_group = json.loads(epochal("kafka", "lag", *servers, "--group", group, "--json"))
    assert [each["lag"] for each in by_group["partitions"]] == [
        each["lag"] for each in report["partitions"]
    ]
    assert {each["query"] for each in by_group["partitions"]} == {str(query.id)}  # from the mark


def test_lag_is_served_to_prometheus_and_watched(
    kafka_spark: SparkSession, broker: Kafka, committer: OffsetCommitter, tmp_path: Path
) -> None:
    topic, group = make_topic(broker, unique("orders")), unique("lag")
    produce(broker, topic, 10)
    query = start(read(kafka_spark, broker, ("subscribe", topic), group), tmp_path)
    query.processAllAvailable()
    query.stop()
    wait_for(lambda: held(broker, group) == everything(topic, 10), committer.problems)
    produce(broker, topic, 3)
    words = ["kafka", "lag", "--bootstrap-servers", broker.bootstrap_servers, "--group", group]
    with Running(*words, "--metrics-port", "0") as process:
        url = process.stdout.readline().strip()
        text = urllib.request.urlopen(url, timeout=60).read().decode()
        assert re.search(rf'kafka_consumergroup_group_sum_lag{{.*group="{group}"}} 6\n', text)
        assert f'kafka_consumergroup_lag{{consumergroup="{group}",topic="{topic}"' in text
    with Running(*words, "--watch", "0.2", "--json") as process:
        rounds = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [[each["lag"] for each in one["partitions"]] for one in rounds] == [[3, 3]] * 2


class Running:
    """Run a command until the block ends."""

    def __init__(self, *words: str, number: int = signal.SIGINT) -> None:
        self._number = number
        self.process = subprocess.Popen(
            [EPOCHAL, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Any:
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(self._number)
        self.said = self.process.communicate(timeout=60)[1]


def test_a_real_time_query_is_shown_too(
    kafka_spark: SparkSession, broker: Kafka, committer: OffsetCommitter, tmp_path: Path
) -> None:
    topic, group = make_topic(broker, unique("orders"), 1), unique("realtime")
    out = make_topic(broker, unique("out"), 1)
    produce(broker, topic, 50, partitions=1)
    frame = read(kafka_spark, broker, ("subscribe", topic), group).select("value")
    query = (
        frame.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("topic", out)
        .option("checkpointLocation", str(tmp_path))
        .outputMode("update")
        .trigger(realTime="5 seconds")
        .start()
    )
    wait_for(lambda: held(broker, group) == everything(topic, 50, 1), committer.problems)
    query.stop()
    assert committer.errors == 0


def test_the_old_source_interface_and_a_source_used_twice_are_understood(
    kafka_spark: SparkSession, broker: Kafka, committer: OffsetCommitter, tmp_path: Path
) -> None:
    topic, group = make_topic(broker, unique("orders")), unique("v1")
    other = make_topic(broker, unique("other"))
    for name in (topic, other):
        produce(broker, name, 10)
    disabled = "spark.sql.streaming.disabledV2MicroBatchReaders"
    kafka_spark.conf.set(disabled, "org.apache.spark.sql.kafka010.KafkaSourceProvider")
    try:
        rate = kafka_spark.readStream.format("rate").load().selectExpr("cast(value as string) v")
        twice = read(kafka_spark, broker, ("subscribe", topic), group).select("value")
        last = read(kafka_spark, broker, ("subscribe", other), f"{group}-b").select("value")
        frame = rate.union(twice).union(twice).union(last)
        query = start(frame, tmp_path)
        wait_for(lambda: held(broker, f"{group}-b") == everything(other, 10), committer.problems)
        wait_for(lambda: held(broker, group) == everything(topic, 10), committer.problems)
        query.stop()
    finally:
        kafka_spark.conf.unset(disabled)


def test_a_group_with_live_members_is_refused_and_taken_when_they_left(
    kafka_spark: SparkSession, broker: Kafka, committer: OffsetCommitter, tmp_path: Path
) -> None:
    topic, group = make_topic(broker, unique("orders")), unique("live")
    produce(broker, topic, 10)
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group}
    member = Consumer({**settings, "client.id": "somebody", "log_level": "0"})
    member.subscribe([topic])
    try:
        wait_for(lambda: member.poll(0.5) is None and bool(member.assignment()))
        query = start(read(kafka_spark, broker, ("subscribe", topic), group), tmp_path)
        query.processAllAvailable()
        wait_for(lambda: group in committer.problems())
        assert "live members (somebody on" in committer.problems()[group]
        assert held(broker, group) == {}
    finally:
        member.close()
    wait_for(lambda: held(broker, group) == everything(topic, 10), committer.problems)
    assert query.isActive


def test_a_checkpoint_is_followed_from_outside_the_job(
    kafka_spark: SparkSession, broker: Kafka, tmp_path: Path
) -> None:
    topic, group = make_topic(broker, unique("orders")), unique("followed")
    produce(broker, topic, 10)
    query = start(read(kafka_spark, broker, ("subscribe", topic), None), tmp_path)
    query.processAllAvailable()
    words = ["kafka", "commit", "--bootstrap-servers", broker.bootstrap_servers]
    words += ["--checkpoint", str(tmp_path), "--group", group]
    once = json.loads(epochal(*words, "--json"))
    assert [each["outcome"] for each in once["partitions"]] == ["committed", "committed"]
    assert held(broker, group) == everything(topic, 10)
    assert "unchanged" in epochal(*words)
    follower = Running(*words, "--follow", "--poll-seconds", "0.2", number=signal.SIGTERM)
    with follower as process:
        for count in (20, 30):
            produce(broker, topic, 10)
            wait_for(lambda n=count: held(broker, group) == everything(topic, n))  # type: ignore[misc]
        query.stop()
    assert process.returncode == 0, follower.said
    assert described(broker, group) == dict.fromkeys(everything(topic, 30), (30, 30, 0))


def test_commands_say_what_is_wrong(
    kafka_spark: SparkSession, broker: Kafka, tmp_path: Path
) -> None:
    topic, group = make_topic(broker, unique("orders")), unique("wrong")
    produce(broker, topic, 10)
    kafka_home, rate_home = tmp_path / "kafka", tmp_path / "rate"
    query = start(read(kafka_spark, broker, ("subscribe", topic), None), kafka_home)
    query.processAllAvailable()
    query.stop()
    rate = start(
        kafka_spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "5").load(),
        rate_home,
    )
    wait_for(lambda: rate.lastProgress is not None)
    rate.stop()
    there = ("--bootstrap-servers", broker.bootstrap_servers)
    commit = ("kafka", "commit", "--group", group, "--checkpoint")
    nowhere = ("--bootstrap-servers", "127.0.0.1:1")
    said = {
        "Connection refused": epochal(*commit, kafka_home, *nowhere, status=2),
        "No source of the query is a Kafka source": epochal(*commit, rate_home, *there, status=2),
        "The query's sources are 0": epochal(
            *commit, kafka_home, *there, "--source", "7", status=2
        ),
        "it is not a checkpoint": epochal(*commit, tmp_path / "none", *there, status=2),
        "No such configuration property": epochal(
            *commit, kafka_home, *there, "--client-config", "no.such=1", status=2
        ),
        "Give --checkpoint, --group, or both": epochal("kafka", "lag", *there, status=2),
        "Nothing exists there": epochal(
            "kafka", "lag", *there, "--group", group, "--command-config", "/none", status=2
        ),
    }
    assert {text: found for text, found in said.items() if text not in found} == {}
    assert not any("Traceback" in found for found in said.values())
    assert held(broker, group) == {}
