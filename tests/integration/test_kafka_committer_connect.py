"""The committer in a Spark Connect client. The plans are on the server, so groups are given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.kafka_world import held, make_topic, produce, unique
from tests.spark.releases import ROOT

from epochal.testing.kafka import Kafka, connector_jars


@pytest.mark.long
def test_groups_that_are_told_show_a_query_of_spark_connect(broker: Kafka, tmp_path: Path) -> None:
    topic, group = make_topic(broker, unique("orders")), unique("connect")
    produce(broker, topic, 20)
    jars = ",".join(map(str, connector_jars()))
    words = [broker.bootstrap_servers, jars, topic, group, str(tmp_path)]
    run = subprocess.run(
        [sys.executable, "-m", "tests.integration.connect_child", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    told = json.loads(run.stdout.splitlines()[-1])
    assert told == {
        "done": True,
        "errors": 0,
        "problems": {},
        "session": "pyspark.sql.connect.session",
    }, run.stderr[-4000:]
    assert held(broker, group) == {(topic, 0): 20, (topic, 1): 20}
