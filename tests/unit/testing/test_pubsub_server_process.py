"""`epochal pubsub serve` and `running_server`: initial resources, limits, and rejected options."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

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


def test_a_server_starts_with_the_given_resources_and_limits() -> None:
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


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        pytest.param(signal.SIGTERM, 0, "", id="by a service manager"),
        pytest.param(
            signal.SIGINT,
            130,
            "epochal: The server has ended, and its messages are deleted.\n",
            id="by Ctrl-C",
        ),
    ],
)
def test_a_stopping_server_ends_its_streams(number: signal.Signals, status: int, said: str) -> None:
    command = [sys.executable, "-m", "epochal.cli.main", "pubsub", "serve", "--port", "0"]
    with subprocess.Popen(
        [*command, "--project", "p", "--subscription", "sub:top"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().strip().partition("=")[2]
        opening = pubsub.StreamingPullRequest(
            subscription="projects/p/subscriptions/sub", stream_ack_deadline_seconds=10
        )
        still_open = threading.Event()

        def requests() -> Iterator[bytes]:
            yield pubsub.StreamingPullRequest.serialize(opening)
            still_open.wait(30)

        with grpc.insecure_channel(address) as channel:
            stream = channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(requests())
            stream.initial_metadata()
            process.send_signal(number)
            with pytest.raises(grpc.RpcError, match="The server is shutting down"):
                next(stream)
            still_open.set()
        assert (process.wait(20), process.stderr.read()) == (status, said)
