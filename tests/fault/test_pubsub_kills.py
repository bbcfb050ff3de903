"""A Pub/Sub query on two executors survives `kill -9`: all messages sent are written.

With at-least-once delivery each is written once or more, with exactly-once delivery once. In the
end all messages are acknowledged.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.fault.torment import CLUSTER, Program, sink_rows, tell
from tests.integration.pubsub_world import World, pubsub_world
from tests.spark.continuous import runs

DEADLINE = "10s"


class PubSubProgram(Program):
    module = "tests.fault.pubsub_query"

    def sidecars(self) -> list[int]:
        """The sidecars of its executors. They need not be descendants of the driver."""
        jvms = {str(pid) for pid in self.executors()}
        found = []
        for each in Path("/proc").iterdir():
            if each.name.isdigit() and runs(
                int(each.name), "epochal.connectors.pubsub.sidecar.sidecar"
            ):
                command = (each / "cmdline").read_bytes().decode().split("\0")
                if jvms & set(command):
                    found.append(int(each.name))
        return found

    def runner(self) -> list[int]:
        """The process in which Spark runs the source's driver side."""
        return [p for p in self.descendants() if runs(p, "python_streaming_source_runner")]

    def written(self) -> list[str]:
        if not (self.out / "_spark_metadata").is_dir():
            return []
        return [str(row["message_id"]) for row in sink_rows(self.out)]


@pytest.fixture
def world() -> Iterator[World]:
    with pubsub_world() as found:
        yield found


@pytest.fixture
def programs(tmp_path: Path, world: World) -> Iterator[Callable[..., PubSubProgram]]:
    made: list[PubSubProgram] = []

    def make(
        subscription: str, *options: str, base: Path = tmp_path, master: str = CLUSTER
    ) -> PubSubProgram:
        given = {**world.options, "subscriptionId": subscription, "ackDeadline": DEADLINE}
        pairs = [f"{key}={text}" for key, text in given.items()]
        base.mkdir(exist_ok=True)
        made.append(PubSubProgram(base, base / "driver.log", *pairs, *options, master=master))
        made[-1].start()
        return made[-1]

    yield make
    for program in made:
        program.end()


class Publisher:
    """Publishes a few messages on request, and remembers their ids."""

    def __init__(self, world: World, topic: str) -> None:
        self.sent: list[str] = []
        self._world, self._topic = world, topic

    def some(self, count: int = 50) -> None:
        bodies = [str(len(self.sent) + number).encode() for number in range(count)]
        self.sent += self._world.publish(self._topic, bodies)


def kill(program: PubSubProgram, kind: str, rng: Random) -> None:
    match kind:
        case "worker":
            victims = program.until(program.workers, "a worker")
        case "executor":
            victims = program.until(program.executors, "an executor")
        case "sidecar":
            victims = program.until(program.sidecars, "a sidecar")
        case "runner":
            victims = program.until(program.runner, "a runner")
        case _:
            program.kill_driver()
            program.start()
            return
    with suppress(ProcessLookupError):  # it has already ended
        os.kill(rng.choice(victims), signal.SIGKILL)


def torment(
    program: PubSubProgram, publisher: Publisher, kinds: list[str], rng: Random, seconds: float
) -> None:
    publisher.some()
    program.until(lambda: set(program.written()) >= set(publisher.sent), "the first rows")
    for kind in kinds:
        end = time.monotonic() + rng.uniform(0.2, seconds)
        while time.monotonic() < end:
            publisher.some(rng.randint(1, 100))
            time.sleep(0.05)  # messages trickle in until the kill
        kill(program, kind, rng)


def check(program: PubSubProgram, publisher: Publisher, world: World, name: str, *, exact: bool
) -> int:  # fmt: skip
    """Check that everything sent is written; return the number of duplicates."""
    program.until(lambda: set(program.written()) >= set(publisher.sent), "every message")
    program.until(lambda: not world.unacknowledged(name), "all acknowledged", pause=0.5)
    program.stop()
    written = program.written()
    assert set(written) == set(publisher.sent)
    if exact:
        assert sorted(written) == sorted(publisher.sent)
    assert world.unacknowledged(name) == []
    return len(written) - len(publisher.sent)


THREE = ["worker", "executor", "sidecar"]
SIXTEEN = ["worker"] * 5 + ["executor"] * 3 + ["sidecar"] * 4 + ["runner"] * 2 + ["driver"] * 2
KILLS = [
    pytest.param("exactly-once", THREE, 1, 2.0, id="three"),
    pytest.param("at-least-once", THREE, 1, 2.0, marks=pytest.mark.long),
    *(
        pytest.param(delivery, SIXTEEN, seed, 4.0, marks=pytest.mark.long)
        for delivery in ("at-least-once", "exactly-once")
        for seed in (30, 31)
    ),
]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("delivery", "kinds", "seed", "seconds"), KILLS)
def test_kills_lose_nothing(
    programs: Callable[..., PubSubProgram],
    world: World,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    delivery: str,
    kinds: list[str],
    seed: int,
    seconds: float,
) -> None:
    rng = Random(seed)
    topic = world.topic()
    name = world.subscription(topic, ack_deadline_seconds=10)
    publisher = Publisher(world, topic)
    options = ["numPartitions=3", f"delivery={delivery}", f"walLocation={tmp_path / 'wal'}"]
    options += ["spark.deploy.maxExecutorRetries=-1", "spark.task.maxFailures=8"]
    program = programs(name, *options)
    torment(program, publisher, rng.sample(kinds, len(kinds)), rng, seconds)
    exact = delivery == "exactly-once"
    more = check(program, publisher, world, name, exact=exact)
    tell(capsys, f"{delivery}: {len(kinds)} kills, {len(publisher.sent)} messages, {more} twice")


@pytest.mark.timeout(800)
@pytest.mark.parametrize(
    "conf",
    [
        "spark.speculation=true",
        pytest.param("spark.python.worker.reuse=false", marks=pytest.mark.long),
    ],
)
def test_attempts_that_fail_after_reading_cost_nothing(
    programs: Callable[..., PubSubProgram],
    world: World,
    capsys: pytest.CaptureFixture[str],
    conf: str,
) -> None:
    topic = world.topic()
    name = world.subscription(topic, ack_deadline_seconds=10)
    publisher = Publisher(world, topic)
    options = ["numPartitions=3", "maxRecordsPerFetch=100", "test.doomed=0,1"]
    program = programs(name, *options, conf)
    for _ in range(10):
        publisher.some(90)
        time.sleep(0.1)  # so that messages fall into several batches
    more = check(program, publisher, world, name, exact=False)
    tell(capsys, f"doomed attempts, {conf}: {len(publisher.sent)} messages, {more} twice")
    assert more == 0


@pytest.mark.long
@pytest.mark.timeout(800)
def test_two_queries_on_one_host_do_not_touch_each_others_messages(
    programs: Callable[..., PubSubProgram], world: World, tmp_path: Path
) -> None:
    topics = [world.topic(), world.topic()]
    names = [world.subscription(topic, ack_deadline_seconds=10) for topic in topics]
    publishers = [Publisher(world, topic) for topic in topics]
    both = [
        programs(name, "numPartitions=2", base=tmp_path / str(number), master="local[2]")
        for number, name in enumerate(names)
    ]
    for publisher in publishers * 5:
        publisher.some(70)
        time.sleep(0.2)  # so that messages fall into several batches
    for program, publisher, name in zip(both, publishers, names, strict=True):
        assert check(program, publisher, world, name, exact=False) == 0
