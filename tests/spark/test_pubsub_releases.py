"""`readStream` and `writeStream.format("pubsub")` on all PySparks with Python data sources."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fault.test_pubsub_kills import Publisher, PubSubProgram, check
from tests.integration.pubsub_world import World
from tests.spark.releases import ROOT, environment_of, run_module


class ReleasedProgram(PubSubProgram):
    """The program with another release's PySpark."""

    def __init__(self, release: str, folder: Path, *options: str) -> None:
        super().__init__(folder, folder / "driver.log", *options, master="local[2]")
        self._release = release

    def start(self) -> None:
        arguments = [self._master, str(self.checkpoint), str(self.out), *self._options]
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.module, *arguments],
                cwd=ROOT,
                env=environment_of(self._release, ROOT / "src"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )


@pytest.mark.long
@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize("release", ["4.0.5", "4.1.4", "4.2.1"])
def test_a_query_and_its_restart_lose_nothing(
    release: str, delivery: str, world: World, tmp_path: Path
) -> None:
    topic, name = world.pair(ack_deadline_seconds=10)
    publisher = Publisher(world, topic)
    options = {**world.options, "subscriptionId": name, "ackDeadline": "10s", "numPartitions": "2"}
    options |= {"delivery": delivery, "walLocation": str(tmp_path / "wal")}
    program = ReleasedProgram(release, tmp_path, *(f"{k}={v}" for k, v in options.items()))
    program.start()
    try:
        publisher.some(300)
        program.until(lambda: set(program.written()) >= set(publisher.sent), "the first rows")
        publisher.some(100)
        program.kill_driver()
        program.start()
        publisher.some(100)
        check(program, publisher, world, name, exact=delivery == "exactly-once")
    finally:
        program.end()


@pytest.mark.long
@pytest.mark.parametrize("release", ["4.0.5", "4.1.4", "4.2.1", "4.3.0"])
def test_a_release_publishes_every_row(release: str, world: World, tmp_path: Path) -> None:
    topic, subscription = world.pair()
    given = json.dumps({**world.options, "topicId": topic})
    environment = environment_of(release, ROOT / "src")
    run_module("tests.spark.pubsub_sink_child", given, tmp_path, env=environment)
    rows = [json.loads(each.message.data) for each in world.pull(subscription, 200)]
    assert sorted(row["id"] for row in rows) == list(range(200))
    (seventh,) = [row for row in rows if row["id"] == 7]
    assert seventh == {
        "id": 7,
        "at": "2026-05-01T12:00:00.000000Z",
        "nested": {"d": "7.00", "a": [7], "m": {"k": 7}},
    }
