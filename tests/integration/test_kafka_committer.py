"""The offset committer with a real Spark and a real broker, checked with Kafka's own tool.

The last tests are of jobs that end: what `flush`, `close` and the end of the process wait for. Some
of them are processes of their own: in Spark Connect, and with every supported Spark release.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from pyspark.sql import SparkSession
from tests.integration.committer_child import RECORDS, TRIGGERS
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
from tests.spark.releases import RELEASES, environment_of, run_module

from epochal.kafka import OffsetCommitter
from epochal.testing.jars import resolve
from epochal.testing.kafka import TOKEN_PROVIDER, Kafka, connector_jars

SECONDS = 60.0


@pytest.fixture
def committer(kafka_spark: SparkSession) -> Iterator[OffsetCommitter]:
    committer = OffsetCommitter()
    kafka_spark.streams.addListener(committer)
    yield committer
    for query in kafka_spark.streams.active:
        query.stop()
    kafka_spark.streams.removeListener(committer)
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


def test_a_flush_after_a_query_has_ended_commits_its_last_batch(
    kafka_spark: SparkSession, broker: Kafka, committer: OffsetCommitter, tmp_path: Path
) -> None:
    topic = make_topic(broker, unique("orders"))
    groups = [unique("group") for _ in range(4)]
    produce(broker, topic, 10)
    shown = {}
    for group in groups:
        frame = read(kafka_spark, broker, ("subscribe", topic), group)
        start(frame, tmp_path / group, availableNow=True).awaitTermination()
        shown[group] = (committer.flush(SECONDS), held(broker, group))
    assert shown == dict.fromkeys(groups, (True, everything(topic, 10)))


def test_a_flush_that_could_not_wait_for_a_query_says_so(
    kafka_spark: SparkSession,
    broker: Kafka,
    committer: OffsetCommitter,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, group = make_topic(broker, unique("orders")), unique("group")
    produce(broker, topic, 100)
    frame = read(kafka_spark, broker, ("subscribe", topic), group, maxOffsetsPerTrigger="2")
    query = start(frame, tmp_path, availableNow=True)  # a hundred batches
    assert not committer.flush(0.5)
    assert f"query {query.id} is still running" in caplog.messages[-1]
    query.stop()
    assert committer.flush(SECONDS)


def test_a_flush_does_not_wait_for_a_query_without_end(
    kafka_spark: SparkSession, broker: Kafka, committer: OffsetCommitter, tmp_path: Path
) -> None:
    topic, group = make_topic(broker, unique("orders")), unique("group")
    produce(broker, topic, 10)
    query = start(read(kafka_spark, broker, ("subscribe", topic), group), tmp_path)
    query.processAllAvailable()
    wait_for(lambda: bool(held(broker, group)), committer.problems)
    began = time.monotonic()
    assert committer.flush(SECONDS)
    assert time.monotonic() - began < SECONDS / 2
    assert query.isActive
    query.stop()
    assert committer.close(SECONDS)
    assert held(broker, group) == everything(topic, 10)


# A connector uses internals of its own Spark release, so the versions must match.
CONNECTORS = {
    "4.0": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
    "4.1": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
}


def jars_for(release: str) -> list[Path]:
    connector = CONNECTORS.get(release.rpartition(".")[0])
    if connector is None:
        return connector_jars()
    # From 4.1 on, some mirrors do not have the connector's own release of this.
    return resolve(connector, overrides=[TOKEN_PROVIDER] if release >= "4.1" else [])


def run_job(
    job: str, broker: Kafka, home: Path, release: str = RELEASES[-1]
) -> tuple[str, str, str]:
    """Let a process read a new topic; return the topic, the group and what it has told."""
    topic, group = make_topic(broker, unique("orders")), unique("group")
    produce(broker, topic, RECORDS)
    jars = ",".join(map(str, jars_for(release)))
    words: list[str | Path] = [broker.bootstrap_servers, jars, topic, group, home]
    environment = environment_of(release) if job == "release" else None
    child = "tests.integration.committer_child"
    return topic, group, run_module(child, job, *words, env=environment)


def test_a_process_that_ends_right_after_its_query_has_committed(
    broker: Kafka, tmp_path: Path
) -> None:
    topic, group, _ = run_job("ends", broker, tmp_path)
    assert held(broker, group) == everything(topic, RECORDS)


@pytest.mark.long
def test_groups_that_are_told_show_a_query_of_spark_connect(broker: Kafka, tmp_path: Path) -> None:
    """The plans are on the server, so groups are given."""
    topic, group, told = run_job("connect", broker, tmp_path)
    session = {"session": "pyspark.sql.connect.session"}
    assert json.loads(told) == {"done": True, "errors": 0, "problems": {}, **session}
    assert held(broker, group) == everything(topic, RECORDS)


@pytest.mark.long
@pytest.mark.parametrize("release", RELEASES[1:])
def test_sources_are_found_in_the_jvm_of_a_release(
    broker: Kafka, tmp_path: Path, release: str
) -> None:
    topic, group, told = run_job("release", broker, tmp_path, release)
    assert json.loads(told) == {"done": True, "errors": 0, "problems": {}, "release": release}
    for kind in TRIGGERS:
        assert held(broker, f"{group}-{kind}") == everything(topic, RECORDS)
