"""A real Kafka broker on loopback: one node that is its own controller (KRaft).

The broker must know its client address before it starts, because it hands it to clients; so free
ports are found first, and a start that loses the race for one is tried again with others.
"""

from __future__ import annotations

import subprocess
import tempfile
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from epochal.errors import ComponentError
from epochal.testing.jars import classpath, find_java, resolve
from epochal.testing.server import Server, accepts, free_port

KAFKA = ("org.apache.kafka:kafka_2.13:4.3.1", "org.slf4j:slf4j-simple:1.7.36")
# The newest connector whose parts can all be had from every mirror of Maven Central: its token
# provider of the same release is missing from some, and the one named here fits it.
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
TOKEN_PROVIDER = "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1"
START_SECONDS = 120
PORT_TRIES = 3


@dataclass(frozen=True, slots=True)
class Kafka:
    """Where a running broker answers."""

    bootstrap_servers: str


@contextmanager
def running_kafka() -> Iterator[Kafka]:
    """Start an empty broker, and end it and its data with the block."""
    with tempfile.TemporaryDirectory(prefix="epochal-kafka-") as folder, ExitStack() as started:
        for left in reversed(range(PORT_TRIES)):
            try:
                broker = started.enter_context(_broker(Path(folder, str(left))))
                break
            except ComponentError as error:
                if left == 0 or "Address already in use" not in str(error):
                    raise
        yield broker


def connector_jars() -> list[Path]:
    """Spark's own Kafka connector, for `spark.jars` of a Spark 4.2 or 4.3 session."""
    return resolve(CONNECTOR, overrides=[TOKEN_PROVIDER])


@contextmanager
def _broker(folder: Path) -> Iterator[Kafka]:
    port, controller_port = free_port(), free_port()
    folder.mkdir()
    settings = folder / "server.properties"
    settings.write_text(_settings(folder, port, controller_port))
    _java("kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(settings))
    command = [*_command("kafka.Kafka"), str(settings)]
    with Server("Kafka", command, log=folder / "kafka.log") as server:
        server.wait_until(lambda: accepts("127.0.0.1", port), seconds=START_SECONDS)
        yield Kafka(f"127.0.0.1:{port}")


def _settings(folder: Path, port: int, controller_port: int) -> str:
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(folder / "data"),
        "num.partitions": "1",
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "log.retention.ms": "-1",  # tests write records with old timestamps
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def _command(main_class: str) -> list[str]:
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return [find_java(), "-Xmx512m", quiet, "-cp", classpath(*KAFKA), main_class]


def _java(main_class: str, *words: str) -> None:
    run = subprocess.run(
        [*_command(main_class), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    if run.returncode != 0:
        raise ComponentError(f"{main_class} {words[0]} failed:\n{run.stdout[-2000:]}")


def _cluster_id() -> str:
    """Kafka's cluster ids are UUIDs in URL-safe base64 without padding."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
