"""Holds everything that the page shows: the queries, each with its newest run and its health.

Two threads keep it current. One reads the journals of the runs, the other checks checkpoints. The
page names a query by its key. Paths come from the command line and from the user's own journals,
never from a request.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epochal.checkpoint.layout import COMMITS, METADATA, OFFSETS
from epochal.clock import Clock
from epochal.dashboard.health import Health, HealthMonitor
from epochal.dashboard.query_runs import (
    ACTIVE,
    CHECKPOINT,
    LOST,
    RUNNING,
    UNKNOWN,
    RunView,
    group_of,
    names_of,
    place_of,
    status_of,
)
from epochal.errors import EpochalError
from epochal.files import Bounds, Files, open_files
from epochal.metrics.prometheus import merge_metrics, text_of
from epochal.metrics.query_metrics import QueryMetrics
from epochal.metrics.run_journal import JournalTail, run_files
from epochal.metrics.run_records import Record, RunEnded, RunStarted

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
UNWATCHED_SECONDS = 30.0
"""Extra time between two checks of a checkpoint whose query does not run and is not shown."""
PAUSE_FACTOR = 2.0
"""After each round, a thread pauses this many times as long as the round took."""
MAX_RUNS = 200
ACTIVE_MS = 60_000
"""A checkpoint with a younger batch belongs to a query that runs, as far as one can tell."""
SEARCH_SECONDS = 10.0
"""The time between two searches for checkpoints below the given directories."""
SEARCH_SHARE = 0.1
"""The share of the time that searching may take."""


@dataclass(slots=True)
class Query:
    """A query, known from its checkpoint, from its runs, or from both."""

    key: str
    url: str
    given: bool = False
    """Whether the command line named it, or a directory above it."""
    runs: list[RunView] = field(default_factory=list)
    """Oldest first."""
    monitor: HealthMonitor | None = None

    @property
    def run(self) -> RunView | None:
        return self.runs[-1] if self.runs else None

    def summary(self, directory: str, now_ms: int) -> dict[str, Any]:
        """The query as an entry of the page's list; `directory` names it if no run does."""
        run, health = self.run, self.monitor.health if self.monitor else None
        summary = run.summary() if run else _without_run(health, now_ms)
        verdict = health.status if health else UNKNOWN
        status = status_of(summary["state"], verdict)
        view = health.view if health else None
        return {
            "key": self.key,
            "checkpoint": self.url,
            **summary,
            "name": summary["name"] or directory,
            "place": place_of(self.url),
            "unit": "epoch" if run or (view is not None and view.continuous) else "batch",
            "status": status,
            "group": group_of(status),
            "runs": len(self.runs),
            "health": verdict,
            "findings": health.problems if health else 0,
        }


