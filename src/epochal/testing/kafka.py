"""A real Kafka broker on loopback: one node that is its own controller (KRaft).

The broker must know its client address before it starts, because it hands it to clients; so free
ports are found first, and a start that loses the race for one is tried again with others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epochal.errors import ComponentError
from epochal.testing.jars import classpath, find_java, resolve
from epochal.testing.server import Server, accepts, free_port

KAFKA = ("org.apache.kafka:kafka_2.13:4.3.1", "org.slf4j:slf4j-simple:1.7.36")
# The newest connector whose parts can all be had from every mirror of Maven Central: its token
# provider of the same release is missing from some, and the one named here fits it.
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
TOKEN_PROVIDER = "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1"
TOOLS = ("org.apache.kafka:kafka-tools:4.3.1", "org.slf4j:slf4j-simple:1.7.36")
START_SECONDS = 120
PORT_TRIES = 3


class Kafka:
    """A broker that can be killed, paused and started again with what it had on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._sasl_port, self._controller_port = free_port(), free_port(), free_port()
        self._server: Server | None = None
        folder.mkdir()
        self._settings.write_text(
            _broker_settings(folder, self._port, self._sasl_port, self._controller_port)
        )
        _java("kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(self._settings))
        self.start()

    @property
    def bootstrap_servers(self) -> str:
        """Without authentication; this user may do everything."""
        return f"127.0.0.1:{self._port}"

    @property
    def sasl_servers(self) -> str:
        """With SASL_PLAINTEXT and SCRAM-SHA-256; users are made by an admin client."""
        return f"127.0.0.1:{self._sasl_port}"

    @property
    def _settings(self) -> Path:
        return self._folder / "server.properties"

    def start(self) -> None:
        """Start, or start again, and wait until clients are let in."""
        command = [*_command("kafka.Kafka"), str(self._settings)]
        self._server = Server("Kafka", command, log=self._folder / "kafka.log")
        try:
            self._server.wait_until(lambda: accepts("127.0.0.1", self._port), seconds=START_SECONDS)
        except ComponentError:
            self.kill()
            raise

    def kill(self) -> None:
        """End the broker as `kill -9` does; its data stay for `start`."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def pause(self) -> None:
        """Stop the process without ending it: connections stay, answers do not come."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def consumer_groups(self, *words: str) -> str:
        """What Kafka's own `kafka-consumer-groups` prints."""
        tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        return _java(tool, "--bootstrap-server", self.bootstrap_servers, *words, jars=TOOLS)

    def _signal(self, number: signal.Signals) -> None:
        if self._server is None:
            raise ComponentError("The broker does not run: it was killed and not started again.")
        os.kill(self._server.pid, number)


@contextmanager
def running_kafka() -> Iterator[Kafka]:
    """Start an empty broker, and end it and its data with the block."""
    with tempfile.TemporaryDirectory(prefix="epochal-kafka-") as folder:
        for left in reversed(range(PORT_TRIES)):
            try:
                broker = Kafka(Path(folder, str(left)))
                break
            except ComponentError as error:
                if left == 0 or "Address already in use" not in str(error):
                    raise
        try:
            yield broker
        finally:
            broker.kill()


def connector_jars() -> list[Path]:
    """Spark's own Kafka connector, for `spark.jars` of a Spark 4.2 or 4.3 session."""
    return resolve(CONNECTOR, overrides=[TOKEN_PROVIDER])


def _broker_settings(folder: Path, port: int, sasl_port: int, controller_port: int) -> str:
    sasl = f"SASL_PLAINTEXT://127.0.0.1:{sasl_port}"
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},{sasl},"
        f"CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},{sasl}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,"
        "CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # whoever comes without authentication
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


def _command(main_class: str, jars: tuple[str, ...] = KAFKA) -> list[str]:
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return [find_java(), "-Xmx512m", quiet, "-cp", classpath(*jars), main_class]


def _java(main_class: str, *words: str, jars: tuple[str, ...] = KAFKA) -> str:
    run = subprocess.run(
        [*_command(main_class, jars), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    if run.returncode != 0:
        raise ComponentError(f"{main_class} {words[0]} failed:\n{run.stdout[-2000:]}")
    return run.stdout


def _cluster_id() -> str:
    """Kafka's cluster ids are UUIDs in URL-safe base64 without padding."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
