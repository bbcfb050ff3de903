"""Listeners: who is told, in which order, and that they cannot harm anything."""

from __future__ import annotations

import threading
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener
from tests.unit.continuous.run.test_progress import epoch, maker

from epochal.continuous.run.listeners import ListenerBus

QUERY = "11111111-1111-1111-1111-111111111111"
RUN = "22222222-2222-2222-2222-222222222222"


class Notes(StreamingQueryListener):  # type: ignore[misc]
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def onQueryStarted(self, event: Any) -> None:
        self.heard.append(f"started {event.name}")

    def onQueryProgress(self, event: Any) -> None:
        self.heard.append(f"progress {event.progress.batchId}")

    def onQueryIdle(self, event: Any) -> None:
        self.heard.append(f"idle {event.timestamp}")

    def onQueryTerminated(self, event: Any) -> None:
        self.heard.append(f"terminated {event.exception} {event.errorClassOnException}")


class Thrower(Notes):
    """Raises whatever happens."""

    def onQueryStarted(self, event: Any) -> None:
        raise RuntimeError("started")

    def onQueryProgress(self, event: Any) -> None:
        raise RuntimeError("progress")


class Stuck(Notes):
    """Does not come back from its first report until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.let_go = threading.Event(), threading.Event()

    def onQueryProgress(self, event: Any) -> None:
        super().onQueryProgress(event)
        self.inside.set()
        self.let_go.wait(60)


def report(number: int) -> dict[str, Any]:
    found = maker(epoch(number)).make(1000)
    assert found is not None
    return found


def test_a_listener_that_throws_harms_neither_the_others_nor_the_caller() -> None:
    bus, notes = ListenerBus(), Notes()
    bus.add(Thrower())
    bus.add(notes)
    bus.started(QUERY, RUN, None, 0)
    bus.progress(report(1))
    assert bus.drain(30)
    assert notes.heard == ["started None", "progress 1"]
    bus.close()


def test_a_listener_that_was_removed_hears_nothing_more() -> None:
    bus, notes, other = ListenerBus(), Notes(), Notes()
    bus.add(notes)
    bus.add(other)
    bus.remove(notes)
    bus.terminated(QUERY, RUN, None, None)
    assert bus.drain(30)
    assert (notes.heard, other.heard) == ([], ["terminated None None"])
    bus.close()


def test_reports_are_dropped_for_a_slow_listener_but_never_the_end() -> None:
    bus, stuck = ListenerBus(max_waiting=2), Stuck()
    bus.add(stuck)
    bus.progress(report(1))
    assert stuck.inside.wait(30)
    for number in (2, 3):
        bus.progress(report(number))
    bus.terminated(QUERY, RUN, None, None)
    for number in (4, 5):
        bus.progress(report(number))
    stuck.let_go.set()
    assert bus.drain(30)
    assert stuck.heard == ["progress 1", "terminated None None", "progress 5"]
    assert bus.dropped == 3
    bus.close()


def test_waiting_for_listeners_has_an_end() -> None:
    bus, stuck = ListenerBus(), Stuck()
    bus.add(stuck)
    bus.progress(report(1))
    assert stuck.inside.wait(30)
    assert not bus.drain(0.01)
    stuck.let_go.set()
    assert bus.drain(30)
    bus.close()


class Quitter(Notes):
    """Tries to end the program whatever happens."""

    def onQueryStarted(self, event: Any) -> None:
        raise KeyboardInterrupt

    def onQueryProgress(self, event: Any) -> None:
        raise SystemExit(3)


def test_a_listener_that_exits_in_the_background_ends_nothing() -> None:
    bus, notes = ListenerBus(), Notes()
    bus.add(Quitter())
    bus.add(notes)
    bus.progress(report(1))
    bus.progress(report(2))
    assert bus.drain(10)
    assert notes.heard == ["progress 1", "progress 2"]
    bus.close()
