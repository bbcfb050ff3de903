"""Kafka to stateful Python to Kafka survives `kill -9` of workers, executors, driver and broker.

A consumer of committed records sees the sums of the whole input, each row once and in order.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from tests.fault.sums import KEYS
from tests.fault.torment import Program, state_totals, tell
from tests.kafka_topics import create_topic, read_topic

from epochal.testing.kafka import Kafka, running_kafka

SHORT_SEED = 3
ROWS_PER_TURN, TURN_SECONDS = 4, 0.01
PARTITIONS = 3


class KafkaProgram(Program):
    module = "tests.fault.kafka_sums"


class Feeder:
    """Writes 0, 1, 2, … to a topic until it is stopped."""

    def __init__(self, servers: str, topic: str) -> None:
        self.count = 0
        self._topic, self._ending = topic, threading.Event()
        settings = {"bootstrap.servers": servers, "enable.idempotence": True, "log_level": "0"}
        self._producer = Producer(settings)
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    def end(self) -> int:
        """Stop; return the number of rows written."""
        self._ending.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        return self.count

    def _feed(self) -> None:
        while not self._ending.wait(TURN_SECONDS):
            for _ in range(ROWS_PER_TURN):
                self._producer.produce(self._topic, str(self.count).encode())
                self.count += 1
            self._producer.poll(0)


@pytest.fixture(scope="module")
def broker() -> Iterator[Kafka]:
    with running_kafka() as running:
        yield running


def kill(program: KafkaProgram, broker: Kafka, kind: str, rng: Random) -> float:
    """Kill one process of a kind, and restart it if nothing else does.

    Returns the seconds until the next commit.
    """
    before, began = program.attempt(), time.monotonic()
    if kind == "broker":
        broker.kill()
        time.sleep(rng.uniform(0.0, 2.0))  # a random downtime
        broker.start()
        began, newest = time.monotonic(), program.newest()
        # The attempt may survive this, so wait for an epoch, not for a new attempt.
        program.until(lambda: program.newest() > newest + 1, f"an epoch after {newest}")
    else:
        program.kill(kind, rng)
        program.recovered(before)
    return time.monotonic() - began


def tormented(
    folder: Path, broker: Kafka, kinds: list[str], seed: int
) -> tuple[int, dict[str, list[float]]]:
    """Kill processes one after another at random times.

    Returns the number of rows, and the seconds of recovery by kind.
    """
    rng, servers = Random(seed), broker.bootstrap_servers
    source = create_topic(servers, f"numbers-{seed}", partitions=PARTITIONS)
    target = create_topic(servers, f"sums-{seed}", partitions=PARTITIONS)
    options = (f"servers={servers}", f"input={source}", f"output={target}")
    program = KafkaProgram(folder, folder / "driver.log", *options)
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    program.start()
    try:
        feeder = Feeder(servers, source)
        program.recovered(-1)
        for kind in kinds:
            time.sleep(rng.uniform(0.0, 1.5))  # kill at a random time
            seconds[kind].append(kill(program, broker, kind, rng))
        rows = feeder.end()
        program.until(lambda: len(read_topic(servers, target)) >= rows, f"{rows} rows")
        program.stop()
    finally:
        program.end()
    check(read_topic(servers, target), rows, program.checkpoint)
    return rows, dict(seconds)


def check(found: list[tuple[int, bytes | None, bytes]], rows: int, checkpoint: Path) -> None:
    """Check that each row is there once, and that sums and state are right."""
    told = [tuple(map(int, value.split(b","))) for _, _, value in found]
    assert sorted(value for value, _ in told) == list(range(rows))
    totals: defaultdict[int, int] = defaultdict(int)
    for (_, key, _), (value, total) in zip(found, told, strict=True):
        totals[value % KEYS] += value + 1
        assert key == str(value % KEYS).encode()
        assert total == totals[value % KEYS], f"{value} has {total}"
    assert state_totals(checkpoint) == dict(totals)


FEW = pytest.param(["worker", "broker", "driver"], SHORT_SEED, id="few")
FIVE = ["worker", "worker", "executor", "driver", "broker"]
"""Over all seeds, kills of each kind at least seven times."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kinds", "seed"),
    [FEW, *(pytest.param(FIVE, seed, marks=pytest.mark.long) for seed in range(30, 37))],
)
def test_kills_leave_every_row_in_the_topic_once(
    tmp_path: Path, broker: Kafka, capsys: pytest.CaptureFixture[str], kinds: list[str], seed: int
) -> None:
    order = kinds if seed == SHORT_SEED else Random(seed).sample(kinds, len(kinds))
    rows, seconds = tormented(tmp_path, broker, order, seed)
    took = "; ".join(
        f"{kind} x{len(each)}: max {max(each):.1f} s" for kind, each in sorted(seconds.items())
    )
    tell(capsys, f"{len(kinds)} kills, {rows} rows. Recovery: {took}")
