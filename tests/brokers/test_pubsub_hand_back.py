"""A task that is killed: what it held comes back at once, long before its leases end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.pubsub_world import World, bodies
from tests.waiting import eventually


@contextmanager
def holder(world: World, subscription: str, count: int) -> Iterator[subprocess.Popen[str]]:
    """Start a process that reads and acknowledges `count` messages."""
    given = {**world.options, "subscriptionId": subscription, "ackDeadline": "600s"}
    script = str(Path(__file__).with_name("pubsub_holder.py"))
    with subprocess.Popen(
        [sys.executable, script, json.dumps(given), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert heard(process) == "ready"
        yield process


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


def test_what_a_killed_task_held_comes_back_at_once(world: World) -> None:
    topic, subscription = world.pair(ack_deadline_seconds=600)
    world.publish(topic, bodies(100))
    with holder(world, subscription, 100) as process:
        # Acknowledgements leave on a thread of their own, and a killed task sends none.
        eventually(lambda: not world.unacknowledged(subscription), pause=0.5)
        world.publish(topic, [b"held"])
        tell(process, "read more")
        assert heard(process) == "more"
        process.kill()
        process.wait()
        back = world.pull(subscription, 1, seconds=20)
    assert [each.message.data for each in back] == [b"held"]
    assert world.left(subscription) == []


def test_a_task_that_ends_gives_back_what_it_held_itself(world: World) -> None:
    topic, subscription = world.pair(ack_deadline_seconds=600)
    world.publish(topic, bodies(10))
    with holder(world, subscription, 10) as process:
        world.publish(topic, [b"held"])
        tell(process, "read more")
        assert heard(process) == "more"
        tell(process, "end")
        assert heard(process) == "closed"
        assert process.wait(20) == 0
    assert [each.message.data for each in world.pull(subscription, 1)] == [b"held"]
