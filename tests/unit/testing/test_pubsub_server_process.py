"""`epochal pubsub serve` and `running_server`: what is there at the start, and what is refused."""

from __future__ import annotations

import grpc
import pytest
from google.pubsub_v1.types import pubsub

from epochal.errors import ComponentError
from epochal.testing.pubsub import PubSubServer, running_server


def call(server: PubSubServer, service: str, method: str, request: bytes) -> bytes:
    with grpc.insecure_channel(server.address) as channel:
        answer: bytes = channel.unary_unary(f"/google.pubsub.v1.{service}/{method}")(
            request, timeout=20
        )
        return answer


def test_a_server_starts_with_what_it_was_asked_for_and_holds_no_more_than_allowed() -> None:
    options = ("--project", "p", "--topic", "one", "--subscription", "sub:two", "--max-bytes", "50")
    with running_server(*options) as server:
        asked = pubsub.ListTopicsRequest.serialize(pubsub.ListTopicsRequest(project="projects/p"))
        listed = pubsub.ListTopicsResponse.deserialize(
            call(server, "Publisher", "ListTopics", asked)
        )
        names = [topic.name for topic in listed.topics]
        assert names == ["projects/p/topics/one", "projects/p/topics/two"]
        message = pubsub.PubsubMessage(data=b"x" * 60)
        publish = pubsub.PublishRequest.serialize(
            pubsub.PublishRequest(topic="projects/p/topics/two", messages=[message])
        )
        call(server, "Publisher", "Publish", publish)
        with pytest.raises(grpc.RpcError, match="may hold 50"):
            call(server, "Publisher", "Publish", publish)
        with (
            pytest.raises(ComponentError, match="cannot listen"),
            running_server("--port", server.address.rpartition(":")[2]),
        ):
            pass


def test_a_subscription_without_its_topic_is_a_usage_error() -> None:
    with (
        pytest.raises(ComponentError, match="SUBSCRIPTION:TOPIC, not 'alone'"),
        running_server("--subscription", "alone"),
    ):
        pass
