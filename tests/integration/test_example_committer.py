"""The example of the Kafka committer, run with spark-submit on a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from tests.integration.kafka_world import held, wait_for
from tests.integration.test_examples import EXAMPLES, environment
from tests.kafka_topics import create_topic

from epochal.testing.kafka import Kafka, connector_jars


@pytest.mark.long
def test_the_committer_s_group_is_where_the_query_is(broker: Kafka, tmp_path: Path) -> None:
    topic, group = f"orders-{uuid.uuid4().hex[:8]}", f"group-{uuid.uuid4().hex[:8]}"
    create_topic(broker.bootstrap_servers, topic, partitions=2)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for n in range(100):
        producer.produce(topic, b"{}", b"c%d" % n, partition=n % 2)
    assert producer.flush(30) == 0
    text = (EXAMPLES / "kafka_committer.py").read_text()
    script = tmp_path / "kafka_committer.py"
    script.write_text(text.replace('"orders"', f'"{topic}"').replace("orders-query", group))

    submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[2]"]
    submit += ["--jars", ",".join(map(str, connector_jars())), str(script)]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*submit, broker.bootstrap_servers, str(tmp_path)],
            cwd=tmp_path,
            env=environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_for(
            lambda: held(broker, group) == {(topic, 0): 50, (topic, 1): 50},
            lambda: (held(broker, group), (tmp_path / "log").read_text()[-3000:]),
        )
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert pq.read_table(tmp_path / "orders").num_rows == 100
