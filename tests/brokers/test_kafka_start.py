"""What is started while the broker is down waits for it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from tests.integration.kafka_reading import options, source
from tests.integration.kafka_world import EPOCHAL, held, make_topic, unique, wait_for
from tests.waiting import eventually

from epochal.connectors.registry import open_sink
from epochal.files.local import LocalFiles
from epochal.testing.kafka import Kafka, running_kafka

SECONDS = 120.0
TOPIC = "orders"
VALUE = pa.schema([("value", pa.string())])


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Kafka]:
    """A broker that only these tests use: they kill it."""
    with running_kafka() as broker:
        make_topic(broker, TOPIC, 1)
        yield broker


@pytest.fixture
def killed(own_broker: Kafka) -> Kafka:
    own_broker.kill()
    return own_broker


def test_a_source_starts_when_its_broker_is_back(
    killed: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened = source(tmp_path, options(killed, subscribe=TOPIC))
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(opened.initial)
        eventually(lambda: "The query starts when they answer" in caplog.text)
        killed.start()
        assert started.result(SECONDS) == {f"{TOPIC}-0": "0"}


def test_a_sink_starts_when_its_broker_is_back(
    killed: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"kafka.bootstrap.servers": killed.bootstrap_servers, "topic": TOPIC}
    checkpoint = LocalFiles(tmp_path, durable=False)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(
            lambda: open_sink("kafka", given, VALUE, checkpoint=checkpoint, query_id=str(uuid4()))
        )
        eventually(lambda: "The query starts when they answer" in caplog.text)
        killed.start()
        opening.result(SECONDS).close()


def test_a_follower_commits_when_its_broker_is_back(killed: Kafka, tmp_path: Path) -> None:
    checkpoint, said, group = tmp_path / "checkpoint", tmp_path / "said", unique("group")
    offsets = f'{{"{TOPIC}":{{"0":0}}}}'
    for name, text in (
        ("metadata", json.dumps({"id": str(uuid4())})),
        ("offsets/0", f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":0}}\n{offsets}'),
        ("commits/0", "v1\n{}"),
    ):
        file = checkpoint / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    words = ["--checkpoint", str(checkpoint), "--group", group, "--follow"]
    words += ["--bootstrap-servers", killed.bootstrap_servers]
    with (
        said.open("w") as log,
        subprocess.Popen([EPOCHAL, "kafka", "commit", *words], stderr=log) as follower,
    ):
        try:
            wait_for(lambda: "is unavailable" in said.read_text())
            killed.start()
            wait_for(lambda: held(killed, group) == {(TOPIC, 0): 0}, said.read_text)
        finally:
            follower.terminate()
    assert follower.returncode == 0, said.read_text()
