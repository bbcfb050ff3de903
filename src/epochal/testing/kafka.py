"""A real Kafka broker on loopback: one node that is its own controller (KRaft).

The broker advertises its address to clients, so its ports must be known before it starts. Free
ports are chosen first. If another process takes one of them meanwhile, the start is retried with
other ports.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from epochal.errors import ComponentError
from epochal.testing.jars import classpath, find_java, resolve
from epochal.testing.server import Server, accepts, free_port

KAFKA = ("org.apache.kafka:kafka_2.13:4.3.1", "org.slf4j:slf4j-simple:1.7.36")
# The newest connector that every mirror of Maven Central has. Some mirrors lack the token provider
# of the same release, but the one below works with it.
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
TOKEN_PROVIDER = "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1"
TOOLS = ("org.apache.kafka:kafka-tools:4.3.1", "org.slf4j:slf4j-simple:1.7.36")
LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
KEY_STORE, CERTIFICATE = "broker.p12", "broker.pem"
STORE_PASSWORD = "of-a-test-broker"
START_SECONDS = 120
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For commands that run for a second: without them Java spends most of it on optimising."""
PORT_TRIES = 3


class Kafka:
    """A broker that can be killed, paused, and started again with its data on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {name: free_port() for name in (*LISTENERS, "CONTROLLER")}
        self._server: Server | None = None
        folder.mkdir()
        _make_certificate(folder)
        self._settings.write_text(_broker_settings(folder, self._ports))
        _java("kafka.tools.StorageTool", "format", "-t", _cluster_id(), "-c", str(self._settings))
        self.start()

    @property
    def bootstrap_servers(self) -> str:
        """The listener without authentication. Its clients may do everything."""
        return self._address("PLAINTEXT")

    @property
    def sasl_servers(self) -> str:
        """The listener with SASL_PLAINTEXT and SCRAM-SHA-256. Create users with an admin client."""
        return self._address("SASL_PLAINTEXT")

    @property
    def tls_servers(self) -> str:
        """The listener with SSL. Clients must trust `certificate`; all clients are accepted."""
        return self._address("SSL")

    @property
    def sasl_tls_servers(self) -> str:
        """The listener with SASL_SSL: certificate of `tls_servers`, users of `sasl_servers`."""
        return self._address("SASL_SSL")

    @property
    def certificate(self) -> Path:
        """The certificate that TLS clients must trust, as PEM."""
        return self._folder / CERTIFICATE

    def _address(self, listener: str) -> str:
        return f"127.0.0.1:{self._ports[listener]}"

    @property
    def _settings(self) -> Path:
        return self._folder / "server.properties"

    def start(self) -> None:
        """Start, or start again, and wait until the broker accepts clients."""
        command = [*_command("kafka.Kafka"), str(self._settings)]
        self._server = Server("Kafka", command, log=self._folder / "kafka.log")
        try:
            port = self._ports["PLAINTEXT"]
            self._server.wait_until(lambda: accepts("127.0.0.1", port), seconds=START_SECONDS)
        except ComponentError:
            self.kill()
            raise

    def kill(self) -> None:
        """End the broker as `kill -9` does. Its data stay on disk for `start`."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def pause(self) -> None:
        """Suspend the process: connections stay open, but requests get no answer."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def consumer_groups(self, *words: str) -> str:
        """The output of Kafka's tool `kafka-consumer-groups`."""
        tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        return _java(tool, "--bootstrap-server", self.bootstrap_servers, *words, jars=TOOLS)

    def _signal(self, number: signal.Signals) -> None:
        if self._server is None:
            raise ComponentError("The broker is not running: it was killed and not started again.")
        os.kill(self._server.pid, number)


@contextmanager
def running_kafka() -> Iterator[Kafka]:
    """Start an empty broker. It ends and its data are deleted at the end of the block."""
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
    """The jars of Spark's Kafka connector, for `spark.jars` of a Spark 4.2 or 4.3 session."""
    return resolve(CONNECTOR, overrides=[TOKEN_PROVIDER])


def _make_certificate(folder: Path) -> None:
    store = ["-alias", "broker", "-keystore", str(folder / KEY_STORE), "-storepass", STORE_PASSWORD]
    names = ["-dname", "CN=127.0.0.1", "-ext", "san=ip:127.0.0.1", "-validity", "30"]
    kind = ["-keyalg", "EC", "-groupname", "secp256r1", "-storetype", "PKCS12"]
    _keytool("-genkeypair", *store, *names, *kind)
    _keytool("-exportcert", "-rfc", *store, "-file", str(folder / CERTIFICATE))


def _keytool(*words: str) -> None:
    java = Path(find_java()).resolve()
    run = subprocess.run(
        [str(java.with_name("keytool")), *words], capture_output=True, text=True, check=False
    )
    if run.returncode != 0:
        raise ComponentError(f"keytool {words[0]} failed:\n{run.stdout[-2000:]}{run.stderr}")


def _broker_settings(folder: Path, ports: Mapping[str, int]) -> str:
    listeners = {name: f"{name}://127.0.0.1:{port}" for name, port in ports.items()}
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
        "controller.listener.names": "CONTROLLER",
        "listeners": ",".join(listeners.values()),
        "advertised.listeners": ",".join(listeners[name] for name in LISTENERS),
        "listener.security.protocol.map": ",".join(
            [*(f"{name}:{name}" for name in LISTENERS), "CONTROLLER:PLAINTEXT"]
        ),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": scram,
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(folder / KEY_STORE),
        "ssl.keystore.password": STORE_PASSWORD,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # clients without authentication
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


def _command(main_class: str, jars: tuple[str, ...] = KAFKA, *flags: str) -> list[str]:
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return [find_java(), "-Xmx512m", *flags, quiet, "-cp", classpath(*jars), main_class]


def _java(main_class: str, *words: str, jars: tuple[str, ...] = KAFKA) -> str:
    run = subprocess.run(
        [*_command(main_class, jars, *QUICK_START), *words],
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
    """A random cluster id: a UUID in URL-safe base64 without padding.

    It must not begin with a dash, because the command line would take it for an option.
    """
    first, *others = uuid.uuid4().bytes
    return urlsafe_b64encode(bytes([first & 0x7F, *others])).decode().rstrip("=")
