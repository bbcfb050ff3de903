"""Runs a user's program in a Spark session, then waits until its queries end or are stopped.

Note: a separate thread stops the queries. The signal handler runs in the main thread, in which the
program usually waits for its query, so it cannot also wait for the end of an epoch.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

import epochal
from epochal.errors import QueryFailedError


class QuietListener(StreamingQueryListener):  # type: ignore[misc]
    """Ignores all events. PySpark's own class requires three of its four methods."""

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


TURN_SECONDS = 0.2
"""How long to wait for one kind of query before checking the other kind."""


def open_session(name: str, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """Open the program's session; settings not given here come from Spark or spark-submit."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    epochal.register(spark)
    return spark


def run_program(
    path: Path, arguments: Sequence[str], spark: SparkSession, stopping: threading.Event
) -> None:
    """Run the file as a program with the names `spark` and `epochal`, then wait for its queries.

    Setting `stopping` stops them, each at the end of an epoch or batch. Raises QueryFailedError if
    a query failed, or the exception of the program; in both cases the other queries are stopped
    first.
    """
    failures = _Failures()
    epochal.streams(spark).add_listener(failures)
    done = threading.Event()
    stopper = threading.Thread(
        target=_stop_when_set, args=(spark, stopping, done), name="epochal-stopper", daemon=True
    )
    stopper.start()
    try:
        execute(path, arguments, spark)
        _wait(spark, failures)
    finally:
        done.set()
        stopping.set()
        stopper.join()
        _stop_all(spark)
        epochal.streams(spark).remove_listener(failures)


def execute(path: Path, arguments: Sequence[str], spark: SparkSession) -> None:
    """Run the file as `__main__`, with the names `spark` and `epochal`."""
    # The program stays `__main__` until the process ends: whenever tasks restart, its functions are
    # pickled again.
    program = ModuleType("__main__")
    program.__dict__.update(__file__=str(path), spark=spark, epochal=epochal)
    sys.modules["__main__"] = program
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    exec(compile(path.read_bytes(), str(path), "exec"), program.__dict__)


def _wait(spark: SparkSession, failures: _Failures) -> None:
    """Wait until no query is active; raise if one has failed."""
    ours, theirs = epochal.streams(spark), spark.streams
    while True:
        failures.check()
        active = bool(ours.active or theirs.active)
        if ours.await_any_termination(TURN_SECONDS if ours.active else 0):
            failures.check()
            ours.reset_terminated()
        try:
            if theirs.awaitAnyTermination(TURN_SECONDS):
                theirs.resetTerminated()
        except StreamingQueryException as error:
            raise QueryFailedError("of Spark's own", "unknown", None, str(error)) from None
        if not active:
            return


def _stop_when_set(spark: SparkSession, stopping: threading.Event, done: threading.Event) -> None:
    stopping.wait()
    while not done.is_set():  # the program may start another query
        _stop_all(spark)
        done.wait(TURN_SECONDS)


def _stop_all(spark: SparkSession) -> None:
    for ours in epochal.streams(spark).active:
        ours.stop()
    for theirs in spark.streams.active:
        theirs.stop()


class _Failures(QuietListener):
    """Remembers the first continuous query that failed.

    Listeners are called before a query leaves the list of active queries, so `_wait` misses none.
    """

    def __init__(self) -> None:
        self._first: QueryFailedError | None = None

    def check(self) -> None:
        if self._first is not None:
            raise self._first

    def onQueryTerminated(self, event: Any) -> None:
        if event.exception and self._first is None:
            self._first = QueryFailedError(
                str(event.id), str(event.runId), None, _cause(event.exception)
            )


def _cause(message: str) -> str:
    """The part of an error message after the query's name, if the message names one."""
    return message.partition("terminated with exception: ")[2] or message
