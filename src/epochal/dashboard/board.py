"""All that the page shows: queries by their checkpoint, each with its newest run and its health.

Two threads keep it current: one reads the runs' journals, one looks at checkpoints. The page asks
by a query's key; paths come from the command line and from the user's own journals, never from a
request.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epochal.clock import Clock
from epochal.dashboard.health import Doctor, Health
from epochal.dashboard.query_runs import LOST, RUNNING, RunView
from epochal.errors import EpochalError
from epochal.files import Files, open_files
from epochal.metrics.query_metrics import QueryMetrics
from epochal.metrics.run_journal import JournalTail, run_files
from epochal.metrics.run_records import Record, RunEnded, RunStarted
from epochal.metrics.text import merged, text_of

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
COLD_SECONDS = 30.0
"""How much longer a checkpoint waits for its next look if nobody would notice."""
REST = 2.0
"""Looking at everything in turn is followed by a rest so many times as long."""
MAX_RUNS = 200


@dataclass(slots=True)
class Query:
    """A checkpoint, or a run, or both."""

    key: str
    url: str
    given: bool = False
    """Whether the command line named it."""
    runs: list[RunView] = field(default_factory=list)
    """Oldest first."""
    doctor: Doctor | None = None

    @property
    def run(self) -> RunView | None:
        """The newest."""
        return self.runs[-1] if self.runs else None

    def summary(self) -> dict[str, Any]:
        """One line of the list."""
        run, health = self.run, self.doctor.health if self.doctor else None
        found = run.summary() if run else _without_run(health)
        return {
            "key": self.key,
            "checkpoint": self.url,
            **found,
            "runs": len(self.runs),
            "health": health.status if health else "unknown",
            "findings": len(health.findings) if health else 0,
        }


class Board:
    """What is known, for as many readers as there are."""

    def __init__(self, checkpoints: Sequence[str], runs: Path, clock: Clock) -> None:
        self._runs, self._clock = runs, clock
        self._lock = threading.Lock()
        self._queries: dict[str, Query] = {}
        self._tails: dict[Path, tuple[JournalTail, RunView | None]] = {}
        self._metrics: dict[str, QueryMetrics] = {}
        self._watched: Counter[str] = Counter()
        """How many pages show a query, by its key."""
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        for url in checkpoints:
            self._query(open_files(url).url).given = True

    def start(self) -> None:
        """Keep it current, until `close`."""
        work: list[tuple[str, Callable[[], object]]] = [
            ("runs", self.read_runs),
            ("health", self.visit),
        ]
        for name, target in work:
            thread = threading.Thread(
                target=self._repeat, args=(target,), name=f"epochal-{name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Look no more."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def summaries(self) -> list[dict[str, Any]]:
        """All queries: running ones first, then by their newest run."""
        with self._lock:
            found = [query.summary() for query in self._queries.values()]
        return sorted(
            found,
            key=lambda each: (each["state"] != RUNNING, -(each["started_ms"] or 0), each["key"]),
        )

    def since(self, key: str, sequence: int) -> dict[str, Any] | None:
        """What came of a query's newest run after `sequence`."""
        with self._lock:
            query = self._queries.get(key)
            return query.run.since(sequence) if query and query.run else None

    def health(self, key: str) -> Health | None:
        """How a query's checkpoint was at the last look."""
        with self._lock:
            query = self._queries.get(key)
            return query.doctor.health if query and query.doctor else None

    def files(self, key: str) -> Files | None:
        """The checkpoint of a query that is known; None for any other key."""
        with self._lock:
            query = self._queries.get(key)
        return open_files(query.url) if query else None

    def metrics(self) -> str:
        """What the runs' own endpoints would say."""
        with self._lock:
            collected = list(self._metrics.values())
        return text_of(merged(each for metrics in collected for each in metrics.collect()))

    def read_runs(self) -> None:
        """Read what runs have written since the last time."""
        paths = run_files(self._runs)[-MAX_RUNS:]
        for path in set(self._tails) - set(paths):
            self._forget(path)
        for path in paths:
            tail, view = self._tails.get(path) or (JournalTail(path), None)
            try:
                records, _ = tail.read()
            except OSError:
                continue  # it has just been forgotten
            with self._lock:
                if view is None and records and isinstance(records[0], RunStarted):
                    view = RunView(records[0])
                    self._add(view)
                if view is not None:
                    self._note(view, records, tail.alive)
            self._tails[path] = (tail, view)

    def visit(self) -> None:
        """Look at every checkpoint that is due."""
        with self._lock:
            queries = list(self._queries.values())
        for query in queries:
            if self._ended.is_set():
                return
            if query.doctor is None:
                try:
                    query.doctor = Doctor(open_files(query.url), self._clock)
                except EpochalError as error:
                    logger.warning("%s cannot be looked at: %s", query.url, error)
                    continue
            rest = 0.0 if self._is_hot(query) else COLD_SECONDS
            if query.doctor.due + rest <= self._clock.monotonic():
                query.doctor.visit()

    @contextmanager
    def watching(self, key: str) -> Iterator[None]:
        """A page shows this query, for as long as the block lasts."""
        with self._lock:
            self._watched[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._watched[key] -= 1
                self._watched += Counter()  # forgets what is at zero

    def _is_hot(self, query: Query) -> bool:
        """Whether somebody would notice at once: it runs, or it is being looked at."""
        run = query.run
        never = query.doctor is None or query.doctor.health is None
        running = run is not None and run.state == RUNNING
        return never or query.given or running or self._watched[query.key] > 0

    def _note(self, view: RunView, records: Sequence[Record], alive: bool) -> None:
        news = [record for record in records if view.add(record)]
        view.alive = alive
        metrics = self._metrics[view.run.run_id]
        metrics.write(news)
        if view.state == LOST:
            metrics.write([RunEnded(0, "killed")])

    def _add(self, view: RunView) -> None:
        query = self._query(view.run.checkpoint)
        query.runs = sorted([*query.runs, view], key=lambda each: each.run.started_ms)
        metrics = self._metrics[view.run.run_id] = QueryMetrics()
        metrics.write([view.run])

    def _forget(self, path: Path) -> None:
        _, view = self._tails.pop(path)
        if view is None:
            return
        with self._lock:
            self._metrics.pop(view.run.run_id, None)
            query = self._query(view.run.checkpoint)
            query.runs = [each for each in query.runs if each is not view]
            if not query.runs and not query.given:
                del self._queries[query.key]

    def _query(self, url: str) -> Query:
        key = hashlib.sha256(url.encode()).hexdigest()[:12]
        return self._queries.setdefault(key, Query(key, url))

    def _repeat(self, work: Callable[[], object]) -> None:
        while True:
            began = self._clock.monotonic()
            try:
                work()
            except Exception:
                logger.exception("the dashboard could not look")
            took = self._clock.monotonic() - began
            if self._ended.wait(max(LOOK_SECONDS, REST * took)):
                return


def _without_run(health: Health | None) -> dict[str, Any]:
    view = health.view if health else None
    newest = view.batches[-1] if view and view.batches else None
    return {
        "name": None,
        "query_id": view.query_id if view else None,
        "run_id": None,
        "state": "checkpoint",
        "message": "",
        "error": health.problem if health else None,
        "started_ms": None,
        "ended_ms": None,
        "epoch": newest.batch_id if newest else None,
        "input_rate": None,
        "p50_ms": None,
        "p99_ms": None,
        "behind": None,
        "state_rows": None,
        "restarts": 0,
        "attempt": None,
        "sources": [each.kind for each in view.sources] if view else [],
        "sink": None,
    }
