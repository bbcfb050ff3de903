"""Jobs that end: what the committer's `flush`, `close` and the end of the process wait for.

Some of them are processes of their own: in Spark Connect, and with every supported Spark release.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.integration.committer_child import RECORDS, TRIGGERS
from tests.integration.kafka_world import held, make_topic, produce, read, start, unique, wait_for
from tests.spark.releases import RELEASES, environment_of, run_module

from epochal.kafka import OffsetCommitter
from epochal.testing.jars import resolve
from epochal.testing.kafka import TOKEN_PROVIDER, Kafka, connector_jars

SECONDS = 60.0
ROUNDS = 4


@pytest.fixture
def committer(kafka_spark: SparkSession) -> Iterator[OffsetCommitter]:
    committer = OffsetCommitter()
    kafka_spark.streams.addListener(committer)
    yield committer
    for query in kafka_spark.streams.active:
        query.stop()
    kafka_spark.streams.removeListener(committer)
    committer.close()


def test_a_flush_after_a_query_has_ended_commits_its_last_batch(
    kafka_spark: SparkSession, broker: Kafka, committer: OffsetCommitter, tmp_path: Path
) -> None:
    topic = make_topic(broker, unique("orders"))
    groups = [unique("group") for _ in range(ROUNDS)]
    produce(broker, topic, 10)
    shown = {}
    for group in groups:
        frame = read(kafka_spark, broker, ("subscribe", topic), group)
        start(frame, tmp_path / group, availableNow=True).awaitTermination()
        shown[group] = (committer.flush(SECONDS), held(broker, group))
    everything = (True, {(topic, 0): 10, (topic, 1): 10})
    assert shown == dict.fromkeys(groups, everything)


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
    assert held(broker, group) == {(topic, 0): 10, (topic, 1): 10}


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
    assert held(broker, group) == {(topic, 0): RECORDS, (topic, 1): RECORDS}


@pytest.mark.long
def test_groups_that_are_told_show_a_query_of_spark_connect(broker: Kafka, tmp_path: Path) -> None:
    """The plans are on the server, so groups are given."""
    topic, group, told = run_job("connect", broker, tmp_path)
    session = {"session": "pyspark.sql.connect.session"}
    assert json.loads(told) == {"done": True, "errors": 0, "problems": {}, **session}
    assert held(broker, group) == {(topic, 0): RECORDS, (topic, 1): RECORDS}


@pytest.mark.long
@pytest.mark.parametrize("release", RELEASES[1:])
def test_sources_are_found_in_the_jvm_of_a_release(
    broker: Kafka, tmp_path: Path, release: str
) -> None:
    topic, group, told = run_job("release", broker, tmp_path, release)
    assert json.loads(told) == {"done": True, "errors": 0, "problems": {}, "release": release}
    everything = {(topic, 0): RECORDS, (topic, 1): RECORDS}
    assert [held(broker, f"{group}-{kind}") for kind in TRIGGERS] == [everything] * 2
