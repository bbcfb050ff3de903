"""The committer finds the sources in the JVM of every supported Spark release."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.kafka_world import held, make_topic, produce, unique
from tests.integration.release_child import RECORDS
from tests.spark.releases import ROOT, environment_of

from epochal.testing.jars import resolve
from epochal.testing.kafka import TOKEN_PROVIDER, Kafka, connector_jars

# A connector uses internals of its own Spark release, so the versions must match.
CONNECTORS = {
    "4.0": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
    "4.1": "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
}


def jars_for(release: str) -> list[Path]:
    connector = CONNECTORS.get(release.rpartition(".")[0])
    if connector is None:
        return connector_jars()
    # From 4.1 on, some mirrors do not have the connector's own release of this.
    return resolve(connector, overrides=[TOKEN_PROVIDER] if release >= "4.1" else [])


@pytest.mark.long
@pytest.mark.parametrize("release", ["4.0.5", "4.1.4", "4.2.1", "4.3.0"])
def test_sources_are_found_in_the_jvm_of_a_release(
    broker: Kafka, tmp_path: Path, release: str
) -> None:
    topic = make_topic(broker, unique("orders"))
    produce(broker, topic, RECORDS)
    jars = jars_for(release)
    words = [broker.bootstrap_servers, ",".join(map(str, jars)), topic, str(tmp_path)]
    run = subprocess.run(
        [sys.executable, "-m", "tests.integration.release_child", *words],
        env=environment_of(release),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    told = json.loads(run.stdout)
    assert {key: told[key] for key in ("release", "done", "errors", "problems")} == {
        "release": release,
        "done": True,
        "errors": 0,
        "problems": {},
    }, run.stderr[-4000:]
    everything = {(topic, 0): RECORDS, (topic, 1): RECORDS}
    seen = f"{told}\n{run.stderr[-4000:]}"
    assert held(broker, f"{topic}-micro-batch") == everything, seen
    assert held(broker, f"{topic}-continuous") == everything, seen