class Board:
    """The current queries. Any number of threads may read it."""

    def __init__(self, checkpoints: Sequence[str], runs: Path, clock: Clock) -> None:
        self.runs, self._clock = runs, clock
        self._lock = threading.Lock()
        self._queries: dict[str, Query] = {}
        self._tails: dict[Path, tuple[JournalTail, RunView | None]] = {}
        self._metrics: dict[str, QueryMetrics] = {}
        self._watched: Counter[str] = Counter()
        """How many pages show a query, by its key."""
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._places = [_open(url) for url in checkpoints]
        self._search_due = 0.0
        self.find_checkpoints()

    def start(self) -> None:
        """Start the threads that keep the board current until `close`."""
        work = self.read_runs, self.find_checkpoints, self.check_health
        for name, target in zip(("runs", "checkpoints", "health"), work, strict=True):
            thread = threading.Thread(
                target=self._repeat, args=(target,), name=f"epochal-{name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def summaries(self) -> list[dict[str, Any]]:
        """List all queries: running ones first, then by the start of their newest run, by name."""
        with self._lock:
            names = names_of([query.url for query in self._queries.values()])
            now_ms = self._clock.now_ms()
            summaries = [
                query.summary(names[query.url], now_ms) for query in self._queries.values()
            ]
        return sorted(
            summaries,
            key=lambda summary: (
                summary["state"] not in (RUNNING, ACTIVE),
                -(summary["started_ms"] or 0),
                summary["name"],
            ),
        )

    def since(self, key: str, sequence: int) -> dict[str, Any] | None:
        """Return the epochs and reports of a query's newest run after `sequence`."""
        with self._lock:
            query = self._queries.get(key)
            return query.run.since(sequence) if query and query.run else None

    def health(self, key: str) -> Health | None:
        """Return the result of the last check of a query's checkpoint."""
        with self._lock:
            query = self._queries.get(key)
            return query.monitor.health if query and query.monitor else None

    def files(self, key: str) -> Files | None:
        """Open the checkpoint of a known query; None for any other key."""
        with self._lock:
            query = self._queries.get(key)
        return _open(query.url) if query else None

    def metrics(self) -> str:
        with self._lock:
            collected = list(self._metrics.values())
        return text_of(
            merge_metrics(metric for metrics in collected for metric in metrics.collect())
        )

    def read_runs(self) -> None:
        """Read what runs have written since the last call."""
        paths = run_files(self.runs)[-MAX_RUNS:]
        for path in set(self._tails) - set(paths):
            self._forget(path)
        for path in paths:
            tail, view = self._tails.get(path) or (JournalTail(path), None)
            try:
                records, _ = tail.read()
            except OSError:
                continue  # the file was removed just now
            with self._lock:
                if view is None and records and isinstance(records[0], RunStarted):
                    view = RunView(records[0])
                    self._add(view)
                if view is not None:
                    self._note(view, records, tail.alive)
            self._tails[path] = (tail, view)

    def find_checkpoints(self) -> None:
        """Look for checkpoints below the given directories, if that is due."""
        now = self._clock.monotonic()
        if now < self._search_due:
            return
        urls = [url for place in self._places for url in find_checkpoints(place)]
        took = self._clock.monotonic() - now
        self._search_due = now + max(SEARCH_SECONDS, took / SEARCH_SHARE)
        with self._lock:
            for url in urls:
                self._query(url).given = True
            for query in list(self._queries.values()):
                if query.given and query.url not in urls:
                    query.given = False
                    if not query.runs:
                        del self._queries[query.key]

    def check_health(self) -> None:
        """Check every checkpoint that is due, those that pages show first."""
        with self._lock:
            queries = sorted(self._queries.values(), key=lambda query: not self._watched[query.key])
        for query in queries:
            if self._ended.is_set():
                return
            if query.monitor is None:
                try:
                    query.monitor = HealthMonitor(_open(query.url), self._clock)
                except EpochalError as error:
                    logger.warning("cannot open the checkpoint %s: %s", query.url, error)
                    continue
            delay = 0.0 if self._is_watched(query) else UNWATCHED_SECONDS
            if query.monitor.due + delay <= self._clock.monotonic():
                try:
                    query.monitor.check()
                except Exception:  # the other checkpoints must still be checked
                    logger.exception("cannot check the checkpoint %s", query.url)

    @contextmanager
    def watching(self, key: str) -> Iterator[None]:
        """Mark a query as shown by a page, for as long as the block lasts."""
        with self._lock:
            self._watched[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._watched[key] -= 1
                self._watched += Counter()  # drops the keys whose count is zero

    def _is_watched(self, query: Query) -> bool:
        """Whether a query needs frequent checks: it runs, is shown, or is the only one."""
        run = query.run
        never = query.monitor is None or query.monitor.health is None
        running = run is not None and run.state == RUNNING
        return never or running or len(self._queries) == 1 or self._watched[query.key] > 0

    def _note(self, view: RunView, records: Sequence[Record], alive: bool) -> None:
        news = [record for record in records if view.add(record)]
        view.alive = alive
        metrics = self._metrics[view.run.run_id]
        metrics.write(news)
        if view.state == LOST:
            metrics.write([RunEnded(0, "killed")])

    def _add(self, view: RunView) -> None:
        query = self._query(view.run.checkpoint)
        query.runs = sorted([*query.runs, view], key=lambda run: run.run.started_ms)
        metrics = self._metrics[view.run.run_id] = QueryMetrics()
        metrics.write([view.run])

    def _forget(self, path: Path) -> None:
        _, view = self._tails.pop(path)
        if view is None:
            return
        with self._lock:
            self._metrics.pop(view.run.run_id, None)
            query = self._query(view.run.checkpoint)
            query.runs = [run for run in query.runs if run is not view]
            if not query.runs and not query.given:
                del self._queries[query.key]

    def _query(self, url: str) -> Query:
        key = hashlib.sha256(os.fsencode(url)).hexdigest()[:12]  # names need not be UTF-8
        return self._queries.setdefault(key, Query(key, url))

    def _repeat(self, work: Callable[[], object]) -> None:
        while True:
            began = self._clock.monotonic()
            try:
                work()
            except Exception:
                logger.exception("the dashboard failed to update; it tries again")
            took = self._clock.monotonic() - began
            if self._ended.wait(max(POLL_SECONDS, PAUSE_FACTOR * took)):
                return


def _open(url: str) -> Files:
    return open_files(url, bounds=Bounds())


def _without_run(health: Health | None, now_ms: int) -> dict[str, Any]:
    view = health.view if health else None
    newest = view.batches[-1] if view and view.batches else None
    newest_ms = newest.timestamp_ms if newest else None
    active = newest_ms is not None and abs(now_ms - newest_ms) < ACTIVE_MS
    unknown = ("name", "run_id", "started_ms", "ended_ms", "attempt", "sink")
    unmeasured = ("input_rate", "p50_ms", "p99_ms", "behind", "state_rows")
    return {
        **dict.fromkeys((*unknown, *unmeasured)),
        "query_id": view.query_id if view else None,
        "state": ACTIVE if active else CHECKPOINT,
        "message": "",
        "error": health.problem if health else None,
        "epoch": newest.batch_id if newest else None,
        "newest_ms": newest_ms,
        "late_rows": 0,
        "restarts": 0,
        "sources": [source.kind for source in view.sources] if view else [],
    }


MAX_DEPTH = 3
MAX_DIRECTORIES = 2_000
"""Directories to list at most. Tables and output next to checkpoints may have very many."""
_NEVER = frozenset({"_spark_metadata", "_delta_log", "_temporary"})


def find_checkpoints(files: Files) -> list[str]:
    """The URLs of the checkpoints at or below a directory: one argument can name dozens of them.

    The directory itself if nothing is found, so that the page can say what is wrong with it.
    """
    urls = list(_below(files, [MAX_DIRECTORIES], 0))
    return urls or [files.url]


def _below(files: Files, left: list[int], depth: int) -> Iterator[str]:
    if left[0] <= 0:
        return
    left[0] -= 1
    try:
        names = files.list()
    except (EpochalError, OSError):
        return
    # Tables of Iceberg have a directory `metadata`; a checkpoint has a file of that name.
    if any(
        info.name in (OFFSETS, COMMITS) if info.is_dir else info.name == METADATA for info in names
    ):
        yield files.url
        return
    if depth == MAX_DEPTH:
        return
    for info in names:
        if info.is_dir and not info.hidden and info.name not in _NEVER and "=" not in info.name:
            yield from _below(files.at(info.name), left, depth + 1)
