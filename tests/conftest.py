"""What tests of several folders share: how examples are drawn, one real Kafka broker for the whole
run, and a Pub/Sub server for each file, if any asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from tests.everyday import mark_full

from epochal.testing.kafka import Kafka, running_kafka

if TYPE_CHECKING:
    from tests.integration.pubsub_world import World

settings.register_profile(
    "seeded",
    deadline=None,  # a busy machine is no fault
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


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """The embedded Pub/Sub server. A file that starts Spark has its own: gRPC must come second."""
    from tests.integration.pubsub_world import pubsub_world  # gRPC only where it is asked for

    with pubsub_world() as found:
        yield found


@pytest.fixture
def topic(world: World) -> str:
    return world.topic()


@pytest.fixture
def subscription(world: World, topic: str) -> str:
    return world.subscription(topic, ack_deadline_seconds=10)
