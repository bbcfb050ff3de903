"""Fixtures for several folders: a Kafka broker and a PostgreSQL server for the whole run, and a
Pub/Sub server per module.

All are started only if a test uses them. Hypothesis draws the same examples in every run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from tests.everyday import mark_full
from tests.rigs.postgres import Postgres, running_postgres

from epochal.testing.kafka import Kafka, running_kafka

if TYPE_CHECKING:
    from tests.integration.pubsub_world import World

# JVMs of tests live for minutes at most: optimising their code costs more than it brings.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# A run in the background ignores Ctrl-C, and so would the commands that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "seeded",
    deadline=None,  # a busy machine must not fail a test
    derandomize=True,
    suppress_health_check=(HealthCheck.too_slow,),
)
settings.load_profile("seeded")


@pytest.hookimpl(tryfirst=True)  # before options of the command line select by mark
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_full(items)


@pytest.fixture(scope="session")
def broker() -> Iterator[Kafka]:
    with running_kafka() as running:
        yield running


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """The embedded Pub/Sub server.

    A module that starts Spark overrides this fixture, because Spark must start before gRPC.
    """
    from tests.integration.pubsub_world import pubsub_world  # imports gRPC, so not at the top

    with pubsub_world() as found:
        yield found


@pytest.fixture
def topic(world: World) -> str:
    return world.topic()


@pytest.fixture
def subscription(world: World, topic: str) -> str:
    return world.subscription(topic, ack_deadline_seconds=10)
