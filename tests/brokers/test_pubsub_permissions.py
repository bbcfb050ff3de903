"""What an account with roles/pubsub.subscriber can do: read, but not describe the subscription."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.integration.pubsub_engine import Make, engines
from tests.integration.pubsub_world import World, pubsub_world
from tests.waiting import eventually

from epochal.connectors.pubsub.connection import Connection, Subscriptions
from epochal.connectors.pubsub.continuous_pubsub import PubSubSource
from epochal.connectors.pubsub.pubsub_options import source_options
from epochal.errors import PubSubRejectedError
from epochal.testing.pubsub import running_server


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with pubsub_world("--deny", "GetSubscription") as found:
        yield found


@pytest.fixture
def make(world: World, subscription: str, tmp_path: Path) -> Iterator[Make]:
    with engines(tmp_path, {**world.options, "subscriptionId": subscription}) as start:
        yield start


def test_a_continuous_query_reads_a_subscription_that_it_may_not_describe(
    world: World, topic: str, subscription: str
) -> None:
    source = PubSubSource(
        source_options({**world.options, "subscriptionId": subscription}), None, parallelism=1
    )
    positions = source.initial()
    assert source.discover(positions) == {}
    reader = source.readers.open(positions)
    world.publish(topic, [b"one"])
    found: list[pa.RecordBatch | None] = []

    def arrived() -> bool:
        found.append(reader.read(10))
        return found[-1] is not None

    eventually(arrived)
    assert found[-1] is not None
    assert found[-1].column("data").to_pylist() == [b"one"]
    reader.close()


def test_a_subscription_is_created_by_an_account_that_may_not_describe_it(
    world: World, topic: str
) -> None:
    options = source_options(
        {
            **world.options,
            "subscriptionId": "made-blindly",
            "topicId": topic,
            "createSubscription": "true",
        }
    )
    calls = Subscriptions(world.connection)
    assert calls.ensure(options).topic == topic
    assert calls.ensure(options) is None  # it exists now, and may not be described
    calls.delete(options.subscription)


def test_creating_without_permission_says_which_roles_are_needed() -> None:
    denied = ("--deny", "GetSubscription", "--deny", "CreateSubscription")
    with running_server(*denied) as server:
        given = {"emulatorHost": server.address, "projectId": "p", "subscriptionId": "sub"}
        options = source_options({**given, "topicId": "orders", "createSubscription": "true"})
        connection = Connection(options)
        with pytest.raises(PubSubRejectedError) as raised:
            Subscriptions(connection).ensure(options)
        connection.close()
    assert str(raised.value) == (
        "Pub/Sub: creating projects/p/subscriptions/sub failed: PERMISSION_DENIED: User not "
        "authorized to perform this action. Grant the account roles/pubsub.subscriber on the "
        "subscription to read or seek, roles/pubsub.publisher on the topic to write, "
        "roles/pubsub.editor on the project to create or delete subscriptions."
    )
