"""Spark's own query on a real Kafka broker: its offsets and its lag in the dashboard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from pyspark.sql import SparkSession
from tests.integration.kafka_world import make_topic, produce, read, start, unique
from tests.rigs.dashboard import running_dashboard
from tests.waiting import eventually

from epochal.testing.kafka import Kafka
from epochal.testing.server import free_port


@pytest.fixture(scope="module")
def checkpoint(
    kafka_spark: SparkSession, broker: Kafka, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A query that has read 30 records of each partition, of which there are 50 now."""
    home, topic = tmp_path_factory.mktemp("lag"), make_topic(broker, unique("orders"))
    for count in (10, 20):
        produce(broker, topic, count)
        query = start(
            read(kafka_spark, broker, ("subscribe", topic), None),
            home / "checkpoint",
            availableNow=True,
        )
        query.awaitTermination()
    produce(broker, topic, 20)
    return home / "checkpoint", topic


@contextmanager
def asked(checkpoint: Path, *arguments: str) -> Iterator[Any]:
    """Start a dashboard; return a function that asks it about the checkpoint."""
    runs = checkpoint.parent / "runs"
    words = ["--runs", str(runs), "--checkpoint", str(checkpoint), *arguments]
    with running_dashboard(checkpoint.parent, *words) as (link, _):
        url, token = urlsplit(link), link.partition("token=")[2]

        def ask(path: str = "") -> Any:
            place = f"http://{url.netloc}/api/queries{path}"
            request = Request(place, headers={"Authorization": f"Bearer {token}"})
            with urlopen(request, timeout=120) as answer:
                return json.load(answer)

        (query,) = ask()["queries"]
        yield lambda path: ask(f"/{query['key']}/{path}")


def test_offsets_are_numbers_and_lag_is_measured(
    checkpoint: tuple[Path, str], broker: Kafka
) -> None:
    place, topic = checkpoint
    with asked(place, "--bootstrap-servers", broker.bootstrap_servers) as ask:
        (source,) = ask("lag")["sources"]
        assert (source["kind"], source["unit"], source["why"]) == ("kafka", "records", None)
        assert (source["at"], source["latest"], source["lag"]) == (60, 100, 40)
        assert source["seconds"] > 0
        parts = [(each["topic"], each["partition"], each["lag"]) for each in source["parts"]]
        assert parts == [(topic, 0, 20), (topic, 1, 20)]
        produce(broker, topic, 5)
        eventually(lambda: ask("lag")["sources"][0]["lag"] == 50, "newer records are seen")


def test_a_broker_that_does_not_answer_is_the_reason(checkpoint: tuple[Path, str]) -> None:
    servers = f"127.0.0.1:{free_port()}"
    with asked(checkpoint[0], "--bootstrap-servers", servers) as ask:
        (source,) = ask("lag")["sources"]
        assert source.get("lag") is None
        assert servers in source["why"]
        assert ask("history")["figures"]["newest"] == 1, "everything else is shown"
