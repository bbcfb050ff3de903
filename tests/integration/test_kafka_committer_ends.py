"""Jobs that end: what the committer's `flush`, `close` and the end of the process wait for."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.integration.kafka_world import held, make_topic, produce, read, start, unique, wait_for
from tests.spark.releases import ROOT

from epochal.kafka import OffsetCommitter
from epochal.testing.kafka import Kafka, connector_jars

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


def test_a_process_that_ends_right_after_its_query_has_committed(
    broker: Kafka, tmp_path: Path
) -> None:
    topic, group = make_topic(broker, unique("orders")), unique("group")
    produce(broker, topic, 10)
    jars = ",".join(map(str, connector_jars()))
    words = [broker.bootstrap_servers, jars, topic, group, str(tmp_path)]
    run = subprocess.run(
        [sys.executable, "-m", "tests.integration.committer_child", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert held(broker, group) == {(topic, 0): 10, (topic, 1): 10}, run.stderr[-4000:]
