"""`epochal kafka serve`: a broker for trials that ends with its command and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from epochal.cli.main import main
from epochal.testing.server import accepts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_its_topics_until_a_signal_ends_it(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "epochal", "kafka", "serve", "--topic", "orders:2"]
    with subprocess.Popen(
        [*command, "--topic", "letters"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as broker:
        assert broker.stdout is not None
        printed = broker.stdout.readline()
        servers = printed.removeprefix("export BROKER=").strip()
        assert printed == f"export BROKER={servers}\n"
        topics = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=60).topics
        assert {name: len(each.partitions) for name, each in topics.items()} == {
            "orders": 2,
            "letters": 1,
        }
        broker.send_signal(number)
        _, said = broker.communicate(timeout=60)
    assert said == "epochal: The broker has ended, and its data are deleted.\n"
    assert broker.returncode == 130
    assert not accepts("127.0.0.1", int(servers.rpartition(":")[2]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("topic", ["", ":2", "orders:", "orders:0", "orders:two", "orders:-1"])
def test_a_topic_has_a_name_and_perhaps_a_number_of_partitions(
    topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kafka", "serve", "--topic", topic]) == 2
    assert "--topic must be TOPIC or TOPIC:PARTITIONS" in capsys.readouterr().err
