"""Pub/Sub goes away for a while: readers wait, say so, and go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from tests.brokers.test_pubsub_pull import data, taken
from tests.integration.pubsub_engine import engines
from tests.integration.pubsub_world import World
from tests.waiting import eventually

from epochal.connectors.pubsub.connection import Connection, Retry
from epochal.connectors.pubsub.pubsub_options import SourceOptions
from epochal.connectors.pubsub.pull.streaming_pull import Puller
from epochal.connectors.pubsub.statuses import Backoff
from epochal.errors import PubSubUnavailableError
from epochal.testing.pubsub import PubSubServer, running_server

TOPIC, SUBSCRIPTION = "projects/test/topics/top", "projects/test/subscriptions/sub"


@contextmanager
def server(port: str = "0") -> Iterator[PubSubServer]:
    options = ("--project", "test", "--subscription", "sub:top", "--port", port)
    with running_server(*options) as found:
        yield found


def port_of(found: PubSubServer) -> str:
    return found.address.rpartition(":")[2]


def options(found: PubSubServer, **more: timedelta) -> SourceOptions:
    return SourceOptions(
        project_id="test",
        emulator_host=found.address,
        subscription_id=SUBSCRIPTION,
        **more,  # type: ignore[arg-type]
    )


def publish(found: PubSubServer, *messages: bytes) -> None:
    connection = Connection(options(found))
    World(found.address, connection).publish(TOPIC, messages)
    connection.close()


def test_an_outage_of_hours_does_not_end_a_reader() -> None:
    hours = Retry(Backoff(most_s=0.05), monotonic=lambda: time.monotonic() * 10_000)
    with server() as before:
        wanted = options(before)
        reader = Puller(Connection(wanted, retry=hours), wanted)
        assert reader.take(1, timeout_s=0.2) is None
        assert reader.degraded_s == 0
    eventually(lambda: reader.degraded_s > 1)
    assert reader.take(1) is None
    with server(port_of(before)) as after:
        publish(after, b"later")
        assert data(taken(reader, 1)) == [b"later"]
        assert (reader.degraded_s, reader.failure) == (0, None)
        reader.close()


def test_an_acknowledgement_that_gets_no_answer_does_not_end_a_reader() -> None:
    with server() as found:
        short = timedelta(seconds=0.2)
        wanted = options(found, request_timeout=short, retry_timeout=timedelta(seconds=1))
        reader = Puller(Connection(wanted), wanted)
        publish(found, b"one")
        (one,) = taken(reader, 1)
        os.kill(found.pid, signal.SIGSTOP)
        try:
            future = reader.ack([one.span])
            with pytest.raises(PubSubUnavailableError, match="DEADLINE_EXCEEDED"):
                future.result(20)
            assert reader.degraded_s > 0
        finally:
            os.kill(found.pid, signal.SIGCONT)
        publish(found, b"two")
        (two,) = taken(reader, 1)
        assert data([two]) == [b"two"]
        assert reader.ack([two.span]).result(10) == {}
        assert (reader.degraded_s, reader.failure) == (0, None)
        reader.close()


def test_sparks_progress_says_that_pubsub_is_away_and_rows_come_when_it_is_back(
    tmp_path: Path,
) -> None:
    given = {"projectId": "test", "subscriptionId": SUBSCRIPTION, "numPartitions": "2"}
    with engines(tmp_path, given) as make:
        with server() as before:
            engine = make(emulatorHost=before.address)
            publish(before, b"one")
            engine.run(lambda: len(engine.ids) == 1)
            engine.settle()
            assert engine.reader.reportLatestOffset()["degraded_seconds"] == 0
        eventually(lambda: engine.reader.reportLatestOffset()["degraded_seconds"] > 0)
        with server(port_of(before)) as after:
            publish(after, b"two")
            engine.run(lambda: len(engine.ids) == 2)
            eventually(lambda: engine.reader.reportLatestOffset()["degraded_seconds"] == 0)
            engine.settle()
