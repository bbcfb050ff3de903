"""Calls PySpark's `StreamingQueryListener` subclasses with the events of queries.

`onQueryStarted` is called in the thread that calls `start()`, before `start()` returns. One
background thread delivers all other events, in order. A listener can neither delay nor break a
query: its exceptions are logged. If it is too slow, the oldest waiting reports are dropped, but
never the event that a query has ended.

Note: `KeyboardInterrupt` and `SystemExit` in `onQueryStarted` are meant for the program that calls
`start()`. They are raised there, and the query does not start.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any
from uuid import UUID

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from epochal.continuous.run.progress import iso

logger = logging.getLogger(__name__)

MAX_WAITING_EVENTS = 1_000


class ListenerBus:
    """The listeners of one session, and the thread that calls them."""

    def __init__(self, max_waiting: int = MAX_WAITING_EVENTS) -> None:
        self._listeners: list[StreamingQueryListener] = []
        self._waiting: deque[tuple[str, Any]] = deque()
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._closed = False
        self.dropped = 0
        """Number of reports that were dropped."""

    def add(self, listener: StreamingQueryListener) -> None:
        with self._changed:
            self._listeners.append(listener)

    def remove(self, listener: StreamingQueryListener) -> None:
        with self._changed:
            self._listeners = [other for other in self._listeners if other is not listener]

    def started(self, query_id: str, run_id: str, name: str | None, now_ms: int) -> None:
        """A query starts; return when every listener has been called."""
        # Releases of Spark differ in what the class takes, but not in what this takes.
        started = {"id": query_id, "runId": run_id, "name": name, "timestamp": iso(now_ms)}
        event = QueryStartedEvent.fromJson({**started, "jobTags": []})
        self._call("onQueryStarted", event)

    def progress(self, report: dict[str, Any]) -> None:
        event = QueryProgressEvent(StreamingQueryProgress.fromJson(report))
        self._post("onQueryProgress", event)

    def idle(self, query_id: str, run_id: str, now_ms: int) -> None:
        self._post("onQueryIdle", QueryIdleEvent(UUID(query_id), UUID(run_id), iso(now_ms)))

    def terminated(
        self, query_id: str, run_id: str, error: str | None, condition: str | None
    ) -> None:
        """A query ended; `error` is the text of the error that ended it, if any."""
        event = QueryTerminatedEvent(UUID(query_id), UUID(run_id), error, condition)
        self._post("onQueryTerminated", event)

    def drain(self, timeout_seconds: float) -> bool:
        """Wait until all events so far are delivered; return whether they are."""
        if threading.current_thread() is self._thread:
            return False  # called by a listener: it cannot wait for itself
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._waiting and not self._busy, timeout_seconds
            )

    def close(self) -> None:
        """Deliver the waiting events, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _post(self, method: str, event: Any) -> None:
        with self._changed:
            if not self._listeners:
                return
            if len(self._waiting) >= self._max_waiting:
                self._drop_oldest_report()
            self._waiting.append((method, event))
            if self._thread is None or not self._thread.is_alive():
                self._closed = False
                self._thread = threading.Thread(
                    target=self._run, name="epochal-listeners", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def _drop_oldest_report(self) -> None:
        for index, (method, _) in enumerate(self._waiting):
            if method != "onQueryTerminated":
                del self._waiting[index]
                self.dropped += 1
                logger.warning("listeners are too slow: %d reports dropped so far", self.dropped)
                return

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                method, event = self._waiting.popleft()
                self._busy = True
            # In this thread not even SystemExit may end anything: the next event would be lost.
            self._call(method, event, caught=BaseException)

    def _call(self, method: str, event: Any, caught: type[BaseException] = Exception) -> None:
        with self._changed:
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                getattr(listener, method)(event)
            except caught:
                logger.exception("%s.%s failed", type(listener).__name__, method)
