"""Servers for tests: how they start, end and fail to start, and their ids and ports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.pubsub_v1.types import pubsub
from tests.waiting import eventually

from epochal.errors import ComponentError
from epochal.testing import kafka
from epochal.testing.pubsub import PubSubServer, running_server
from epochal.testing.server import Server, free_port

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_gone(pid: int) -> None:
    eventually(lambda: not is_running(pid), f"process {pid} ends")


def test_the_error_of_a_server_that_fails_to_start_contains_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no disk'); raise SystemExit(3)"]
    with (
        Server("Sleeper", command, log=tmp_path / "log") as server,
        pytest.raises(ComponentError, match=r"Sleeper ended with code 3(.|\n)*no disk"),
    ):
        server.wait_until(lambda: False, seconds=60)


def test_waiting_for_a_server_that_is_never_ready_times_out(tmp_path: Path) -> None:
    with (
        Server("Sleeper", SLEEP, log=tmp_path / "log") as server,
        pytest.raises(ComponentError, match="not ready after 0 s"),
    ):
        server.wait_until(lambda: False, seconds=0.1)
    assert not is_running(server.pid)


def test_a_server_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, time, pathlib\n"
        "from epochal.testing.server import Server\n"
        "server = Server('Sleeper', sys.argv[2:], log=pathlib.Path(sys.argv[1]))\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "log"), *SLEEP],
        stdout=subprocess.PIPE,
        text=True,
    )
    with starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert is_running(pid)
        os.kill(starter.pid, signal.SIGKILL)
    wait_until_gone(pid)


def test_a_free_port_is_none_that_a_client_could_get() -> None:
    outgoing = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(outgoing.read_text().split()[0]) if outgoing.exists() else 49_152
    assert all(free_port() < first for _ in range(100))


def test_a_port_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", free_port()))
        port, other = used.getsockname()[1], free_port()
        monkeypatch.setattr("epochal.testing.server.PORTS", [port] * 9 + [other])
        assert free_port() == other


def test_no_cluster_id_looks_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    for first in range(256):
        drawn = uuid.UUID(bytes=bytes([first, *range(15)]))
        monkeypatch.setattr(uuid, "uuid4", lambda drawn=drawn: drawn)
        made = kafka._cluster_id()
        assert not made.startswith("-")
        assert len(made) == 22


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
